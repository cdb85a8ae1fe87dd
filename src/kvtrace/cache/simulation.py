"""Run a trace through a prefix cache and count the hits of each request: one setting, or many in threads.

A request matches and pins its leading resident blocks. It allocates the missing blocks, root first; the policy names
the victims that make room. At its end it unpins all its blocks, tail first. docs/cache/simulate.md states the
semantics.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict, Unpack

import numpy as np

from .._base.errors import UsageError
from .._base.results import DescribedResult, PlottedResult, Rows, any_value, column, varies
from .._base.units import MAX_BLOCKS
from .._base.workers import stoppable_threads
from ..formats.lazy import LazyTrace
from ..trace.domains import in_domains
from ..trace.hits import Hits, count_hits, time_windows
from ..trace.trace import Trace
from . import engines
from .demand import SERIAL, BlockDemand, Mode, Schedule, block_demand, parse_schedule
from .engines import CapacityCounts, EngineName, FreeOrder, HicacheWritePolicy, PoolOrder, Tree, Watermark
from .layout import CacheLayout, Drafting
from .policies import POLICIES, PolicyRow, name_of

SCHEMA = 2  # version of the keys and values of to_dict
CHUNK = 1 << 16  # requests between two reports of progress
ROOTS_FIRST = "The flat pool can evict a block before its children, which then cannot hit. Compare --pool leaf-first."
NEXT_UNKNOWN = (
    "With a drafter a block hits only before the same token. A trace does not have the token after a shared prefix, "
    "which counts as different here: the engine's hits lie between these and those without a drafter."
)
ENDED_EARLY = "active requests that ended before their time, to make room"


@dataclass(frozen=True)
class Setting:
    """One cache to simulate: its capacity, eviction policy, engine, mode and schedule."""

    capacity: int  # blocks
    policy: str = "lru"
    engine: EngineName = "reference"
    mode: Mode = "block"
    schedule: Schedule = SERIAL
    engine_options: tuple[tuple[str, str], ...] = ()  # those that differ from engines.DEFAULTS
    layout: CacheLayout | None = None  # the cache groups of the model; None is full attention
    drafting: Drafting | None = None  # what a drafter changes; None is no drafter

    def __post_init__(self) -> None:
        object.__setattr__(self, "capacity", whole_blocks(self.capacity))
        object.__setattr__(self, "policy", name_of(self.policy))
        if self.drafting is not None:
            engines.drafting(self.engine, self.drafting.tokens, self.drafting.rule)

    @property
    def bound(self) -> bool:
        """Whether its policy is an upper bound, which no engine can have."""
        return self.row is not None and self.row.bound

    @property
    def row(self) -> PolicyRow | None:
        """The row of its policy in POLICIES; None for a class of the user's."""
        return POLICIES.get(self.policy.partition(":")[0])

    def capacity_tokens(self, block_size: int) -> int:
        """Tokens that the capacity holds in all layers, with the trace's block size."""
        return int(self.capacity * (self.layout.tokens_per_block if self.layout else block_size))

    @property
    def in_python(self) -> bool:
        """Whether its policy is a class of the user's. It runs in the main thread, which Ctrl-C interrupts."""
        return self.row is None

    @property
    def warning(self) -> str | None:
        """What lowers the hits of this setting, in a sentence or two; None if nothing is known.

        >>> Setting(4, "sieve").warning == ROOTS_FIRST, Setting(4, "lru").warning
        (True, None)
        """
        if self.drafting is not None and self.drafting.needs_next:
            return NEXT_UNKNOWN
        pool = dict(self.engine_options).get("pool", "flat")
        return ROOTS_FIRST if evicts_roots_first(self.engine, self.policy, pool) else None

    @property
    def demand_options(self) -> tuple[Mode, bool, Drafting | None]:
        """The arguments of `block_demand`: the mode, whether a prompt's last token is computed, and a drafter."""
        drafting, layout = self.drafting, self.layout
        if drafting and drafting.rule == "bigram" and layout and any(group.kind == "state" for group in layout.groups):
            drafting = None  # SGLang's tree with states has single tokens as keys
        return self.mode, not self.bound and engines.find(self.engine).recompute_last, drafting


def evicts_roots_first(engine: str, policy: str, pool: str) -> bool:
    """Whether a policy evicts parents before their children, in an engine whose pool lets it.

    >>> evicts_roots_first("reference", "2q:0.25", "flat"), evicts_roots_first("reference", "2q", "leaf-first")
    (True, False)
    """
    row = POLICIES.get(policy.partition(":")[0])
    return row is not None and row.roots_first and engine == "reference" and pool == "flat"


def whole_blocks(capacity: Any) -> int:
    """A capacity in blocks; UsageError if it is text, a fraction, or larger than any cache."""
    try:
        blocks = operator.index(capacity)
    except TypeError:
        raise UsageError(
            f"a capacity is a whole number of blocks, not {capacity!r}. For '50%' see kvtrace.simulate."
        ) from None
    if blocks > MAX_BLOCKS:
        raise UsageError(f"a capacity is at most {MAX_BLOCKS:,} blocks, not {blocks:,}.")
    return blocks


class EngineOptions(TypedDict, total=False):
    """The options of an engine; each engine has its own ones."""

    capacity_counts: CapacityCounts
    pool: PoolOrder
    free_order: FreeOrder
    tree: Tree
    watermark: Watermark
    hicache_write_policy: HicacheWritePolicy


def _not_default(key: str, rows: Rows) -> bool:
    """Whether an engine has an option that differs from its default."""
    return any(row.get(key) not in (None, engines.DEFAULTS[key]) for row in rows)


OPTION_COLUMNS = {name: column(name.replace("_", " "), rank=0, place=5, when=_not_default) for name in engines.DEFAULTS}


class SettingAndHits(DescribedResult, PlottedResult):
    """The values that the result of any cache begins with: its setting, and its hits after the warm-up."""

    _every_field = False

    setting: Setting
    trace: Trace
    hit_blocks: np.ndarray
    warm_up: int

    @property
    @column("engine", rank=0, place=1, when=varies)
    def engine(self) -> str:
        """The engine of the setting."""
        return self.setting.engine

    @property
    @column("policy", rank=0, place=4)
    def policy(self) -> str:
        """The eviction policy of the setting."""
        return self.setting.policy

    @property
    @column("mode", rank=0, place=2, when=varies)
    def mode(self) -> str:
        """The mode of the setting."""
        return self.setting.mode

    @property
    @column("schedule", rank=0, place=3, when=varies)
    def schedule(self) -> str:
        """The requests that are active at once, as `--schedule` has them."""
        return str(self.setting.schedule)

    @property
    @column("capacity", ",", rank=0, place=7)
    def capacity(self) -> int:
        """Blocks that the cache holds."""
        return self.setting.capacity

    @property
    @column()
    def capacity_tokens(self) -> int:
        """Tokens that the cache holds."""
        return self.setting.capacity_tokens(self.trace.block_size)

    @property
    @column(spread=OPTION_COLUMNS)
    def engine_options(self) -> EngineOptions:
        """The options of the engine and their values."""
        names = () if self.setting.bound else tuple(engines.find(self.setting.engine).options)
        values = engines.DEFAULTS | dict(self.setting.engine_options)
        return {name: value for name, value in values.items() if name in names}  # type: ignore[return-value]

    @property
    @column(spread=Hits)
    def hits(self) -> Hits:
        """The counts of the requests after the warm-up."""
        return count_hits(self.trace, self.hit_blocks, slice(self.warm_up, None))


@dataclass(frozen=True, eq=False, repr=False)
class Simulation(SettingAndHits):
    """The result of a cache on a trace: the hit blocks of each request, evictions and early frees."""

    setting: Setting
    trace: Trace
    hit_blocks: np.ndarray  # request -> leading blocks that were resident
    evictions: int = field(  # cached blocks that were evicted
        metadata=column("evictions", ",", rank=2, place=101, verbose=True)
    )
    early_frees: int = field(  # active requests that ended early, to make room
        metadata=column("ended early", ",", rank=2, place=102, verbose=True, when=any_value, meaning=ENDED_EARLY)
    )
    warm_up: int = field(default=0, metadata=column(key="warm_up_requests"))  # the first ones, which `hits` leaves out

    @property
    @column(optional=True)
    def layout(self) -> CacheLayout | None:
        """The cache groups of the model; None for full attention."""
        return self.setting.layout

    @property
    @column(optional=True)
    def drafting(self) -> Drafting | None:
        """What a drafter changes; None without one."""
        return self.setting.drafting

    def _headline(self) -> str:
        setting, hits = self.setting, self.hits
        rates = f"block_hit_rate={hits.block_hit_rate:.4f}, token_hit_rate={hits.token_hit_rate:.4f}"
        cache = f"{setting.engine}, {setting.policy}, {setting.capacity:,} blocks"
        return f"{cache}, {hits.requests:,} requests, {rates}, {self.evictions:,} evictions"

    def _columns(self) -> dict[str, np.ndarray]:
        """One row for each request, as in `kvtrace simulate --per-request`."""
        trace = self.trace
        lengths = {"input_length": trace.input_length, "output_length": trace.output_length}
        blocks = {"blocks": trace.prompt_blocks, "hit_blocks": self.hit_blocks}
        return {"request": np.arange(len(trace)), "timestamp": trace.timestamp} | lengths | blocks

    def over_time(self, window_ms: float) -> list[dict[str, Any]]:
        """The counts of each window of `window_ms` milliseconds that has requests.

        >>> from kvtrace.trace.building import toy
        >>> [window["hit_blocks"] for window in simulate(toy("0", "0", "0", gap_ms=60), 1).over_time(100)]
        [1, 1]
        """
        windows = time_windows(self.trace.timestamp, window_ms)
        stops = [*windows.starts[1:], len(self.trace)]
        return [
            {"start_ms": label, **count_hits(self.trace, self.hit_blocks, slice(start, stop)).to_dict()}
            for label, start, stop in zip(windows.labels.tolist(), windows.starts, stops, strict=True)
        ]


def simulate(
    trace: Trace,
    capacity: int,
    policy: str | type = "lru",
    *,
    engine: EngineName = "reference",
    mode: Mode = "block",
    schedule: str = "serial",
    warm_up: int = 0,
    layout: CacheLayout | None = None,
    drafting: Drafting | None = None,
    domains: str | None = None,
    **engine_options: Unpack[EngineOptions],
) -> Simulation:
    """Run a trace through a prefix cache and count the hits.

    Args:
        trace: The trace.
        capacity: Blocks that the cache holds.
        policy: An eviction policy of https://github.com/kvtrace/kvtrace/blob/main/docs/cache/policies.md, or your own
            as "module:Class" or as the class.
        engine: "reference", or the serving engine whose cache is imitated, such as "vllm"; see
            https://github.com/kvtrace/kvtrace/blob/main/docs/cache/simulate.md.
        mode: Blocks that a request holds: "block", "token" or "grow"; see
            https://github.com/kvtrace/kvtrace/blob/main/docs/cache/simulate.md.
        schedule: Requests that are active at once: "serial", "concurrency:N" or "open-loop:MS".
        warm_up: The first requests, which `hits` leaves out.
        layout: The cache groups of a hybrid model; see
            https://github.com/kvtrace/kvtrace/blob/main/docs/cache/hybrid.md. None is full attention.
        drafting: What a drafter (MTP, EAGLE) changes in the engine's cache; None is no drafter.
        domains: Isolation domains, as in `in_domains`; None keeps those of the trace apart, if it has any.
        capacity_counts: Blocks that the capacity limits: "total" (the default), or "idle" ones only.
        pool: Idle blocks that may be evicted: any ("flat", the default), or those without a resident child
            ("leaf-first").
        free_order: The end of vLLM's free queue that unhashed blocks join: "prepend" (the default) or "append".
        tree: SGLang's "unified" tree (the default), or the "radix" tree of its versions before.
        watermark: "on" evicts a fifth of the blocks once 80 % are in use, as LMCache does; default "off".
        hicache_write_policy: When SGLang copies to host memory, in `simulate_tiers`.

    Returns:
        The hit blocks of each request, evictions and counts.

    Raises:
        UsageError: An argument is not valid, or the longest request does not fit into the capacity.
        InputError: The ids do not form a forest.

    >>> from kvtrace.trace.building import toy
    >>> simulate(toy("0 1 2", "3", "0 1"), capacity=3).hit_blocks.tolist()
    [0, 0, 2]
    """
    trace = in_domains(trace, domains)
    setting = Setting(
        capacity, name_of(policy), engine, mode, parse_schedule(schedule), engines.non_default(engine_options),
        None if layout is None or layout.is_full else layout, drafting,
    )  # fmt: skip
    return replace(run(setting, trace), warm_up=warm_up)


def run(
    setting: Setting, trace: Trace, demand: BlockDemand | None = None, on_progress: Callable[[int], None] | None = None
) -> Simulation:
    """Simulate one setting on a trace.

    Args:
        setting: The setting.
        trace: The trace.
        demand: The block demand of the trace, if it is already known.
        on_progress: Receives the number of requests served since its last call.
    """
    demand = demand or block_demand(trace, *setting.demand_options)
    if runs_by_runs(setting, trace):
        return _optimum(setting, trace, demand, on_progress)
    engine = build(setting, demand)
    advance_all(engine, len(demand), on_progress)
    hit_blocks = engine.hits.astype(np.int64)
    engine.close()
    return Simulation(setting, trace, hit_blocks, engine.evictions, engine.early_frees)


def runs_by_runs(setting: Setting, trace: Trace) -> bool:
    """Whether a setting is the offline optimum, one full block for each id and one request at a time.

    It then needs no engine. A trace that streams its ids keeps the engine, whose memory is bounded in advance.
    """
    serial = setting.schedule.kind == "serial" or dict(setting.engine_options).get("capacity_counts") != "idle"
    return setting.policy == "belady" and setting.mode == "block" and serial and not isinstance(trace, LazyTrace)


def _optimum(setting, trace, demand, on_progress) -> Simulation:
    """The simulation of `runs_by_runs`: every block that does not hit is inserted, and evicted unless it is left."""
    if setting.capacity < 1:
        raise UsageError("--capacity must be at least 1 block.")
    hit_blocks = demand.optimum.hit_blocks(setting.capacity)
    if on_progress:
        on_progress(len(demand))
    misses = int(demand.full.sum(dtype=np.int64) - hit_blocks.sum())
    return Simulation(setting, trace, hit_blocks, max(0, misses - setting.capacity), 0)


def advance_all(run: Any, requests: int, on_progress: Callable[[int], None] | None, chunk: int = CHUNK) -> None:
    """Run all requests of an engine or of several; progress is reported between chunks."""
    while run.row < requests:
        before = run.row
        run.advance(chunk)
        if on_progress:
            on_progress(run.row - before)


def build(setting: Setting, demand: BlockDemand, *, must_hold: bool = True):
    """Build the engine of a setting, ready to run.

    Args:
        setting: The setting.
        demand: The block demand of the trace.
        must_hold: Refuse a capacity below the longest request. Otherwise the caller must reject such requests.

    Raises:
        UsageError: The setting is not valid.
    """
    from .policies.base import Context

    if setting.capacity < 1:
        raise UsageError("--capacity must be at least 1 block.")
    options = dict(setting.engine_options)
    if setting.bound:
        return _upper_bound(setting, demand, options)
    counts_all = options.get("capacity_counts", "total") == "total"
    if must_hold and counts_all and setting.layout is None and not engines.find(setting.engine).any_capacity:
        require_room(setting.capacity, demand)
    context = Context(demand.blocks, setting.capacity, demand.trace, demand)
    engine = engines.build(setting.engine, demand, context, setting.policy, setting.layout, **options)
    engine.schedule(setting.schedule.kind, int(setting.schedule.value), setting.schedule.ends(demand.trace))
    return engine


def _upper_bound(setting, demand, options):
    """The reference engine with a policy that looks ahead; it may evict a block right after its use.

    If the capacity counts active blocks, a cache holds at most that many when a request arrives, so the serial schedule
    bounds every schedule. If it counts idle blocks only, active blocks come on top, and the bound uses the same
    schedule.
    """
    from .policies.base import Context

    capacity = demand.blocks if setting.policy == "unlimited" else setting.capacity
    context = Context(demand.blocks, max(capacity, 1), demand.trace, demand)
    engine = engines.build("reference", demand, context, setting.policy, capacity_counts="idle")
    if options.get("capacity_counts") == "idle":
        engine.schedule(setting.schedule.kind, int(setting.schedule.value), setting.schedule.ends(demand.trace))
    return engine


def require_room(capacity: int, demand: BlockDemand) -> None:
    """Raise UsageError if a capacity that counts active blocks does not hold the longest request."""
    if len(demand) and capacity < demand.max_blocks.max():
        row = int(demand.max_blocks.argmax())
        raise UsageError(
            f"--capacity {capacity} does not hold the longest request: request {row:,} needs "
            f"{int(demand.max_blocks[row]):,} blocks. Try --capacity {int(demand.max_blocks[row])} or more, or "
            "--capacity-counts idle."
        )


def simulate_settings(
    trace: Trace,
    settings: Iterable[Setting],
    *,
    threads: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> list[Simulation]:
    """Simulate each setting; the results are in the order of the settings.

    Compiled policies run in parallel, Python policies one after another in the calling thread, which Ctrl-C interrupts.
    The first error stops the other simulations.

    Args:
        trace: The trace.
        settings: The settings.
        threads: Simulations at once; the default is one per core.
        on_progress: Receives the number of requests served since its last call, from any thread.

    >>> from kvtrace.trace.building import toy
    >>> [result.hits.hit_blocks for result in simulate_settings(toy("0 1", "2", "0 1"), [Setting(2), Setting(3)])]
    [1, 2]
    """
    settings = list(settings)
    demand = {options: block_demand(trace, *options) for options in {setting.demand_options for setting in settings}}
    for setting in settings:
        if runs_by_runs(setting, trace):
            _ = demand[setting.demand_options].optimum  # once, before threads share it
    with stoppable_threads(threads or os.cpu_count(), on_progress) as (pool, served):

        def run_setting(setting: Setting) -> Simulation:
            return run(setting, trace, demand[setting.demand_options], served)

        compiled = {setting: pool.submit(run_setting, setting) for setting in settings if not setting.in_python}
        in_python = {setting: run_setting(setting) for setting in settings if setting.in_python}
        return [in_python[key] if key.in_python else pool.result(compiled[key]) for key in settings]


def optimum_of(setting: Setting) -> Setting:
    """The setting of the offline optimum that bounds another setting."""
    return replace(setting, policy="belady", engine="reference", layout=None, drafting=None)


def gap_to(optimum: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """The hits of the offline optimum, and the gap of a run to it, from the counts of both.

    >>> gap_to({"hit_blocks": 3, "block_hit_rate": 0.75}, {"hit_blocks": 1, "block_hit_rate": 0.25})
    {'belady_hit_blocks': 3, 'gap_to_belady': 0.5}
    """
    gap = optimum["block_hit_rate"] - run["block_hit_rate"]
    return {"belady_hit_blocks": optimum["hit_blocks"], "gap_to_belady": gap}
