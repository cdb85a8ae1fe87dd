"""One session of an agent in Weka's JSON: an object with the requests of the main agent and of its subagents.

Its keys are `id`, `models`, `block_size`, `hash_id_scope` ('local' or 'global'), `tool_tokens`, `system_tokens` and
`requests`. A request has `t` and `api_time` in seconds, `in` and `out` in tokens, `hash_ids`, and others. An entry of
type 'subagent' has `t` and `requests` of its own, whose times are absolute, or relative to the subagent's start where
they are less than its `t`. That `t` is its start, or its end `duration_ms` later: see `clocks_of`.
https://github.com/callanjfox/kv-cache-tester, and AIPerf's loader/weka_trace_models.py.

A kernel takes the lists of ids out of the text, and orjson decodes the rest. A list that was taken out is replaced by a
list with its number alone, such as [3]. No other list of integers is left under that key, so both are told apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from .._base.arrays import offsets_of
from .._base.errors import RowError
from .._native import numbering, rows
from .._native.rows import PAD, find_lists
from ..trace.columns import MAX_TIME
from ..trace.invariants import MAX_LENGTH
from .block_size import MAX_TOKENS
from .jsonl_read import BOM, id_list, whole_number
from .sidecar import MAX_DEPTH, is_deep


class Room:
    """Memory for the ids of one text after another."""

    def __init__(self) -> None:
        self._ids = np.empty(0, dtype=np.int64)

    def of(self, count: int) -> np.ndarray:
        """An array for so many ids, in place of the one before."""
        if count > len(self._ids):
            self._ids = np.empty(count, dtype=np.int64)
        return self._ids


def load(text: bytes, *, lifted: bool = True, room: Room | None = None) -> tuple[Any, IdLists]:
    """The values of a JSON text, and its lists of ids; with `lifted=False` the lists are decoded in place.

    The lists are valid until `room` is used for the next text.

    >>> values, lists = load(b'{"hash_ids": [7, 8]}')
    >>> values, lists.add(values["hash_ids"], "hash_ids"), lists.joined()
    ({'hash_ids': [0]}, None, (array([7, 8]), array([0, 2])))
    """
    text = text.removeprefix(BOM)
    if not lifted:
        return _decoded(text), IdLists(np.zeros(1, dtype=np.int64), np.empty(0, dtype=np.int64))
    spans, offsets, ids = find_lists(text + bytes(PAD), len(text), room.of(len(text) // 2 + 1) if room else None)
    pieces, end = [], 0
    for number, (start, stop) in enumerate(spans.tolist()):
        pieces += [text[end:start], b"[%d]" % number]
        end = stop
    short = b"".join([*pieces, text[end:]])
    try:
        return orjson.loads(short), IdLists(offsets, ids)
    except orjson.JSONDecodeError:
        pass
    return load(text, lifted=False)  # for the place of the error


class IdLists:
    """The lists of ids of a session's requests, in the order in which they are added."""

    def __init__(self, offsets: np.ndarray, ids: np.ndarray):
        self._offsets, self._ids = offsets, ids
        self._order: list[int] = []  # of lists, those that were decoded in Python after those of the kernel
        self._decoded: list[np.ndarray] = []
        self._lifted = len(offsets) - 1

    def add(self, value: Any, where: str) -> None:
        """Add the list of the next request; RowError if it is not a list of 64-bit integers."""
        if self._lifted and type(value) is list and len(value) == 1 and type(value[0]) is int:
            self._order.append(value[0])
            return
        self._order.append(self._lifted + len(self._decoded))
        self._decoded.append(_ids(value, where))

    def are_used(self) -> bool:
        """Whether each list that the kernel found was added once."""
        lifted = [number for number in self._order if number < self._lifted]
        return sorted(lifted) == list(range(self._lifted))

    def joined(self) -> tuple[np.ndarray, np.ndarray]:
        """The ids end to end, and the offsets of the lists."""
        if self._order == list(range(self._lifted)):
            return self._ids, self._offsets
        ids = np.concatenate([self._ids, *self._decoded])
        counts = [*np.diff(self._offsets).tolist(), *map(len, self._decoded)]
        return numbering.take(ids, offsets_of(counts), np.array(self._order, dtype=np.int64))


def _ids(value: Any, where: str) -> np.ndarray:
    if type(value) is list and any(type(number) in (int, float) and number < 0 for number in value):
        raise RowError(f"{where} has a negative id.")  # its bits could be those of an id from 2^63
    return id_list(value, where)


def _decoded(text: bytes) -> Any:
    place = 0
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        place = error.pos
    if place >= len(text.rstrip()):  # raised outside the handler: orjson's error contains the text
        raise RowError("the JSON ends early; the file is truncated.")
    if any(word in text[max(0, place - 2) : place + 10] for word in (b"NaN", b"Infinity")):
        raise RowError(f"a number is NaN or infinite at character {place + 1:,}, which JSON does not have.")
    raise RowError(f"the file is not JSON from character {place + 1:,}.")


LOCAL, GLOBAL = "local", "global"
SUBAGENT = "subagent"
EPSILON_S = 1e-6  # an inner time that is less than its subagent's by this little is absolute, as in AIPerf's loader


@dataclass
class WekaRequest:
    """A request."""

    agent: int  # 0 = the main agent; 1, 2, ... = the subagents in the order of their entries
    place: int  # in its list of requests
    start_s: float  # on the session's clock
    is_relative: bool  # whether its `t` is relative to its subagent's
    fields: dict[str, Any]  # all but `hash_ids`; has_ids says whether that was there
    has_ids: bool


@dataclass
class WekaAgent:
    """The entry of a subagent."""

    fields: dict[str, Any]  # all but `requests`
    place: int  # in the session's list of requests


@dataclass
class Session:
    """A session as its file has it; row r has the ids values[numbers[offsets[r]:offsets[r + 1]]]."""

    fields: dict[str, Any]  # all but `requests`
    block_size: int
    scope: str
    agents: list[WekaAgent] = field(default_factory=list)
    rows: list[WekaRequest] = field(default_factory=list)  # in the order of the file
    numbers: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    offsets: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    values: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # the ids by first appearance


def parse_session(text: bytes, room: Room | None = None) -> Session:
    """The session in a text; RowError, which names the place but shows no content, if it is not valid.

    >>> session = parse_session(b'{"block_size": 64, "hash_id_scope": "local", "requests": [{"t": 0.5, "in": 130, '
    ...                         b'"out": 1, "type": "n", "hash_ids": [7, 8]}]}')
    >>> session.rows[0].start_s, session.numbers.tolist(), session.values.tolist()
    (0.5, [0, 1], [7, 8])
    """
    for lifted in (True, False):
        values, lists = load(text, lifted=lifted, room=room)
        if is_deep(values):
            raise RowError(f"the file is nested more than {MAX_DEPTH} levels deep.")
        session = _session(values, lists)
        if lists.are_used():
            break  # else a list is inside of an unknown field, which is kept as it is
    ids, session.offsets = lists.joined()
    session.numbers, session.values = rows.number_ids(ids)
    return session


def moved_rows(session: Session) -> int:
    """The requests that start before a request that is listed before them, in the list of their agent."""
    reached: dict[int, float] = {}
    moved = 0
    for row in session.rows:
        moved += row.start_s < reached.get(row.agent, 0.0)
        reached[row.agent] = max(row.start_s, reached.get(row.agent, 0.0))
    return moved


def _session(values: Any, lists: IdLists) -> Session:
    if not isinstance(values, dict):
        raise RowError("the file is not a JSON object. A Weka session is one object with a list of requests.")
    requests = values.get("requests")
    if not isinstance(requests, list):
        raise RowError("requests is not a list. Is the file a Weka session?")
    size, scope = values.get("block_size"), values.get("hash_id_scope")
    if type(size) is not int or not 1 <= size <= MAX_TOKENS:
        raise RowError(f"block_size is not a whole number of tokens from 1 to {MAX_TOKENS:,}.")
    if scope not in (LOCAL, GLOBAL):
        raise RowError("hash_id_scope is neither local nor global.")
    session = Session(_without(values, "requests"), size, scope)
    clocks = clocks_of(requests)
    for place, entry in enumerate(requests):
        where = f"requests[{place}]"
        if place in clocks:
            _add_subagent(session, entry, place, clocks[place], where, lists)
        else:
            session.rows.append(_row(entry, 0, place, 0.0, 0.0, where, lists))
    return session


def clocks_of(requests: list[Any]) -> dict[int, float]:
    """Place of each subagent's entry -> the second at which its relative times are 0, on the session's clock.

    That is the entry's `t`, unless this is when the subagent ended: then it is `duration_ms` before. Recordings of
    Claude Code write an entry at the end. They show it where the main agent goes on before `t` plus `duration_ms`,
    although it waits for its subagents; if one entry of a session does, all entries with a duration are ends.

    >>> entry = {"type": "subagent", "t": 50.0, "duration_ms": 40_000, "requests": []}
    >>> clocks_of([{"t": 0.0}, entry, {"t": 60.0}]), clocks_of([{"t": 0.0}, entry, {"t": 95.0}])
    ({1: 10.0}, {1: 50.0})
    """
    begins: dict[int, float] = {}
    ends: dict[int, float] = {}
    goes_on, shows_ends = math.inf, False
    for place in range(len(requests) - 1, -1, -1):
        entry = requests[place]
        if not isinstance(entry, dict):
            continue
        time, duration_s = _number(entry.get("t")), _number(entry.get("duration_ms")) / 1000
        if entry.get("type") != SUBAGENT:
            goes_on = time
            continue
        begins[place] = ends[place] = time
        if 0 < duration_s <= time:
            ends[place] = time - duration_s
            shows_ends |= goes_on < time + duration_s
    return ends if shows_ends else begins


def _number(value: Any) -> float:
    """A number, or NaN."""
    return float(value) if type(value) in (int, float) and abs(value) < MAX_TIME else math.nan


def _add_subagent(
    session: Session, entry: dict[str, Any], place: int, clock_s: float, where: str, lists: IdLists
) -> None:
    start = _seconds(entry, "t", where)
    requests = entry.get("requests")
    if not isinstance(requests, list):
        raise RowError(f"{where}.requests is not a list.")
    session.agents.append(WekaAgent(_without(entry, "requests"), place))
    for inner, request in enumerate(requests):
        if isinstance(request, dict) and request.get("type") == SUBAGENT:
            raise RowError(f"{where}.requests[{inner}] is a subagent of a subagent, which is not supported.")
        row = _row(request, len(session.agents), inner, start, clock_s, f"{where}.requests[{inner}]", lists)
        session.rows.append(row)


def _row(
    request: Any, agent: int, place: int, base_s: float, clock_s: float, where: str, lists: IdLists
) -> WekaRequest:
    if not isinstance(request, dict):
        raise RowError(f"{where} is not an object.")
    start = _seconds(request, "t", where)
    is_relative = start + EPSILON_S < base_s
    if request.get("api_time") is not None:
        _seconds(request, "api_time", where)
    for name in ("in", "out"):
        if name not in request:
            raise RowError(f"{where}.{name} is missing.")
        if name == "out" and request[name] is None:
            continue  # of unknown length
        if (tokens := whole_number(request[name], f"{where}.{name}")) < 0:
            raise RowError(f"{where}.{name} is negative.")
        if tokens > MAX_LENGTH:
            raise RowError(f"{where}.{name} is more than {MAX_LENGTH:,} tokens.")
    lists.add(request.get("hash_ids", []), f"{where}.hash_ids")
    start += clock_s if is_relative else 0.0
    return WekaRequest(agent, place, start, is_relative, _without(request, "hash_ids"), "hash_ids" in request)


def _seconds(values: dict[str, Any], name: str, where: str) -> float:
    """A time or a duration."""
    if name not in values:
        raise RowError(f"{where}.{name} is missing.")
    value: Any = values[name]
    if type(value) not in (int, float):
        raise RowError(f"{where}.{name} is not a number of seconds.")
    if not (math.isfinite(value) and value <= MAX_TIME / 1000):
        raise RowError(f"{where}.{name} is too large.")
    if value < 0:
        raise RowError(f"{where}.{name} is negative.")
    return float(value)


def _without(values: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}
