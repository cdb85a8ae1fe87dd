"""The policy laboratory: the setting of each policy that was best on the first half of a trace, measured on the second.

Each setting runs through the whole trace, so the cache is warm at the second half. Hits of the first half select the
setting, hits of the second are the result. LRU and belady there are 0 and 1 of the gap that a policy closes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .._base.errors import InputError, UsageError, wrong_word
from .._base.output_files import temporary_folder
from .._base.results import Described, DescribedResult, column, columns_in, columns_of
from ..trace.domains import in_domains
from ..trace.hits import Hits, count_hits
from ..trace.trace import Trace
from ..trace.unknown import PREFIXES, require_known
from .demand import BlockDemand, block_demand
from .engines import PoolOrder
from .policies import POLICIES, PolicyName, is_users, make, name_of
from .reuse_training import train
from .setup import CacheSetup
from .simulation import Simulation, simulate_settings, whole_blocks
from .structures.reuse_table import ReuseTable

SCHEMA = 1  # version of the keys and values of to_dict
POOLS: tuple[PoolOrder, ...] = ("flat", "leaf-first")
LEARNED = "reuse-density"
LOOKS_AHEAD = ("oracle-session",)


GAP_CLOSED = "share of the gap from lru (0) to belady (1), the best possible eviction order"
RATE_COLUMNS = {name: replace(columns_in(Hits)[name], rank=1) for name in ("block_hit_rate", "token_hit_rate")}


@dataclass(frozen=True)
class TunedPolicy(Described):
    """A policy at a capacity, in a pool: the best of its settings on the first half, and its hits on the second."""

    capacity: int
    policy: str
    pool: str = field(metadata=column("pool", rank=0, place=2))  # "any" for the bounds
    setting: str = field(metadata=column("setting", rank=0, place=1))
    tried: int = field(metadata=column("settings tried", ","))  # settings
    first_half_hit_blocks: int
    gap_closed: float | None = field(  # share of the gap from LRU to belady; None if there is no gap
        metadata=column("gap closed", ".3f", rank=0, place=3, always=True, meaning=GAP_CLOSED)
    )
    hits: Hits = field(metadata=column(spread=RATE_COLUMNS))  # of the second half


@dataclass(frozen=True, repr=False)
class Tuned(DescribedResult):
    """The result of `tune`: the policies in the order of POLICIES for each capacity, and the learned table."""

    _keys = ("requests", "first_half", "skipped", "rows")
    _schema = SCHEMA

    rows: list[TunedPolicy] = field(metadata=column(key="results"))
    requests: int
    first_half: int  # requests that settings were chosen by
    skipped: dict[str, str]  # policy -> why it was not tried
    table: ReuseTable | None = field(default=None, compare=False)  # of reuse-density

    _shown = ("capacity", "policy", "pool", "setting", "block_hit_rate", "gap_closed")

    def _headline(self) -> str:
        best = self.best()
        closed = f", {best.setting} closes {best.gap_closed:.3f} of the gap" if best and best.gap_closed else ""
        return f"{len(self.rows):,} results, {self.requests - self.first_half:,} requests counted{closed}"

    def _columns(self) -> dict[str, list[Any]]:
        return columns_of(row.to_dict() for row in self.rows)

    def best(self) -> TunedPolicy | None:
        """The policy that closes most of a gap, the bounds left out."""
        real = [row for row in self.rows if row.gap_closed is not None and not looks_ahead(row.policy)]
        return max(real, key=lambda row: row.gap_closed or 0.0, default=None)


def tune(
    trace: Trace,
    capacity: int | Iterable[int],
    policies: Iterable[PolicyName] | None = None,
    *,
    pools: Iterable[PoolOrder] = POOLS,
    table: ReuseTable | None = None,
    domains: str | None = None,
    threads: int | None = None,
    on_start: Callable[[int], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Tuned:
    """Find the best setting of each policy on the first half of a trace, and its hits on the second half.

    Args:
        trace: The trace.
        capacity: Blocks, or several capacities.
        policies: Names of policies; the default is all that the trace has what they need for.
        pools: "flat", "leaf-first" or both.
        table: The table of reuse-density; the default is one that is trained on the first half.
        domains: Isolation domains, as in `in_domains`.
        threads: Simulations at once; the default is one per core.
        on_start: Receives the number of requests of all simulations together.
        on_progress: Receives the number of requests served since its last call, from any thread.

    Raises:
        UsageError: A policy is unknown, or the longest request does not fit into a capacity.
        InputError: The trace has fewer than two requests, or its ids do not form a forest.
        UnknownError: Shared prefixes are unknown.

    >>> from kvtrace.trace.building import toy
    >>> tuned = tune(toy(*["0 1", "2", "3", "0 1", "4", "0 1"] * 4, gap_ms=1000), 3, ["slru", "lru"], pools=["flat"])
    >>> [(row.policy, row.setting, row.hits.hit_blocks) for row in tuned.rows]
    [('lru', 'lru', 10), ('slru', 'slru:0.7', 12), ('belady', 'belady', 14), ('unlimited', 'unlimited', 18)]
    """
    trace = in_domains(trace, domains)
    require_known(trace, trace.meta, "the best setting of a policy", PREFIXES)
    if len(trace) < 2:
        raise InputError("tune needs a first and a second half; the trace has fewer than two requests.")
    demand, half = block_demand(trace), len(trace) // 2
    capacities = [whole_blocks(capacity)] if not isinstance(capacity, Iterable) else [*map(whole_blocks, capacity)]
    chosen = _chosen(policies)
    skipped = {name: reason for name in chosen if (reason := _lacking(name, demand))}
    if LEARNED in chosen and LEARNED not in skipped and table is None:
        try:
            table = train(trace, demand, 0, half)
        except InputError as error:
            skipped[LEARNED] = str(error)
    with _specs([name for name in chosen if name not in skipped], table) as specs:
        candidates = [
            (name, pool, CacheSetup([blocks], specs[name], pool=pool).settings())
            for blocks in capacities for name in specs for pool in _pools_of(name, pools)
        ]  # fmt: skip
        if on_start:
            on_start(len(trace) * sum(len(settings) for _, _, settings in candidates))
        tuned = []
        for name, pool, settings in candidates:
            runs = simulate_settings(trace, settings, threads=threads, on_progress=on_progress)
            tuned.append(_best(name, pool, runs, half))
    rows = [_with_gap(row, tuned) for row in tuned]
    return Tuned(rows, len(trace), half, skipped, table if LEARNED in specs else None)


def looks_ahead(policy: str) -> bool:
    """Whether a policy is a bound, which no engine can have."""
    return policy in LOOKS_AHEAD or POLICIES[policy].bound


def _chosen(policies) -> list[str]:
    """The names in the order of POLICIES; LRU and the bounds always belong to them."""
    names = set(POLICIES if policies is None else policies)
    for name in sorted(names - {*POLICIES}, key=str):
        if isinstance(name, type) or (isinstance(name, str) and is_users(name)):
            raise UsageError(
                f"kvtrace tune tries values of kvtrace's own policies, not {name_of(name)}. Compare yours with "
                "kvtrace simulate."
            )
        raise wrong_word(name, "a policy without its parameter", POLICIES)
    return [name for name in POLICIES if name in names or name in ("lru", "belady", "unlimited")]


def _lacking(name: str, demand: BlockDemand) -> str | None:
    """Why a policy cannot run on the trace, or None."""
    from .policies.base import Context

    try:
        make(_settings_of(name)[0], Context(demand.blocks, 1, demand.trace, demand))
    except InputError as error:
        return str(error)
    return None


def _settings_of(name: str) -> list[str]:
    return [f"{name}:{value}" if value else name for value in POLICIES[name].tries] or [name]


@contextmanager
def _specs(names: list[str], table: ReuseTable | None) -> Iterator[dict[str, list[str]]]:
    """Policy -> its settings; that of reuse-density names a file with the table, which goes at the end."""
    with temporary_folder() as folder:
        specs = {name: _settings_of(name) for name in names}
        if table is not None and LEARNED in specs:
            path = Path(folder) / "table.json"
            table.write(path)
            specs[LEARNED] = [f"{LEARNED}:{path}"]
        yield specs


def _pools_of(name: str, pools: Iterable[PoolOrder]) -> list[PoolOrder]:
    return ["flat"] if POLICIES[name].bound else list(dict.fromkeys(pools))


def _best(name: str, pool: PoolOrder, runs: Sequence[Simulation], half: int) -> TunedPolicy:
    """The setting of a policy with most hits in the first half; of equal ones the first."""
    best = max(runs, key=lambda run: int(run.hit_blocks[:half].sum()))
    hits = count_hits(best.trace, best.hit_blocks, slice(half, None))
    shown, setting = "any" if POLICIES[name].bound else pool, LEARNED if name == LEARNED else best.setting.policy
    first_half = int(best.hit_blocks[:half].sum())
    return TunedPolicy(best.capacity, name, shown, setting, len(runs), first_half, None, hits)


def _with_gap(row: TunedPolicy, rows: list[TunedPolicy]) -> TunedPolicy:
    """The row, with the share of the gap from LRU to belady at its capacity."""
    here = {other.policy: other.hits.hit_blocks for other in rows if other.capacity == row.capacity}
    gap = here["belady"] - here["lru"]
    return replace(row, gap_closed=(row.hits.hit_blocks - here["lru"]) / gap if gap > 0 else None)
