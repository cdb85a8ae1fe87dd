"""A trace as the objects of Weka sessions: one for each session, with what its recording had where that is known.

A trace that does not come from Weka files has no fields of its own: its times stay on one clock, requests get the
fields that readers of the format need, and a request without a session is a session of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson

from .._base.errors import InputError
from ..trace.columns import Columns
from ..trace.meta import shares_prefixes
from ..trace.unknown import UNKNOWN_LENGTH
from .weka_columns import (
    EMPTY,
    EXACT,
    FIELD,
    OWN,
    PLACE,
    PREFIX,
    SESSION,
    column_of,
    id_runs,
    seconds_of,
    section_of,
    since,
)
from .weka_session import EPSILON_S, GLOBAL, LOCAL, SUBAGENT

USUAL = ("type", "model", "input_types", "output_types", "stop", "think_time", "ttft")  # fields of the format
LISTS = ("input_types", "output_types")
SAME_S = 1e-6  # times that differ by less are the same recorded time
UNKNOWN = "unknown"


class SessionObjects:
    """The sessions of a trace as JSON objects; `ids` values are NumPy arrays, which orjson writes.

    >>> from kvtrace.trace.building import toy
    >>> [session] = SessionObjects(toy("0 1", block_size=64), 64)
    >>> session["requests"][0]["hash_ids"], session["requests"][0]["in"], session["hash_id_scope"]
    (array([0, 1], dtype=uint64), 128, 'local')
    """

    def __init__(self, columns: Columns, block_size: int, meta: Any = None, *, first_id: int = 0, extra: bool = False):
        section = section_of(meta)
        self._columns, self._block_size, self._first_id = columns, block_size, first_id
        is_known = _numbers(columns, SESSION, np.int64) is not None
        self._recorded: list[dict[str, Any]] = section.get("sessions", []) if is_known else []
        self._start_ms = section.get("start_ms", 0.0)
        self._has_ids = shares_prefixes(meta or {})
        self.session = self._sessions()
        agent = _numbers(columns, "agent", np.int64)
        self.agent = np.zeros(len(columns), np.int64) if agent is None else agent
        self._set_times()
        self._set_fields(section, extra)
        self._names = self._global_names()

    def __len__(self) -> int:
        return len(self._order_of_sessions)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(len(self)):
            yield self.object(number)

    def file(self, number: int) -> str | None:
        """The recorded name of a session's file."""
        recorded = self._recorded_of(number)
        return recorded.get("file") if recorded else None

    # -- which rows are a session --------------------------------------------------------------------------------

    def _sessions(self) -> np.ndarray:
        """Request -> its session: the recorded one, that of the trace, or one of its own."""
        columns = self._columns
        rows = len(columns)
        if self._recorded:
            session = columns.extra[SESSION]
            if len(session) and not 0 <= session.min() <= session.max() < len(self._recorded):
                raise InputError(f"the column {SESSION} names a session that the trace does not describe.")
            empty = [number for number, recorded in enumerate(self._recorded) if not recorded.get("requests")]
            self._order_of_sessions = np.union1d(np.unique(session), np.array(empty, dtype=np.int64))
        else:
            session = np.full(rows, -1, dtype=np.int64) if columns.session is None else columns.session.copy()
            alone = session < 0
            session[alone] = session.max(initial=-1) + 1 + np.arange(np.count_nonzero(alone))
            first = np.full(int(session.max(initial=-1)) + 1, rows, dtype=np.int64)
            np.minimum.at(first, session, np.arange(rows))
            self._order_of_sessions = np.argsort(first, kind="stable")[: len(np.unique(session))]
        order = np.argsort(session, kind="stable")
        bounds = np.searchsorted(session[order], self._order_of_sessions, side="left")
        ends = np.searchsorted(session[order], self._order_of_sessions, side="right")
        self._rows = [order[start:stop] for start, stop in zip(bounds, ends, strict=True)]
        return session

    def _recorded_of(self, number: int) -> dict[str, Any] | None:
        return self._recorded[int(self._order_of_sessions[number])] if self._recorded else None

    # -- fields --------------------------------------------------------------------------------------------------

    def _set_times(self) -> None:
        columns = self._columns
        self._start_s = seconds_of(columns.timestamp + self._start_ms)
        service = columns.service_ms
        self._service_s = np.full(len(columns), np.nan) if service is None else seconds_of(service)
        exact = _numbers(columns, EXACT["api_time"], np.float64)
        if exact is not None:
            self._service_s = np.where(np.abs(exact - self._service_s) <= SAME_S, exact, self._service_s)

    def _set_fields(self, section: Any, extra: bool) -> None:
        """The extra columns that are fields, as lists of values, None where a request has none."""
        columns, recorded = self._columns, section.get("fields")
        names = [name for name in (USUAL if recorded is None else recorded) if column_of(name) in columns.extra]
        if extra:
            others = [name for name in columns.extra if name not in OWN and not name.startswith(PREFIX)]
            names += [name for name in others if name not in names]
        as_json = set(section.get("json", LISTS))
        self._fields: dict[str, list[Any]] = {}
        for name in names:
            values = columns.extra[column_of(name)].tolist()
            self._fields[name] = [_parsed(value) for value in values] if name in as_json else values
        self._is_recorded = recorded is not None
        empty = columns.extra.get(EMPTY)
        self._empty: list[str | None] = [None] * len(columns) if empty is None else empty.tolist()
        self._as_json = as_json

    def lost_columns(self) -> list[str]:
        """The extra columns that are not written."""
        written = {column_of(name) for name in self._fields}
        return [
            name
            for name in self._columns.extra
            if name not in written and name not in OWN and not (name.startswith(PREFIX) and not name.startswith(FIELD))
        ]

    # -- ids -----------------------------------------------------------------------------------------------------

    def _references(self, rows: np.ndarray) -> tuple[np.ndarray, list[int]]:
        """The ids of some rows end to end, and the blocks of each."""
        from .._native import numbering

        ids, offsets = numbering.take(self._columns.hash_ids, self._columns.offsets, rows)
        return ids, np.diff(offsets).tolist()

    def _recorded_ids(self, number: int, ids: np.ndarray) -> np.ndarray | None:
        """The recorded names of a session's ids by first appearance, if its rows are still those of the recording."""
        recorded = self._recorded_of(number)
        if not recorded or recorded["fields"].get("block_size") != self._block_size:
            return None
        if len(self._rows[number]) != recorded.get("requests"):
            return None
        return id_runs(recorded, len(np.unique(ids)))

    def _global_names(self) -> np.ndarray | None:
        """Block -> its name in sessions of global scope: the recorded one, else a new one; None if all are local."""
        columns = self._columns
        self._scope = [
            (self._recorded_of(number) or {}).get("fields", {}).get("hash_id_scope", LOCAL)
            for number in range(len(self))
        ]
        if not self._recorded and self._is_shared():
            self._scope = [GLOBAL] * len(self)
        if GLOBAL not in self._scope:
            return None
        distinct = int(columns.hash_ids.max(initial=-1)) + 1
        names, is_named = np.zeros(distinct, dtype=np.uint64), np.zeros(distinct, dtype=bool)
        for number, scope in enumerate(self._scope):
            if scope == GLOBAL and self._recorded:
                ids, _ = self._references(self._in_file_order(number))
                recorded = self._recorded_ids(number, ids)
                if recorded is not None:
                    blocks = ids[_first_places(ids)]
                    names[blocks], is_named[blocks] = recorded, True
        free = np.arange(self._first_id, self._first_id + distinct, dtype=np.uint64)
        names[~is_named] = np.setdiff1d(free, names[is_named])[: np.count_nonzero(~is_named)]
        return names

    def _is_shared(self) -> bool:
        """Whether sessions share blocks."""
        columns = self._columns
        owner = np.full(int(columns.hash_ids.max(initial=-1)) + 1, -1, dtype=np.int64)
        session = np.repeat(self.session, np.diff(columns.offsets))
        owner[columns.hash_ids] = session
        return bool((owner[columns.hash_ids] != session).any())

    def _named(self, number: int, ids: np.ndarray) -> np.ndarray:
        """The written ids of a session's blocks."""
        if self._names is not None and self._scope[number] == GLOBAL:
            return self._names[ids]
        from .._native import numbering

        numbers, distinct = numbering.renumber(ids)
        names = self._recorded_ids(number, ids)
        return (np.arange(self._first_id, self._first_id + distinct) if names is None else names)[numbers].astype(
            np.uint64
        )

    # -- one session ---------------------------------------------------------------------------------------------

    def _in_file_order(self, number: int) -> np.ndarray:
        """The rows of a session as its file has them: a subagent's rows where its entry is."""
        return np.array([row for entry in self._entries(number) for row in entry[1]], dtype=np.int64)

    def _entries(self, number: int) -> list[tuple[int, list[int]]]:
        """The entries of a session's list: (0, [row]) for a request, (agent, rows) for a subagent."""
        rows, place = self._rows[number], _numbers(self._columns, PLACE, np.int64)
        if place is not None:
            rows = rows[np.argsort(place[rows], kind="stable")]
        recorded = self._recorded_of(number) or {}
        of_agent: dict[int, list[int]] = {agent: [] for agent in range(1, 1 + len(recorded.get("agents", [])))}
        entries: list[tuple[int, list[int]]] = []
        for row in rows.tolist():
            agent = int(self.agent[row])
            if agent:
                of_agent.setdefault(agent, []).append(row)
            else:
                entries.append((0, [row]))
        is_whole = len(rows) == recorded.get("requests")
        for agent in sorted(of_agent):
            if recorded and not is_whole and not of_agent[agent]:
                continue  # of a part, only the subagents with requests
            described = self._described(number, agent)
            if is_whole and described:
                at = described["place"]
            else:
                at = sum(inner[:1] <= of_agent[agent][:1] for _, inner in entries)  # rows come in the order of time
            entries.insert(at, (agent, of_agent[agent]))
        return entries

    def _described(self, number: int, agent: int) -> dict[str, Any] | None:
        agents = (self._recorded_of(number) or {}).get("agents", [])
        return agents[agent - 1] if agent <= len(agents) else None

    def object(self, number: int) -> dict[str, Any]:
        """A session."""
        entries = self._entries(number)
        rows = [row for _, inner in entries for row in inner]
        ids, blocks = self._references(np.array(rows, dtype=np.int64))
        names = self._named(number, ids)
        hash_ids = dict(zip(rows, np.split(names, np.cumsum(blocks)[:-1]) if blocks else [], strict=True))
        requests = []
        for agent, inner in entries:
            if agent:
                requests.append(self._subagent(number, agent, inner, hash_ids))
            else:
                requests.append(self._request(inner[0], self._written_time(inner[0]), hash_ids))
        recorded = self._recorded_of(number)
        fields: dict[str, Any] = dict(recorded["fields"]) if recorded else {}
        if not recorded:
            fields = {"id": f"session-{number + 1:05}", "models": self._models(rows)}
            fields |= {"tool_tokens": 0, "system_tokens": 0}
        fields |= {"block_size": self._block_size, "hash_id_scope": self._scope[number]}
        return fields | {"requests": requests}

    def _models(self, rows: list[int]) -> list[str]:
        models = self._fields.get("model")
        return list(dict.fromkeys(str(models[row] or UNKNOWN) for row in rows)) if models else [UNKNOWN]

    def _written_time(self, row: int, base_s: float = 0.0, clock_s: float = 0.0, relative: bool = False) -> float:
        """The `t` of a request: the recorded one where it still is its time, also on a subagent's clock."""
        start = float(self._start_s[row])
        exact = _numbers(self._columns, EXACT["t"], np.float64)
        if exact is not None:
            recorded = float(exact[row])
            is_relative = recorded + EPSILON_S < base_s
            if abs(recorded + (clock_s if is_relative else 0.0) - start) <= SAME_S:
                return recorded
        if relative:
            return float(since(np.array([start]), np.array([clock_s]))[0])
        return start

    def _subagent(self, number: int, agent: int, rows: list[int], hash_ids: dict[int, np.ndarray]) -> dict[str, Any]:
        described = self._described(number, agent)
        fields: dict[str, Any] = dict(described["fields"]) if described else {}
        start = min((float(self._start_s[row]) for row in rows), default=0.0)
        base, relative = fields.get("t"), bool(described and described.get("relative"))
        clock = base
        if base is not None and relative and base > start + SAME_S:  # the entry's time is that of its end
            clock = base - float(fields.get("duration_ms") or 0.0) / 1000
        if base is None or clock is None or (rows and clock > start + SAME_S):
            base, clock, relative = start, start, False  # the recorded entry is later: times have changed
        times = [self._written_time(row, base, clock, relative) for row in rows]
        if relative and any(time + EPSILON_S >= base for time in times) and EXACT["t"] not in self._columns.extra:
            times = [float(self._start_s[row]) for row in rows]
        fields |= {"t": base, "type": SUBAGENT}
        if not described:  # the fields that AIPerf's loader requires
            fields |= {"agent_id": f"agent_{agent:03}", "subagent_type": UNKNOWN, "status": "completed"}
            fields["models"] = self._models(rows)
        return fields | {
            "requests": [self._request(row, time, hash_ids) for row, time in zip(rows, times, strict=True)]
        }

    def _request(self, row: int, time: float, hash_ids: dict[int, np.ndarray]) -> dict[str, Any]:
        columns = self._columns
        fields = {name: values[row] for name, values in self._fields.items() if values[row] is not None}
        for name in self._as_json & self._fields.keys():
            if self._fields[name][row] is NULL:
                fields[name] = None
        if not self._is_recorded:
            fields.setdefault("type", "n")
            fields["model"] = str(fields.get("model", UNKNOWN))
        tokens = int(columns.output_length[row])
        fields |= {"t": time, "in": int(columns.input_length[row])}
        fields["out"] = None if tokens == UNKNOWN_LENGTH else tokens
        if not np.isnan(self._service_s[row]):
            fields["api_time"] = float(self._service_s[row])
        empty = _parsed(self._empty[row])
        empty = empty if isinstance(empty, list) else []
        fields |= {name: None for name in empty if isinstance(name, str) and name not in ("hash_ids", "t", "in", "out")}
        return fields if "hash_ids" in empty or not self._has_ids else fields | {"hash_ids": hash_ids[row]}


NULL = object()  # a JSON null that is a value


def _parsed(value: Any) -> Any:
    """The value of a column of JSON; a text that is not JSON is the value itself."""
    if not isinstance(value, str):
        return value
    try:
        parsed = orjson.loads(value)
    except orjson.JSONDecodeError:
        return value
    return NULL if parsed is None else parsed


def _numbers(columns: Columns, name: str, dtype: type) -> np.ndarray | None:
    """An extra column of numbers; None if there is none, or it holds something else."""
    values = columns.extra.get(name)
    return values if values is not None and values.dtype == dtype else None


def _first_places(ids: np.ndarray) -> np.ndarray:
    """The places where ids appear for the first time, in order."""
    return np.sort(np.unique(ids, return_index=True)[1])
