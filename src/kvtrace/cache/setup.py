"""What is cached: the setup of a run, and the grid of setups of a sweep.

The fields with help are options of commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .._base.errors import UsageError
from .._base.options import option
from .._base.units import names, require_lists

if TYPE_CHECKING:
    from .demand import Mode
    from .engines import CapacityCounts, EngineName, FreeOrder, HicacheWritePolicy, PoolOrder, Tree, Watermark
    from .layout import CacheLayout, Drafting
    from .simulation import Setting
    from .tiers import Tier

CACHE, ENGINE, INPUT = "Cache", "Engine options", "Input"  # groups of --help
AXES = ("engines", "modes", "schedules", "policies")  # of a grid, beside capacities, block sizes and seeds


@dataclass(frozen=True)
class CacheSetup:
    """What is cached: every engine with every policy at every capacity."""

    capacities: Iterable[int] | Mapping[str, Iterable[int]] | None = None  # blocks; None is ten sizes
    policies: Iterable[str | type] = ("lru",)
    engines: Iterable[EngineName] = ("reference",)
    layouts: Mapping[str, CacheLayout] | None = None  # engine -> the cache groups of a hybrid model
    drafting: Mapping[str, Drafting] | None = None  # engine -> what a drafter changes, as `engines.drafting` has it
    mode: Mode = option(
        "block",
        "What is cached. block: each id counts as a full block. token: true lengths of prompts. grow: outputs too.",
        metavar="M", group=CACHE,
    )  # fmt: skip
    schedule: str | None = option(
        None,
        "Requests that are active together: serial is one at a time, concurrency:N is N at a time, open-loop:MS "
        "starts them at their times and takes MS ms per output token.  "
        "[default: serial; with --instances open-loop:30]",
        metavar="S", group=CACHE,
    )  # fmt: skip
    capacity_counts: CapacityCounts = option(
        "total",
        "Blocks that count: total is active and idle blocks, idle is idle blocks only. (reference)",
        metavar="WHAT", group=ENGINE,
    )  # fmt: skip
    pool: PoolOrder = option(
        "flat",
        "Blocks that can be evicted: flat is any idle block, leaf-first is idle blocks without a resident child. "
        "(reference)",
        metavar="WHICH", group=ENGINE,
    )  # fmt: skip
    free_order: FreeOrder = option(
        "prepend",
        "Position of freed unhashed blocks in the free queue: prepend, or append as before May 2026. (vllm)",
        metavar="HOW", group=ENGINE,
    )  # fmt: skip
    tree: Tree = option(
        "unified",
        "Tree of the cache: unified, or radix as in earlier versions. (sglang)",
        metavar="WHICH", group=ENGINE,
    )  # fmt: skip
    watermark: Watermark = option(
        "off", "on: evict a fifth of the blocks at 80 % use. (lmcache)", metavar="HOW", group=ENGINE
    )
    hicache_write_policy: HicacheWritePolicy = option(
        "write_through",
        "When the second of --tiers gets a copy: write_through is at once, write_through_selective is at the second "
        "request, write_back is at eviction. (sglang)",
        metavar="HOW", group=ENGINE,
    )  # fmt: skip
    tiers: Mapping[str, int] | Sequence[Tier] | None = None  # the first one first, in place of capacities
    inclusive: bool = option(
        False, "A tier also holds the blocks of the tiers above it.  [default: exclusive]", group=CACHE
    )
    gap: bool = True  # also simulate the offline optimum, for caches of one tier on one instance
    warm_up: int = 0  # the first requests, which `hits` leaves out
    domains: str | None = None  # the view of the trace's isolation domains, as in `in_domains`

    @property
    def engine_options(self) -> tuple[tuple[str, str], ...]:
        """The engine options that differ from their defaults."""
        from .engines import DEFAULTS, non_default

        return non_default({name: getattr(self, name) for name in DEFAULTS})

    def settings(self, schedule: str | None = None) -> list[Setting]:
        """Every engine with every policy at every capacity. An upper bound has no engine: it comes once per capacity.

        >>> [(setting.policy, setting.capacity) for setting in CacheSetup([1, 2], ["lru", "belady"]).settings()]
        [('lru', 1), ('lru', 2), ('belady', 1), ('belady', 2)]
        """
        from .demand import parse_schedule
        from .policies import name_of
        from .simulation import Setting

        active = parse_schedule(self.schedule or schedule or "serial")
        layouts, drafting = self.layouts or {}, self.drafting or {}
        settings = [
            Setting(
                blocks, name_of(policy), engine, self.mode, active, self.engine_options, layouts.get(engine),
                drafting.get(engine),
            )
            for engine in self.engines for policy in self.policies for blocks in self._blocks(engine)
        ]  # fmt: skip
        bounded = (
            replace(each, engine="reference", layout=None, drafting=None) if each.bound else each for each in settings
        )
        return list(dict.fromkeys(bounded))

    def _blocks(self, engine: EngineName) -> Iterable[int]:
        """The capacities of an engine; tiers have theirs in place of them."""
        if self.tiers is not None:
            return [1]
        assert self.capacities is not None
        return self.capacities[engine] if isinstance(self.capacities, Mapping) else self.capacities


def parse_names(text: str) -> tuple[str, ...]:
    """The names of a list with commas."""
    return tuple(names(text))


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse a list of seeds, and ranges of them; UsageError if it is not one.

    >>> parse_seeds("7,0:3")
    (7, 0, 1, 2)
    """
    seeds: list[int] = []
    for part in names(text):
        ends = part.split(":")
        numbers = [int(end) for end in ends if end.isdecimal() and len(end) < 10]
        if len(ends) > 2 or len(numbers) != len(ends) or numbers[-1] - numbers[0] > 10**6:
            raise UsageError(f"{part!r} is not a seed. Example: 0,1,2 or 0:3.")
        seeds += range(*numbers) if len(numbers) == 2 else numbers
    if not seeds:
        raise UsageError(f"{text!r} has no seeds. Example: 0,1,2 or 0:3.")
    return tuple(dict.fromkeys(seeds))


@dataclass(frozen=True)
class Grid:
    """The values of each axis of a sweep, then what all cells share;
    https://github.com/kvtrace/kvtrace/blob/main/docs/cache/sweep.md lists the values."""

    traces: tuple[str, ...]  # trace files, or model files from which samples are drawn
    policies: tuple[str, ...] = option(
        ("lru",), "Eviction orders and bounds, as in simulate. With belady, each row has its gap to it.",
        name="policy", metavar="P,...", group=CACHE, shown="lru", parse=parse_names,
    )  # fmt: skip
    capacity: str = option(  # shares depend on the trace
        "auto",
        "Capacities, as in simulate. auto: ten for each trace, from its longest request to its working set.",
        metavar="C,...", group=CACHE,
    )  # fmt: skip
    engines: tuple[EngineName, ...] = option(
        ("reference",), "Engines, as in simulate.", name="engine", metavar="E,...", group=CACHE, shown="reference",
        parse=parse_names,
    )  # fmt: skip
    modes: tuple[Mode, ...] = option(
        ("block",), "What is cached: block, token or grow, as in simulate.", name="mode", metavar="M,...", group=CACHE,
        shown="block", parse=parse_names,
    )  # fmt: skip
    schedules: tuple[str, ...] = option(
        ("serial",),
        "Requests that are active together: serial, concurrency:N, open-loop:MS, as in simulate.",
        name="schedule", metavar="S,...", group=CACHE, shown="serial", parse=parse_names,
    )  # fmt: skip
    block_sizes: tuple[str, ...] = option(
        ("1x",), "Block sizes: factors as in 2x, or tokens (a multiple of the block size of the trace).",
        metavar="B,...", group=CACHE, shown="1x", parse=parse_names,
    )  # fmt: skip
    seeds: tuple[int, ...] = option(
        (0,), "If a TRACE is a fitted model: seeds of its samples; 0:5 is 0,1,2,3,4.", name="seed", metavar="S,...",
        group=INPUT, shown="0", parse=parse_seeds,
    )  # fmt: skip
    requests: int | None = option(
        None, "Requests per sample of a model.  [default: as many as the model was fitted to]", metavar="N", minimum=1,
        group=INPUT,
    )  # fmt: skip
    engine_options: tuple[tuple[str, str], ...] = ()  # for the engines that have them
    warm_up: str = "0"
    kv_bytes_per_token: int | None = None
    block_size: int | None = option(
        None, "Tokens per block of the TRACEs.  [default: from their sidecars, else inferred]", metavar="TOKENS",
        minimum=1, group=INPUT, aliases=("--trace-block-size",),
    )  # fmt: skip
    chain: bool = False

    def __post_init__(self) -> None:
        require_lists(traces=self.traces, **{name: getattr(self, name) for name in (*AXES, "block_sizes", "seeds")})
        from .policies import name_of

        object.__setattr__(self, "policies", tuple(map(name_of, self.policies)))  # of classes, too
