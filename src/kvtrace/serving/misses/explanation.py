"""Explain each prompt token of a simulation that was not a hit.

`explain` simulates one setting on a trace. Its result has the causes of all prompt tokens, in total, over time, by
session and by request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypedDict, Unpack

import numpy as np

from ..._base.errors import UsageError
from ..._base.options import record_of
from ..._base.results import Described, PlottedResult, column
from ...analysis.delivered import Delivered, delivered_hits
from ...cache.demand import Mode
from ...cache.engines import EngineName, non_default
from ...cache.layout import CacheLayout, Drafting
from ...cache.setup import CacheSetup
from ...cache.simulation import EngineOptions, Simulation
from ...cache.tiers import Tier
from ...trace.columns import require_trace
from ...trace.domains import MERGE, in_domains
from ...trace.hits import RequestGroups, session_groups, time_windows
from ...trace.trace import Trace
from ...trace.unknown import PREFIXES, require_known
from ..fleet_schedule import FleetSchedule
from ..lanes import ClosedLoop
from ..routers import RouterName
from ..run import Run
from ..run_options import InstanceSetup, TimeSetup
from ..schedulers.base import Scheduler
from ..simulation import DynamoCost, StepCost
from .causes import CAUSES, Causes, causes_of

SCHEMA = 1  # version of the keys and values of to_dict


class CauseGroupDict(TypedDict):
    """The prompt tokens of a group of requests, by cause."""

    requests: int
    tokens: int
    causes: dict[str, int]


class WindowCausesDict(CauseGroupDict):
    """The prompt tokens of one window of time, by cause."""

    start_ms: float


class SessionCausesDict(CauseGroupDict):
    """The prompt tokens of one session, by cause; session -1 has the requests without one."""

    session: int


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(Described, PlottedResult):
    """The causes of the prompt tokens of a simulation. Totals leave out the requests of its warm-up."""

    _keys = ("simulation", "requests", "tokens", "totals", "tiers", "possible_tokens", "delivered")
    _schema = SCHEMA

    simulation: Simulation
    causes: Causes
    trace: Trace  # as it was given, with its isolation domains
    run: Run  # what was simulated
    cures: Any = None  # `Cures`: what would help, as `kvtrace explain` prints it

    def _headline(self) -> str:
        totals = self.totals
        largest = max((name for name in totals if name != "hit"), key=totals.__getitem__)
        shares = [tokens / max(self.tokens, 1) for tokens in (totals["hit"], self.possible_tokens, totals[largest])]
        hit, possible, missed = (f"{share:.4f}" for share in shares)
        return f"{self.tokens:,} prompt tokens, hit={hit}, possible={possible}, largest miss: {largest}={missed}"

    def _columns(self) -> dict[str, np.ndarray]:
        return self.per_request

    @property
    def per_request(self) -> dict[str, np.ndarray]:
        """Columns with a row for each request, as in `kvtrace explain --per-request`: its tokens by cause and tier.

        >>> from kvtrace.trace.building import toy
        >>> from kvtrace.serving.misses.explanation import explain
        >>> explain(toy("0 1", "2 3", "0 1"), 2).per_request["evicted"].tolist()
        [0, 0, 2]
        """
        trace = self.simulation.trace
        columns = {"request": np.arange(len(trace)), "timestamp": trace.timestamp}
        if trace.session is not None:
            columns["session"] = trace.session
        tiers = self.causes.tiers if len(self.causes.tiers) > 1 else {}
        by_tier = {f"hit_{name}": tokens for name, tokens in tiers.items()}
        return columns | {"input_length": trace.input_length} | self.causes.tokens | by_tier

    @property
    def requests(self) -> int:
        """Requests after the warm-up."""
        return max(len(self.simulation.trace) - self.simulation.warm_up, 0)

    @property
    def tokens(self) -> int:
        """Prompt tokens after the warm-up."""
        return int(self.simulation.trace.input_length[self.simulation.warm_up :].sum())

    @property
    @column(key="causes")
    def totals(self) -> dict[str, int]:
        """Cause -> prompt tokens; they add up to `tokens`.

        >>> from kvtrace.trace.building import toy
        >>> from kvtrace.serving.misses.explanation import explain
        >>> {name: tokens for name, tokens in explain(toy("0 1", "2 3", "0 1"), 2).totals.items() if tokens}
        {'evicted': 2, 'first_use': 4}
        """
        return self._sums(slice(self.simulation.warm_up, None))

    @property
    def tiers(self) -> dict[str, int]:
        """Tier -> prompt tokens that hit in it; they add up to the hits."""
        rows = slice(self.simulation.warm_up, None)
        return {name: int(tokens[rows].sum()) for name, tokens in self.causes.tiers.items()}

    @property
    def possible_tokens(self) -> int:
        """Prompt tokens that an earlier request had in its prompt: all but first uses and requests not served."""
        totals = self.totals
        return self.tokens - totals["first_use"] - totals["not_served"]

    @cached_property
    @column(optional=True)
    def delivered(self) -> Delivered | None:
        """What the service delivered, beside the simulated and the possible hits; None without `cached_tokens`."""
        trace = self.simulation.trace
        if trace.cached_tokens is None:
            return None
        return delivered_hits(trace, simulated=self.causes.tokens["hit"], warm_up=self.simulation.warm_up)

    def over_time(self, window_ms: float) -> list[WindowCausesDict]:
        """The causes of each window of `window_ms` milliseconds that has requests.

        Raises:
            UsageError: The window is not longer than 0 ms.

        >>> from kvtrace.trace.building import toy
        >>> from kvtrace.serving.misses.explanation import explain
        >>> [window["causes"]["hit"] for window in explain(toy("0", "0", "0", gap_ms=60), 1).over_time(100)]
        [1, 1]
        """
        windows = time_windows(self.simulation.trace.timestamp, window_ms)
        rows = zip(windows.labels.tolist(), self._grouped(windows), strict=True)
        return [{**row, "start_ms": start} for start, row in rows]

    def by_session(self) -> list[SessionCausesDict]:
        """The causes of each session, in order of its number; one for all requests if the trace has no sessions.

        >>> from kvtrace.trace.building import toy
        >>> from kvtrace.serving.misses.explanation import explain
        >>> [(one["session"], one["tokens"]) for one in explain(toy("0", "0 1"), 2).by_session()]
        [(-1, 3)]
        """
        sessions = session_groups(self.simulation.trace.session, len(self.simulation.trace))
        rows = zip(sessions.labels.tolist(), self._grouped(sessions), strict=True)
        return [{**row, "session": number} for number, row in rows]

    def _sums(self, rows: slice) -> dict[str, int]:
        return {name: int(self.causes.tokens[name][rows].sum()) for name in CAUSES}

    def _grouped(self, groups: RequestGroups) -> list[CauseGroupDict]:
        """Requests, tokens and causes of groups of rows."""
        rows, starts, _ = groups
        if not len(rows):
            return []
        tokens = np.add.reduceat(self.simulation.trace.input_length[rows], starts).tolist()
        sums = {name: np.add.reduceat(self.causes.tokens[name][rows], starts).tolist() for name in CAUSES}
        return [
            {"requests": count, "tokens": tokens[at], "causes": {name: sums[name][at] for name in CAUSES}}
            for at, count in enumerate(np.diff(starts, append=len(rows)).tolist())
        ]


def explain(
    trace: Trace,
    capacity: int | None = None,
    policy: str | type = "lru",
    *,
    engine: EngineName = "reference",
    mode: Mode = "block",
    schedule: str | None = None,
    tiers: Mapping[str, int] | Sequence[Tier] | None = None,
    lower: Sequence[Tier] = (),
    inclusive: bool = False,
    ttl: str | None = None,
    instances: int | None = None,
    router: RouterName | None = None,
    router_seed: int = 0,
    router_options: str | None = None,
    instances_per_host: int | None = None,
    fleet: FleetSchedule | None = None,
    lockstep: bool = False,
    cost: StepCost | DynamoCost | None = None,
    scheduler: Scheduler | None = None,
    loop: ClosedLoop | None = None,
    layout: CacheLayout | None = None,
    drafting: Drafting | None = None,
    domains: str | None = None,
    warm_up: int = 0,
    on_progress: Callable[[int], None] | None = None,
    **engine_options: Unpack[EngineOptions],
) -> Explanation:
    """Simulate a prefix cache on a trace, and give each prompt token exactly one cause.

    Args:
        trace: The trace.
        capacity: Blocks that the cache holds; None with tiers.
        policy, engine, mode, schedule, engine_options: As in `simulate`.
        tiers: Tiers, or name -> capacity in blocks, the first tier first, in place of a capacity.
        lower: With a cost: the tiers of an instance below the first one.
        inclusive: A tier also holds the blocks of the tiers above it.
        ttl: Blocks that were not used for this time expire, such as "5m": the policy ttl.
        instances, router, router_seed, router_options, instances_per_host, fleet, lockstep: Instances behind a router,
            as in `simulate_all`.
        cost, scheduler, loop: Serve the requests in simulated time, as in `open_loop` and `closed_loop`.
        layout: The cache groups of a hybrid model.
        drafting: What a drafter changes in the cache.
        domains: Isolation domains, as in `in_domains`; None keeps those of the trace apart, if it has any.
        warm_up: The first requests, which totals leave out.
        on_progress: Receives the number of requests served since its last call.

    Returns:
        The causes of all prompt tokens: in total, over time, by session and by request.
        https://github.com/kvtrace/kvtrace/blob/main/docs/serving/explain.md
        defines them.

    Raises:
        UsageError: An argument is not valid.
        InputError: The ids do not form a forest.
        UnknownError: Shared prefixes are unknown, or output lengths that the setting needs.

    >>> from kvtrace.trace.building import toy
    >>> explain(toy("0 1", "2 3", "0 1"), 2)
    Explanation(6 prompt tokens, hit=0.0000, possible=0.3333, largest miss: first_use=0.6667)
    """
    require_trace(trace)
    require_known(trace, trace.meta, "why prompt tokens were not hits", PREFIXES)
    non_default(engine_options)  # TypeError for an option that no engine has
    values = {**locals(), **engine_options}
    values |= {
        "capacities": None if capacity is None else [capacity], "policies": (expiring(policy, ttl),),
        "engines": (engine,), "layouts": None if layout is None else {engine: layout},
        "drafting": None if drafting is None else {engine: drafting},
        "routers": None if router is None else (router,), "gap": False,
    }  # fmt: skip
    time = TimeSetup(cost=cost, schedulers=None if scheduler is None else {engine: scheduler})
    run = Run(record_of(CacheSetup, values), record_of(InstanceSetup, values), time, loop)
    return explain_run(trace, run, on_progress)


def expiring(policy: str | type, ttl: str | None) -> str | type:
    """The policy, which is ttl with a time to live; UsageError if it is another one.

    >>> expiring("lru", "5m")
    'ttl:5m'
    """
    if ttl is None:
        return policy
    if policy != "lru":
        raise UsageError(f"ttl is the policy ttl:{ttl}, which cannot be combined with {policy!r}. Leave out one.")
    return f"ttl:{ttl}"


def explain_run(trace: Trace, run: Run, on_progress: Callable[[int], None] | None = None) -> Explanation:
    """Simulate a run of one setting on a trace, and explain the simulation."""
    require_trace(trace)
    require_known(trace, trace.meta, "why prompt tokens were not hits", PREFIXES)
    simulation = simulate_one(trace, run, on_progress)
    return Explanation(simulation, causes_of(simulation, None if run.loop else trace), trace, run)


def simulate_one(trace: Trace, run: Run, on_progress: Callable[[int], None] | None = None) -> Simulation:
    """The simulation of a run of one setting; the trace may have isolation domains.

    Raises:
        UsageError: The options do not fit together.

    >>> from kvtrace.trace.building import toy
    >>> simulate_one(toy("0 1", "2 3", "0 1"), Run(CacheSetup([2]))).hits.hit_blocks
    0
    """
    domains = run.cache.domains
    if (run.cache.capacities is None) == (run.cache.tiers is None):
        raise UsageError("Give either a capacity or tiers.")
    if run.loop is not None and trace.domain is not None and domains != MERGE:
        raise UsageError('explain does not support isolation domains in a closed loop. Try domains="merge".')
    alone = replace(run.changed(domains=None, gap=False), open_too=False)
    (simulation,) = alone.simulate(in_domains(trace, domains), workers=1, on_progress=on_progress).runs
    return simulation
