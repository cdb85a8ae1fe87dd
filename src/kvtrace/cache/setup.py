"""What is cached: the options that `simulate`, `explain`, `plan`, `tune` and `sweep` share.

The fields with help are options of commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .._base.options import option

if TYPE_CHECKING:
    from .demand import Mode
    from .engines import CapacityCounts, EngineName, FreeOrder, PoolOrder, Tree, Watermark
    from .layout import CacheLayout
    from .simulation import Setting

CACHE, ENGINE = "Cache", "Engine options"  # groups of --help


@dataclass(frozen=True)
class CacheSetup:
    """What is cached: every engine with every policy at every capacity."""

    capacities: Iterable[int] | Mapping[str, Iterable[int]] | None = None  # blocks; None is ten sizes
    policies: Iterable[str | type] = ("lru",)
    engines: Iterable[EngineName] = ("reference",)
    layouts: Mapping[str, CacheLayout] | None = None  # engine -> the cache groups of a hybrid model
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
    tiers: Mapping[str, int] | None = None  # name -> capacity in blocks, the first tier first, in place of capacities
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

        active, layouts = parse_schedule(self.schedule or schedule or "serial"), self.layouts or {}
        settings = [
            Setting(blocks, name_of(policy), engine, self.mode, active, self.engine_options, layouts.get(engine))
            for engine in self.engines for policy in self.policies for blocks in self._blocks(engine)
        ]  # fmt: skip
        bounded = (replace(each, engine="reference", layout=None) if each.bound else each for each in settings)
        return list(dict.fromkeys(bounded))

    def _blocks(self, engine: EngineName) -> Iterable[int]:
        """The capacities of an engine; tiers have theirs in place of them."""
        if self.tiers is not None:
            return [1]
        assert self.capacities is not None
        return self.capacities[engine] if isinstance(self.capacities, Mapping) else self.capacities
