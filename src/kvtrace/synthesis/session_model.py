"""The session model: what sessions of a trace are like, without ids, and without the order of their turns.

It holds two kinds of records, sorted by value, with values in bins. A chain record has the size of a chain of a session
and the sums of up to twelve parts of it. A turn record has what happens from one request of a chain to
the next. Turn records of all sessions are pooled, so a model does not reveal which turns belong together.

The chains of a trace's sessions: runs of requests in which each waits for the one before it.

A session tree is cut into chains. The main chain begins with the session's first request. A request continues the chain
of the request that it waits for, if it belongs to the same agent; if several do, the one with the latest descendant
continues it, so that a chain outlives its branches. All others begin a chain of their own: a subagent (spawn), a second
line of the same agent (fork), or requests that wait for nothing (root).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..trace.dependencies import COMPLETION, JOIN, SEQUENCE, SPAWN, Dependencies
from ..trace.invariants import MAX_LENGTH
from ..trace.session_trees import previous_turn
from ..trace.trace import Trace
from .arrival_times import Pace
from .attach_model import MAX_BLOCK_SIZE, MAX_PATH, TAILS, TIME_STEPS_MS
from .bins import Bins, InvalidModelError, integers
from .fidelity import Fidelity, Figures
from .saved_model import SavedModel

MAIN, SPAWNED, FORKED, ROOT = range(4)  # kinds of chains


@dataclass(frozen=True, eq=False)
class SessionChains:
    """The chains of a trace; its requests by chain, and what each waits for."""

    session: np.ndarray  # row -> session, numbered 0, 1, ... by first request
    base: np.ndarray  # row -> the request that it continues, or that its chain begins from; -1 = none
    trigger: np.ndarray  # row -> trigger of base
    relation: np.ndarray  # row -> relation to base
    delay_ms: np.ndarray  # row -> ms after what it waits for; of a later root: after the session's first request
    chain: np.ndarray  # row -> chain, numbered by first request
    place: np.ndarray  # row -> its place in its chain, from 0
    rows: np.ndarray  # all rows, by chain and place
    starts: np.ndarray  # chain -> place of its first row in `rows`; the last entry is the number of rows
    kind: np.ndarray  # chain -> MAIN, SPAWNED, FORKED or ROOT
    join: np.ndarray  # chain -> the row that waits for its end, -1 = none
    alone: np.ndarray  # chain -> 1 if that row waits for nothing but joins

    @property
    def first(self) -> np.ndarray:
        """chain -> its first row."""
        return self.rows[self.starts[:-1]]

    @property
    def turns(self) -> np.ndarray:
        """chain -> number of its requests."""
        return np.diff(self.starts)


def chains_of(trace: Trace) -> SessionChains:
    """The chains of a trace with dependencies. A request without a session is a session of its own.

    >>> from kvtrace.trace.building import toy
    >>> from kvtrace.trace.columns import replace_columns
    >>> waits = [[], [(0, "completion", "sequence", 5.0)], [(0, "completion", "spawn", 1.0)]]
    >>> columns = replace_columns(toy("0", "0 1", "2"), session=[0, 0, 0], dependencies=Dependencies.of(waits))
    >>> chains = chains_of(Trace(columns.timestamp, *list(vars(columns).values())[1:], block_size=1))
    >>> chains.chain, chains.kind
    (array([0, 0, 1]), array([0, 1]))
    """
    n, waits = len(trace), trace.dependencies if trace.dependencies is not None else Dependencies.none(len(trace))
    session = _sessions(trace)
    agent = trace.extra.get("agent")
    line = session if agent is None else _numbered(session * (int(agent.max(initial=0)) + 1) + np.maximum(agent, 0))
    inside = session[waits.request] == session[waits.row]
    base, trigger, relation, delay = _bases(waits, inside, n)
    joins = np.flatnonzero((waits.relation == JOIN) & inside)
    alone = np.zeros(n, dtype=bool)
    alone[waits.request[joins]] = base[waits.request[joins]] < 0
    before = previous_turn(line)
    first_of_session = _first_rows(session)
    loose = (base < 0) & (before >= 0) & ((agent is not None) | alone)  # no base of its own: the previous turn
    base[loose], trigger[loose], relation[loose] = before[loose], COMPLETION, SEQUENCE
    delay[loose] = np.maximum(0, trace.timestamp[loose] - _ends(trace)[before[loose]])
    delay[waits.request[joins]] = np.where(
        alone[waits.request[joins]], waits.delay_ms[joins], delay[waits.request[joins]]
    )
    root = base < 0
    delay[root] = (trace.timestamp - trace.timestamp[first_of_session[session]])[root]
    same = np.zeros(n, dtype=bool)
    has = np.flatnonzero(~root)
    same[has] = line[has] == line[base[has]] if agent is not None else relation[has] == SEQUENCE
    chain, place = _cut(base, same)
    order = np.lexsort((place, chain))
    starts = np.append(np.flatnonzero(place[order] == 0), n)
    first = order[starts[:-1]]
    kind = np.where(
        root[first],
        np.where(first == first_of_session[session[first]], MAIN, ROOT),
        np.where(same[first], FORKED, SPAWNED),
    )
    join = np.full(len(first), -1, dtype=np.int64)
    awaited, by = chain[waits.row[joins]], waits.request[joins]
    other = chain[by] != awaited
    join[awaited[other][::-1]] = by[other][::-1]  # the first row that waits
    return SessionChains(
        session, base, trigger, relation, delay, chain, place, order, starts, kind, join,
        np.where(join >= 0, alone[join], False).astype(np.int64),
    )  # fmt: skip


def _sessions(trace):
    session = np.arange(len(trace)) if trace.session is None else trace.session.copy()
    without = session < 0
    session[without] = session.max(initial=-1) + 1 + np.arange(np.count_nonzero(without))
    return _numbered(session)


def _numbered(values):
    """The values as numbers by first appearance."""
    _, first, number = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[number]


def _first_rows(session):
    """session -> its first row."""
    return np.unique(session, return_index=True)[1]


def _ends(trace):
    return trace.timestamp if trace.service_ms is None else trace.timestamp + np.nan_to_num(trace.service_ms)


def _bases(waits, inside, n):
    """The first dependency of each request that is not a join: its row (-1 = none), trigger, relation and delay."""
    base, trigger, relation = (np.full(n, value, dtype=np.int64) for value in (-1, COMPLETION, SEQUENCE))
    delay = np.zeros(n)
    candidates = np.flatnonzero(inside & ((waits.relation == SEQUENCE) | (waits.relation == SPAWN)))[::-1]
    request = waits.request[candidates]  # reversed, so that the first of each request is written last
    base[request], trigger[request] = waits.row[candidates], waits.trigger[candidates]
    relation[request], delay[request] = waits.relation[candidates], waits.delay_ms[candidates]
    return base, trigger, relation, delay


def _cut(base, same):
    """The chain of each row, and its place in it."""
    n = len(base)
    latest, best, heir = list(range(n)), [-1] * n, [-1] * n
    bases, continues = base.tolist(), same.tolist()
    for row in range(n - 1, -1, -1):
        above = bases[row]
        if above >= 0:
            latest[above] = max(latest[above], latest[row])
            if continues[row] and latest[row] > best[above]:
                best[above], heir[above] = latest[row], row
    chain, place, chains = [0] * n, [0] * n, 0
    for row in range(n):
        above = bases[row]
        if above >= 0 and heir[above] == row:
            chain[row], place[row] = chain[above], place[above] + 1
        else:
            chain[row] = chains
            chains += 1
    return np.array(chain, dtype=np.int64), np.array(place, dtype=np.int64)


SCHEMA, KIND = 2, "kvtrace session model"

# record -> column -> name of its bins, or the number of its values
CHAINS: dict[str, str | int] = {
    "kind": 4,  # MAIN, SPAWNED, FORKED or ROOT
    "turns": "turns",  # requests
    "first": "first",  # tokens of the first prompt
    "over": "growth", "under": "growth",  # WHOLE: growth of the first prompt beyond the one that it begins from
    "shared": "blocks",  # blocks that the first prompt shares with another; WHOLE: blocks that it does not keep
    "like": 4,  # what it shares them with: NOTHING, BASE, SIBLING or WHOLE
    "above": "level",  # a fork: blocks of context where it begins
    "trigger": 2,  # what the first request waits for
    "delay": "time",  # and how long after it
    "join": "turns",  # requests of the chain above until one waits for this chain; 0 = none does
    "alone": 2,  # 1: that request waits for nothing else
    "groups": 1 << 16,  # a main chain: groups of chains that begin in its session
    "below": "turns", "beside": "turns",  # a main chain: requests of its subagents, and of the others of these chains
    "reach": "level",  # a main chain: blocks of context where these others begin, summed
    "hits": "blocks",  # blocks of the first prompt that earlier sessions had
    "distance": "distance",  # distinct blocks of first prompts used since then
    "fork": "blocks", "fork_distance": "distance",  # see attach_fitting.py
    "use": 18,  # kind of that attachment (_native/growth.py)
}  # fmt: skip
PARTS: dict[str, str | int] = {  # of a chain, in order
    "grown": "growth", "shrunk": "growth",  # growth of the context in tokens; one of both is 0
    "time": "time",  # from the start of its first request to that of the next part
    "brief": "time",  # the same, with each turn at most slow[0]
    "quick": "time",  # the same, with each turn at most slow[1]
    "breaks": 1 << 16,  # requests that keep less than half of the context
    "level": "level",  # blocks of context before these, summed
}  # fmt: skip
GROUPS: dict[str, str | int] = {
    "kind": 4,  # of its chains
    "position": 16,  # where in the chain above, in sixteenths
    "width": "turns",  # chains that begin from the same request
    "nested": 2,  # 1: the chain above is not the main chain
}
TURNS: dict[str, str | int] = {
    "child": 2,  # 0: of a main chain
    "break": 2,  # 1: keeps less than half of the context
    "output": "output",  # tokens of the request before
    "over": "growth", "under": "growth",  # growth of the prompt beyond that output, or below it
    "blocks": "blocks",  # blocks lost at the end of the context; of a break: blocks kept at its beginning
    "level": "level",  # of a break: blocks of context before it
    "trigger": 2,  # of the wait for the request before
    "delay": "time",  # after the trigger
    "service": "service",  # of the request before, plus 1; 0 = unknown
}  # fmt: skip
FINALS: dict[str, str | int] = {"output": "output", "service": "service"}  # of the last request of a chain
TABLES = {"chains": CHAINS, "parts": PARTS, "groups": GROUPS, "turns": TURNS, "finals": FINALS}
BINNED = ("turns", "first", "blocks", "time", "distance", "growth", "level", "output", "service")
NOTHING, BASE, SIBLING, WHOLE = range(4)  # ..., the request it begins from, a chain beside it, most of that request
ATTACHMENT = ("hits", "distance", "fork", "fork_distance", "use")  # columns of chains: what first prompts attach to
MAX_PARTS = 12
MAX_TURNS, MAX_CHAINS = 100_000, 20_000  # records; larger tables are sampled

Table = dict[str, np.ndarray]  # column -> record -> bin or number


@dataclass(frozen=True, eq=False, repr=False)
class SessionModel(SavedModel):
    """How the sessions of a trace run: their chains, and the turns of all of them."""

    sessions: int  # fitted sessions
    rows: int  # fitted requests
    block_size: int
    tail: str  # treatment of partial blocks: kept, unique or dropped
    duration_ms: float  # from the first request to the last
    time_step_ms: int  # all times of the trace are multiples of it
    columns: dict[str, bool]  # agent, parent, service: whether the trace had the column
    tables: dict[str, Table]  # chains, parts, groups, turns, finals: column -> record -> bin or number
    starts: np.ndarray  # chain -> its first part; the last entry is the number of parts
    bins: dict[str, Bins]
    slow: tuple[int, int]  # steps that the slowest 5 % of the turns exceed, and the slowest 25 %
    pace: Pace  # of the starts of sessions
    figures: Figures  # of the trace
    fidelity: Fidelity | None = None  # as checked

    method = "sessions"
    kind = KIND

    def _headline(self) -> str:
        return f"{self.sessions:,} sessions, {self.rows:,} requests, block_size={self.block_size}"

    def _columns(self) -> dict[str, np.ndarray]:
        """One row for each chain record: its kind and the smallest number of its requests."""
        chains = self.tables["chains"]
        return {"kind": chains["kind"], "turns": self.bins["turns"].low[chains["turns"]]}

    def draw(self, table: str, records: np.ndarray, rng: np.random.Generator) -> Table:
        """The columns of some records of a table, with values drawn from their bins."""
        codes = {name: column[records] for name, column in self.tables[table].items()}
        return {
            name: self.bins[of].spread(codes[name], rng) if isinstance(of, str) else codes[name]
            for name, of in TABLES[table].items()
        }

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of https://github.com/kvtrace/kvtrace/blob/main/docs/synthesis/synthesize.md; `schema` is its
        version."""
        tables = {name: {key: table[key].tolist() for key in table} for name, table in self.tables.items()}
        return {
            "schema": SCHEMA, "what": KIND, "sessions": self.sessions, "rows": self.rows,
            "block_size": self.block_size, "tail": self.tail, "duration_ms": self.duration_ms,
            "time_step_ms": self.time_step_ms, "columns": self.columns, "tables": tables,
            "starts": self.starts.tolist(), "bins": {name: self.bins[name].to_dict() for name in BINNED},
            "slow": list(self.slow), "pace": self.pace.to_dict(), **self._checks(),
        }  # fmt: skip

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SessionModel:
        """The model of `to_dict`; ValueError, KeyError or TypeError if the values are not a model."""
        if values["what"] != KIND:
            raise InvalidModelError("not the JSON of a session model")
        if values["schema"] != SCHEMA:
            raise InvalidModelError(f"its schema is not {SCHEMA}, which this version reads")
        model = cls(
            sessions=int(values["sessions"]), rows=int(values["rows"]), block_size=int(values["block_size"]),
            tail=values["tail"], duration_ms=float(values["duration_ms"]), time_step_ms=int(values["time_step_ms"]),
            columns={name: bool(values["columns"][name]) for name in ("agent", "parent", "service")},
            tables={
                name: {key: integers(values["tables"][name][key]) for key in columns}
                for name, columns in TABLES.items()
            },
            starts=integers(values["starts"]),
            bins={name: Bins.from_dict(values["bins"][name]) for name in BINNED},
            slow=_pair(values["slow"]), pace=Pace.from_dict(values["pace"]), **cls._checks_of(values),
        )  # fmt: skip
        model._verify()
        return model

    def _verify(self):
        chains, parts, turns = (self.tables[name] for name in ("chains", "parts", "turns"))
        of_main = chains["kind"] == 0
        is_consistent = (
            0 < self.block_size < MAX_BLOCK_SIZE and self.tail in TAILS and 0 <= self.duration_ms < float("inf")
            and 0 < self.sessions <= self.rows < 1 << 40 and self.time_step_ms in (1, *TIME_STEPS_MS)
            and 0 <= self.slow[1] <= self.slow[0] < 1 << 52 and all(self._is_table(name) for name in TABLES)
            and len(self.starts) == len(chains["kind"]) + 1 and self.starts[0] == 0
            and self.starts[-1] == len(parts["time"]) and (np.diff(self.starts) >= 0).all()
            and (np.diff(self.starts) <= MAX_PARTS).all()
            and of_main.any() and len(self.tables["finals"]["output"])
            and self._has_size(int(np.count_nonzero(of_main)))
            and all((chains["kind"] == kind).any() for kind in np.unique(self.tables["groups"]["kind"]))
            and (self.tables["groups"]["kind"] > 0).all()
            and (len(self.tables["groups"]["kind"]) > 0 or not chains["groups"].any())
            and self._has_turns(of_main, parts, turns)
            and max(int(self.bins[name].high.max(initial=0)) for name in BINNED) < 1 << 52
            and int(self.bins["first"].high.max(initial=0)) <= MAX_LENGTH
            and int(self.bins["turns"].high.max(initial=0)) < 1 << 20
            and int(self.bins["blocks"].high.max(initial=0)) <= MAX_PATH
        )  # fmt: skip
        if not is_consistent:
            raise InvalidModelError("inconsistent values")

    def _has_size(self, mains):
        """Whether the numbers of sessions and requests are those of the records, or of larger tables than these."""
        chains, turns = len(self.tables["chains"]["kind"]), len(self.tables["turns"]["child"])
        return (mains == self.sessions or chains == MAX_CHAINS) and (
            chains + turns == self.rows or chains == MAX_CHAINS or turns == MAX_TURNS
        )

    def _has_turns(self, of_main, parts, turns):
        """Whether each chain with further turns has parts, and the pool has turns for them."""
        chains, count = self.tables["chains"], np.diff(self.starts)
        more = self.bins["turns"].high[chains["turns"]] > 1
        child = np.repeat(~of_main, count)
        return bool(
            (self.bins["turns"].low[chains["turns"]] > 0).all()
            and ((count > 0) == more).all()
            and (~more | (self.bins["turns"].low[chains["turns"]] > count)).all()
            and all(
                ((turns["child"] == kind) & (turns["break"] == 0)).any()
                for kind in (0, 1)
                if (more & (of_main == (kind == 0))).any()
            )
            and all(
                ((turns["child"] == kind) & (turns["break"] == 1)).any()
                for kind in (0, 1)
                if parts["breaks"][child == bool(kind)].any()
            )
        )

    def _is_table(self, name):
        table, columns = self.tables[name], TABLES[name]
        lengths = {len(table[key]) for key in columns}
        sizes = {key: len(self.bins[of]) if isinstance(of, str) else of for key, of in columns.items()}
        return len(lengths) == 1 and all(
            not len(table[key]) or 0 <= table[key].min() <= table[key].max() < sizes[key] for key in columns
        )


def _pair(values):
    first, second = integers(values).tolist()
    return first, second


assert CHAINS["kind"] - 1 == ROOT  # type: ignore[operator]
