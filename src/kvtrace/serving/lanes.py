"""A closed loop: lanes that play session trees, as AIPerf's AgentX scenario and Dynamo's replay do.

Its options, the plays of a trace's session trees as arrays for the kernel, and its result: the requests in order of
arrival, the plays, and the window. docs/serving/serving.md states the semantics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from numbers import Integral
from typing import Any, TypedDict

import numpy as np

from .._base.arrays import offsets_of
from .._base.errors import KvtraceError, UsageError, wrong_word
from .._base.results import column
from ..cache.demand import BlockDemand
from ..trace.building import concat
from ..trace.columns import Columns, replace_columns
from ..trace.dependencies import COMPLETION, Dependencies
from ..trace.session_trees import session_trees
from ..trace.trace import Trace
from .instances import CHUNK, InstanceGroup
from .overload import Overload
from .serving_run import ServingRun, served_only

STARTS = ("beginning", "inside")  # where the first tree of each lane starts
NEVER = 1e300  # a time of the kernels that does not come
MAX_WARM_UP = 1_000_000  # requests of all lanes; a run's memory and time grow with them, and with the next three
MAX_LANES, MAX_DURATION_S, MAX_THINK_SCALE = 16_384, 30 * 86_400, 1000


@dataclass(frozen=True)
class ClosedLoop:
    """Requests arrive when what they wait for has arrived or ended, plus their delay; `lanes` session trees run.

    A lane takes the next tree when all requests of its tree have ended. Without a duration each tree is played once.
    With one, trees are taken in turn until it is over; a tree that is played again has block ids of its own.

    >>> ClosedLoop(lanes=8, duration_s=1800, warm_up=10, start="inside", idle_cap_s=10).lanes
    8
    """

    lanes: int = 1  # session trees that run at once
    duration_s: float | None = None  # of the window; later no request arrives. None: until all trees have ended
    warm_up: int = 0  # requests of each lane before the window opens
    start: str = "beginning"  # of the first tree of each lane: "beginning", or "inside" at a random moment
    start_range: tuple[float, float] = (0.25, 0.75)  # of that moment: shares of the tree's recorded time
    think_scale: float = 1.0  # factor of all delays
    idle_cap_s: float | None = None  # the longest time without any request outstanding
    tree_idle_cap_s: float | None = None  # the longest time without a request of a tree outstanding
    seed: int = 0  # of the moments inside

    def __post_init__(self) -> None:
        for name, number in (("lanes", self.lanes), ("warm-up", self.warm_up), ("seed", self.seed)):
            if not isinstance(number, Integral):
                raise UsageError(f"--{name} must be a whole number, not {number!r}.")
        if not 1 <= self.lanes <= MAX_LANES:
            raise UsageError(f"--lanes must be from 1 to {MAX_LANES:,}.")
        if self.warm_up < 0:
            raise UsageError("--warm-up must be at least 0 requests of each lane.")
        if self.warm_up * self.lanes > MAX_WARM_UP:
            raise UsageError(f"--warm-up must be at most {MAX_WARM_UP // self.lanes:,} requests of each lane.")
        if self.start not in STARTS:
            raise wrong_word(self.start, "a start of a closed loop", STARTS)
        if len(self.start_range) != 2 or not 0 <= self.start_range[0] <= self.start_range[1] <= 1:
            raise UsageError("--start-inside takes two shares from 0 to 1, the smaller one first. Try 25%-75%.")
        if not 0 <= self.think_scale <= MAX_THINK_SCALE:
            raise UsageError(f"--think-scale must be from 0 to {MAX_THINK_SCALE:,}.")
        for name, seconds in (("duration", self.duration_s), ("idle-cap", self.idle_cap_s),
                              ("tree-idle-cap", self.tree_idle_cap_s)):  # fmt: skip
            if seconds is not None and not (seconds > 0 and isfinite(seconds)):
                raise UsageError(f"--{name} must be longer than 0 s.")
        if self.duration_s is not None and self.duration_s > MAX_DURATION_S:
            raise UsageError("--duration must be at most 30 days.")


def require_dependencies(trace: Columns) -> None:
    """UsageError for a trace that cannot run in a closed loop."""
    if trace.dependencies is None or not len(trace.dependencies.row):
        raise UsageError(
            "The trace has no dependencies: it does not state what each request waits for, so it cannot run in a "
            "closed loop. Use a trace of agent sessions, or simulate it in the open loop."
        )


@dataclass(frozen=True, eq=False)
class PlayedTrace:
    """A trace as often as its trees can be played, and who waits for whom; rows are those of the longer trace."""

    trace: Trace
    row: np.ndarray  # row -> row of the trace that was given
    tree: np.ndarray  # play -> its tree
    arrays: dict[str, np.ndarray]  # of the kernel
    primers: np.ndarray  # rows that prepare the caches, with one output token
    primer_lane: np.ndarray
    unit_ms: float = 1000  # of the times in `arrays`


def played_trace(trace: Trace, loop: ClosedLoop, laps: int = 1, unit_ms: float = 1000) -> PlayedTrace:
    """The plays of all trees, `laps` times one after another; each lap has blocks of its own.

    The kernel counts its times in units of `unit_ms`.

    Raises:
        UsageError: The trace has no dependencies, or fewer trees than there are lanes.
    """
    require_dependencies(trace)
    tree = session_trees(trace)
    trees = int(tree.max()) + 1
    if loop.lanes > trees * laps:
        raise UsageError(
            f"--lanes {loop.lanes:,} needs {loop.lanes:,} sessions; the trace has {trees:,}. Try --lanes {trees}, or a "
            "--duration: then sessions are played again."
        )
    rows = len(trace)
    recorded = np.tile(trace.timestamp, laps)
    play = (tree + trees * np.arange(laps)[:, None]).ravel()
    begin = np.full(trees * laps, np.inf)
    np.minimum.at(begin, play, recorded)
    if laps > 1:
        trace = concat([trace] * laps)
    primers, lanes = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    if loop.start == "inside":
        begin, play, primers, lanes = _cut(trace, loop, recorded, play, begin)
        output = trace.output_length.copy()
        output[primers] = 1
        columns = replace_columns(trace, output_length=output, output_ids=None, output_offsets=None)
        trace = Trace.from_columns(columns, block_size=trace.block_size, tail=trace.tail)
    arrays = _arrays(trace, loop, play, recorded - begin[np.maximum(play, 0)], trees * laps, unit_ms)
    tree = np.tile(np.arange(trees), laps)
    return PlayedTrace(trace, np.tile(np.arange(rows), laps), tree, arrays, primers, lanes, unit_ms)


def _cut(trace: Trace, loop: ClosedLoop, recorded: np.ndarray, play: np.ndarray, begin: np.ndarray):
    """Cut the first tree of each lane at a random moment: where each play begins, its rows, and the primers.

    The last request of each agent before that moment is a primer, if the agent has later ones.
    """
    last = np.zeros(len(begin))
    np.maximum.at(last, play, recorded)
    share = np.zeros(len(begin))
    share[: loop.lanes] = np.random.default_rng(loop.seed).uniform(*loop.start_range, loop.lanes)
    begin = begin + share * (last - begin)
    late = recorded >= begin[play]
    agent = trace.extra.get("agent", np.zeros(len(trace), dtype=np.int64))
    order = np.lexsort((recorded, agent, play))  # the requests of an agent one after another
    follows = (play[order][1:] == play[order][:-1]) & (agent[order][1:] == agent[order][:-1])
    crosses = follows & late[order][1:] & ~late[order][:-1]
    primers = np.sort(order[:-1][crosses])
    lanes = play[primers]
    return begin, np.where(late, play, -1), primers, lanes


def _arrays(
    trace: Trace, loop: ClosedLoop, play: np.ndarray, after_ms: np.ndarray, plays: int, unit_ms: float
) -> dict[str, Any]:
    """The arrays of the kernel (core/instance.py)."""
    scale = loop.think_scale / unit_ms
    waits = trace.dependencies
    assert waits is not None
    request = waits.request
    kept = (play[request] >= 0) & (play[waits.row] >= 0)
    order = np.flatnonzero(kept)[np.argsort(waits.row[kept], kind="stable")]
    played = np.flatnonzero(play >= 0)
    return {
        "first": offsets_of(np.bincount(play[played], minlength=plays)),
        "rows": played[np.argsort(play[played], kind="stable")].astype(np.int32),
        "play": play.astype(np.int32),
        "offset": after_ms * scale,
        "waits": np.bincount(request[kept], minlength=len(play)),
        "start": offsets_of(np.bincount(waits.row[kept], minlength=len(play))),
        "waiting": request[order].astype(np.int32),
        "trigger": waits.trigger[order],
        "delay": waits.delay_ms[order] * scale,
        "lead": _leads(waits, kept, loop, len(play), unit_ms),
    }


def _leads(waits: Dependencies, kept: np.ndarray, loop: ClosedLoop, rows: int, unit_ms: float) -> np.ndarray:
    """Row -> the least time from its end to an arrival that it can cause; 0 if it can be the last of its tree."""
    on_end = kept & (waits.trigger == COMPLETION)
    lead = np.full(rows, np.inf)
    np.minimum.at(lead, waits.row[on_end], waits.delay_ms[on_end] * (loop.think_scale / unit_ms))
    caps = [cap * (1000 / unit_ms) for cap in (loop.idle_cap_s, loop.tree_idle_cap_s) if cap is not None]
    return np.minimum(np.where(np.isinf(lead), 0.0, lead), min(caps, default=np.inf))


ROW_POLICIES = ("workload",)  # policies that read the arrivals of the trace


@dataclass(frozen=True, eq=False)
class Plays:
    """The session trees that lanes have taken, in this order; one value for each play in each array."""

    tree: np.ndarray  # of the trace, numbered by first appearance
    lane: np.ndarray
    begin_s: np.ndarray  # when its lane took it
    end_s: np.ndarray  # when its last request ended; NaN: the run was over before
    requests: np.ndarray  # requests of the play
    served: np.ndarray  # those of them that have ended, or were rejected

    def __len__(self) -> int:
        return len(self.tree)


class LoopDict(TypedDict):
    """What `ClosedRun.to_dict` says of the loop; docs/serving/serving.md explains the keys."""

    lanes: int
    duration_s: float | None
    warm_up: int
    start: str
    start_range: list[float]
    think_scale: float
    idle_cap_s: float | None
    tree_idle_cap_s: float | None
    seed: int
    trees: int
    plays: int
    primers: int
    window_s: float
    sessions_completed: int
    sessions_per_hour: float
    progress: float
    idle_skipped_s: float


@dataclass(frozen=True, eq=False, repr=False)
class ClosedRun(ServingRun):
    """The requests of a closed loop in order of arrival. `trace` has them with the arrivals that the loop gave them.

    The first `warm_up` requests arrived before the window opened; counts and times leave them out.
    """

    row: np.ndarray = None  # type: ignore[assignment]  # request -> its row in the trace that was given
    play: np.ndarray = None  # type: ignore[assignment]  # request -> its play, -1 = a primer
    arrival_s: np.ndarray = None  # type: ignore[assignment]
    completed: np.ndarray = None  # type: ignore[assignment]  # requests in the order in which they ended
    plays: Plays = None  # type: ignore[assignment]
    loop: ClosedLoop = None  # type: ignore[assignment]
    trees: int = 0
    window: tuple[float, float] = (0.0, 0.0)  # seconds; requests that arrive in it count
    idle_skipped_s: float = 0.0  # time without a request that the caps left out

    def _headline(self) -> str:
        return f"{super()._headline()}, lanes={self.loop.lanes}, sessions_completed={self.sessions_completed}"

    @property
    def counted(self) -> slice:
        """The requests of the window."""
        return slice(self.warm_up, None)

    @property
    def overload(self) -> Overload | None:
        """None: a lane waits for its requests, so that the load is never more than what is served."""
        return None

    @property
    def queued_s(self) -> np.ndarray:
        """Time from arrival to admission, of the requests of the window that were served."""
        return served_only((self.started_s - self.arrival_s)[self.counted])

    @property
    def ttft_s(self) -> np.ndarray:
        """Time to first token, from arrival, of the requests of the window that were served."""
        return served_only((self.first_s - self.arrival_s)[self.counted])

    @property
    def tpot_s(self) -> np.ndarray:
        """Time per output token after the first, of the served requests of the window with two or more."""
        later = np.maximum(self.trace.output_length - 1, 1)
        tpot = np.where(self.trace.output_length > 1, (self.ended_s - self.first_s) / later, np.nan)
        return served_only(tpot[self.counted])

    @property
    def e2e_s(self) -> np.ndarray:
        """Time from arrival to the last token, of the requests of the window that were served."""
        return served_only((self.ended_s - self.arrival_s)[self.counted])

    @property
    def window_s(self) -> float:
        """The length of the window in seconds."""
        return self.window[1] - self.window[0]

    @property
    def sessions_completed(self) -> int:
        """Plays that ended in the window."""
        begin, end = self.window
        return int(((self.plays.end_s > begin) & (self.plays.end_s <= end)).sum())

    @property
    def progress(self) -> float:
        """Requests that have ended, as a share of the requests of the plays that began."""
        return float(self.plays.served.sum() / max(1, self.plays.requests.sum()))

    @property
    def requests_per_s(self) -> float:
        """Requests that arrived and ended in the window, for each of its seconds."""
        inside = int((self.ended_s[self.counted] <= self.window[1]).sum())
        return inside / self.window_s if self.window_s else 0.0

    @property
    def schedule(self) -> str:
        """Requests are active as the closed loop has them."""
        return "closed-loop"

    @property
    @column(key="loop")
    def _loop(self) -> LoopDict:
        loop, window = self.loop, self.window_s
        return {
            "lanes": loop.lanes, "duration_s": loop.duration_s, "warm_up": loop.warm_up, "start": loop.start,
            "start_range": list(loop.start_range), "think_scale": loop.think_scale, "idle_cap_s": loop.idle_cap_s,
            "tree_idle_cap_s": loop.tree_idle_cap_s, "seed": loop.seed, "trees": self.trees,
            "plays": len(self.plays), "primers": int((self.play < 0).sum()), "window_s": window,
            "sessions_completed": self.sessions_completed,
            "sessions_per_hour": 3600 * self.sessions_completed / window if window else 0.0,
            "progress": self.progress, "idle_skipped_s": self.idle_skipped_s,
        }  # fmt: skip


Results = Callable[[np.ndarray], dict[str, Any]]  # rows -> the fields of a run, in the order of the rows


def run_closed(
    fleet: InstanceGroup,
    trace: Trace,
    loop: ClosedLoop,
    demand: BlockDemand | None,
    on_progress: Callable[[int], None] | None,
) -> ClosedRun:
    """Run a trace in a closed loop. If its trees run out before the duration is over, more laps are tried."""
    if fleet.setting.policy.partition(":")[0] in ROW_POLICIES:
        raise UsageError(
            f"Policy {fleet.setting.policy} reads recorded arrivals, which a closed loop does not have. "
            "Try another --policy."
        )
    if fleet.spans is not None and fleet.front(trace)[0].any():
        raise UsageError(
            "--fleet with --loop closed does not support costs that have the times of API servers. Try the open loop."
        )
    if fleet.shares_tiers:
        raise UsageError("A closed loop does not support a tier that instances share. Use a tier of each rank.")
    return play_laps(
        trace, loop, lambda played: _run(fleet, played, loop, demand if played.trace is trace else None, on_progress)
    )


def play_laps(
    trace: Trace, loop: ClosedLoop, run: Callable[[PlayedTrace], tuple[Results, dict[str, Any]]], *,
    unit_ms: float = 1000, kind: type[ClosedRun] = ClosedRun,
) -> ClosedRun:  # fmt: skip
    """Run a trace as often as its lanes take its trees; `run` returns the fields of rows, and the lanes' outcome."""
    laps = 1
    if loop.duration_s is not None:
        require_dependencies(trace)
        laps = -(-loop.lanes // (int(session_trees(trace).max()) + 1))
    while True:
        played = played_trace(trace, loop, laps, unit_ms)
        results, outcome = run(played)
        if loop.duration_s is None or not outcome["exhausted"]:
            break
        laps *= 2  # a lane found no tree before the end of the duration
    if loop.duration_s is None and outcome["unfinished"]:
        raise KvtraceError("internal error in the simulation: a request of a closed loop never arrives. Please report.")
    return _closed_result(results, played, loop, outcome, kind)


def _run(
    fleet: InstanceGroup, played: PlayedTrace, loop: ClosedLoop, demand, on_progress
) -> tuple[Results, dict[str, Any]]:
    """One run of instances."""
    from .core.serving import ClosedServing

    deployed = fleet.deploy(played.trace, demand)
    compiled = lanes_of(played, loop, deployed.requests, fleet.front(played.trace), several=fleet.count > 1)
    run = ClosedServing(deployed.instances, deployed.router, deployed.requests, fleet.setting.capacity, compiled)
    for engine in deployed.engines:
        engine.context.set_due(compiled.due)
    while not run.over:
        before = run.row
        run.advance(CHUNK)
        if on_progress:
            on_progress(run.row - before)
    run.close()
    return deployed.results, compiled.outcome


def lanes_of(
    played: PlayedTrace, loop: ClosedLoop, requests: Any, front: tuple[np.ndarray, float], *, several: bool
) -> Any:
    """The compiled lanes. Of `several` instances, ends are known out of order."""
    from .core.instance import SessionLanes

    caps = (loop.duration_s, loop.idle_cap_s, loop.tree_idle_cap_s)
    unit_ms = played.unit_ms
    duration, idle_cap, tree_cap = (NEVER if seconds is None else seconds * (1000 / unit_ms) for seconds in caps)
    return SessionLanes(
        requests, played.arrays, loop.lanes, several, (played.primers.tolist(), played.primer_lane.tolist()),
        loop.warm_up, duration, idle_cap, tree_cap, front,
    )  # fmt: skip


def _closed_result(
    results: Results, played: PlayedTrace, loop: ClosedLoop, outcome: dict[str, Any], kind: type[ClosedRun]
) -> ClosedRun:
    """The run of a closed loop, of what its instances and its lanes have found."""
    rows, unit_s = outcome["rows"].astype(np.int64), played.unit_ms / 1000
    fields = results(rows)
    arrival = outcome["sent"][rows] * unit_s
    columns = replace_columns(played.trace, output_ids=None, output_offsets=None).take(rows)
    columns.timestamp = arrival * 1000
    play = played.arrays["play"][rows].astype(np.int64)
    columns.session, columns.service_ms = play, (fields["ended_s"] - arrival) * 1000
    trace = Trace.from_columns(columns, block_size=played.trace.block_size, tail=played.trace.tail)
    count = outcome["plays"]
    gone = ~np.isnan(fields["ended_s"]) | (fields["instance"] < 0)
    served = np.bincount(play[(play >= 0) & gone], minlength=count)
    plays = Plays(
        played.tree[:count], outcome["lane"][:count].copy(), outcome["begins"][:count] * unit_s,
        outcome["ends"][:count] * unit_s, np.diff(played.arrays["first"])[:count], served,
    )  # fmt: skip
    last = float(np.nanmax(fields["ended_s"], initial=0.0))
    begin = outcome["window_start"] * unit_s if outcome["window_start"] >= 0 else last
    end = begin + loop.duration_s if loop.duration_s is not None else last
    opened = outcome["window_start"] >= 0
    place = np.empty(len(played.row), dtype=np.int64)  # row -> its place in order of arrival
    place[rows] = np.arange(len(rows))
    return kind(
        **fields, trace=trace, warm_up=outcome["window_from"] if opened else len(rows), row=played.row[rows], play=play,
        arrival_s=arrival, completed=place[outcome["completed"]], plays=plays, loop=loop,
        trees=int(played.tree.max()) + 1, window=(float(begin), max(float(end), float(begin))),
        idle_skipped_s=float(outcome["idle_s"] + outcome["tree_idle_s"]) * unit_s,
    )  # fmt: skip
