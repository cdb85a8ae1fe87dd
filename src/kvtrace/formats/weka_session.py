"""One session of an agent in Weka's JSON: an object with the requests of the main agent and of its subagents.

Keys of the object: `id`, `models`, `block_size`, `hash_id_scope` ("local" or "global"), `tool_tokens`, `system_tokens`,
`requests`. A request: `t` and `api_time` in seconds, `type`, `model`, `in`, `out`, `hash_ids`, and others, which are kept.
An entry of type "subagent" has `t` and `requests` of its own, whose times are absolute, or relative to that `t` if they
are before it. https://github.com/callanjfox/kv-cache-tester, AIPerf's loader/weka_trace_models.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from .._base.errors import InputError
from ..trace.invariants import MAX_TIME

LOCAL, GLOBAL = "local", "global"
SUBAGENT = "subagent"
EPSILON_S = 1e-6  # an inner time this little before its subagent's is absolute, as in AIPerf's loader
MAX_WHOLE = 2**63 - 1


@dataclass
class Row:
    """One request, as its object has it but for `requests` and `hash_ids`."""

    agent: int  # 0 = main agent, 1, 2, ... = subagents in the order of their entries
    place: int  # in its list of requests
    start_s: float  # on the clock of the session
    fields: dict[str, Any]
    hash_ids: np.ndarray  # int64, as written


@dataclass
class Session:
    """A session as its file has it."""

    path: str
    fields: dict[str, Any]  # of the session, without its requests
    block_size: int
    scope: str
    agents: list[dict[str, Any]] = field(default_factory=list)  # of each subagent: its entry without its requests
    places: list[int] = field(default_factory=list)  # of each subagent: the place of its entry in the session's list
    rows: list[Row] = field(default_factory=list)  # in the order of the file


def parse_session(text: bytes, path: str) -> Session:
    """The session in a text; InputError, with its place but without its content, if it is not valid."""
    values = _loaded(text, path)
    if not isinstance(values, dict):
        raise InputError(f"{path}: the file is not a JSON object. A Weka session is one object with a list of requests.")
    requests = values.get("requests")
    if not isinstance(requests, list):
        raise InputError(f"{path}: requests is not a list. Is it a Weka session?")
    size, scope = values.get("block_size"), values.get("hash_id_scope")
    if type(size) is not int or not 1 <= size <= 1 << 24:
        raise InputError(f"{path}: block_size is not a whole number of tokens, at least 1.")
    if scope not in (LOCAL, GLOBAL):
        raise InputError(f"{path}: hash_id_scope is neither local nor global.")
    fields = {name: value for name, value in values.items() if name != "requests"}
    session = Session(path, fields, size, scope)
    for place, entry in enumerate(requests):
        where = f"{path}: requests[{place:,}]"
        if not isinstance(entry, dict):
            raise InputError(f"{where} is not an object.")
        if entry.get("type") == SUBAGENT:
            _add_subagent(session, entry, place, where)
        else:
            session.rows.append(_row(entry, 0, place, 0.0, where))
    return session


def _add_subagent(session: Session, entry: dict[str, Any], place: int, where: str) -> None:
    start = _seconds(entry.get("t"), f"{where}.t")
    inner = entry.get("requests")
    if not isinstance(inner, list):
        raise InputError(f"{where}.requests is not a list.")
    session.agents.append({name: value for name, value in entry.items() if name != "requests"})
    session.places.append(place)
    for inner_place, request in enumerate(inner):
        inner_where = f"{where}.requests[{inner_place:,}]"
        if not isinstance(request, dict):
            raise InputError(f"{inner_where} is not an object.")
        if request.get("type") == SUBAGENT:
            raise InputError(f"{inner_where} is a subagent inside of a subagent, which is not supported.")
        session.rows.append(_row(request, len(session.agents), inner_place, start, inner_where))


def _row(request: dict[str, Any], agent: int, place: int, base_s: float, where: str) -> Row:
    start = _seconds(request.get("t"), f"{where}.t")
    if agent and start + EPSILON_S < base_s:
        start += base_s
    if request.get("api_time") is not None:
        _seconds(request["api_time"], f"{where}.api_time")
    for name in ("in", "out"):
        if name not in request:
            raise InputError(f"{where}.{name} is missing.")
        if type(request[name]) is not int or not 0 <= request[name] <= MAX_WHOLE:
            raise InputError(f"{where}.{name} is not a whole number of tokens, at least 0.")
    ids = _ids(request.get("hash_ids"), f"{where}.hash_ids")
    return Row(agent, place, start, {name: value for name, value in request.items() if name != "hash_ids"}, ids)


def _loaded(text: bytes, path: str) -> Any:
    place = 0
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        place = error.pos + 1
    raise InputError(f"{path}: the file is not JSON from character {place:,}. Is it truncated?")


def _seconds(value: Any, where: str) -> float:
    if type(value) not in (int, float):
        raise InputError(f"{where} is not a number of seconds.")
    if not (math.isfinite(value) and 0 <= value <= MAX_TIME / 1000):
        raise InputError(f"{where} is not a time of at least 0.")
    return float(value)


def _ids(values: Any, where: str) -> np.ndarray:
    if not isinstance(values, list):
        raise InputError(f"{where} is not a list.")
    if not all(type(value) is int and -(2**63) <= value < 2**64 for value in values):
        raise InputError(f"{where} has a value that is not a whole number of 64 bits.")
    return np.array([value - 2**64 if value >= 2**63 else value for value in values], dtype=np.int64)
