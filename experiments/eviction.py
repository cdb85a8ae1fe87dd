"""Eviction by frequency against eviction by recency, over K (the report's future work 2).

LFU suits frequent sequences among one-time ones: it keeps blocks that were used often, however long ago. That is also
its weakness, so the same runs are repeated with frequent sequences that change over time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kvtrace._base.errors import UsageError
from kvtrace.analysis.distribution import Distribution
from kvtrace.trace.hits import Hits

from .hit_rate import SCHEMA, SEEDS, count, over_seeds, report_progress, rngs, spread
from .prompts import Mix
from .settings import Progress, Serving

POLICIES = ("lru", "lfu")
IDLE = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)  # the report's K
POOLS = (1, 20)  # frequent sequences that never change; or 20 pools, one after the other


@dataclass(frozen=True)
class Case:
    """The counts of one policy at one K, a run for each seed."""

    policy: str
    idle: int
    pools: int
    runs: tuple[Hits, ...]

    def rate(self, name: str) -> Distribution:
        """One of the three rates over the seeds."""
        return spread(self.runs, name)

    def to_dict(self) -> dict[str, Any]:
        """`policy`, `idle`, `pools`, each rate over the seeds, and `runs`, the counts."""
        return {"policy": self.policy, "idle": self.idle, "pools": self.pools, **over_seeds(self.runs)}


@dataclass(frozen=True)
class Eviction:
    """Hit rates of some policies over K."""

    mix: Mix
    serving: Serving
    seed: int
    cases: tuple[Case, ...]

    def of(self, policy: str, pools: int) -> list[Case]:
        """One policy's cases, K rising."""
        return sorted(
            (case for case in self.cases if (case.policy, case.pools) == (policy, pools)), key=lambda case: case.idle
        )

    @property
    def policies(self) -> list[str]:
        """In the order they were named."""
        return list(dict.fromkeys(case.policy for case in self.cases))

    @property
    def pools(self) -> list[int]:
        """In the order they were named."""
        return list(dict.fromkeys(case.pools for case in self.cases))

    def to_dict(self) -> dict[str, Any]:
        """Keys as experiments/README.md lists them."""
        mix = {name: value for name, value in asdict(self.mix).items() if name != "pools"}
        return {
            "schema": SCHEMA, "experiment": "eviction", "mix": mix, "serving": asdict(self.serving), "seed": self.seed,
            "cases": [case.to_dict() for case in self.cases],
        }  # fmt: skip


def eviction(
    policies: Sequence[str] = POLICIES,
    idle: Sequence[int] = IDLE,
    *,
    pools: Sequence[int] = POOLS,
    mix: Mix | None = None,
    serving: Serving | None = None,
    seeds: int = SEEDS,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> Eviction:
    """Hit rates of each policy (a name of `kvtrace simulate --policy`) at each K; those of `serving` are ignored.

    UsageError for an unknown policy, or one that a live cache cannot use.

    >>> result = eviction(["lru"], [0, 4096], pools=[1], mix=Mix(requests=50, output_length=(1, 9)), seeds=1)
    >>> [case.runs[0].hit_blocks > 0 for case in result.cases]
    [True, True]
    """
    mix, serving = mix or Mix(), serving or Serving()
    wanted = [(policy, some, k) for some in pools for policy in policies for k in idle]
    if not wanted:
        raise UsageError("nothing to compare: name at least one policy and one K.")
    cases = []
    for done, (policy, some, k) in enumerate(wanted):
        report_progress(progress, done, len(wanted), f"{policy}, K = {k:,}")
        setting = replace(serving, policy=policy, idle=k)
        runs = [count(replace(mix, pools=some).draw(rng), setting, mix.longest, rng) for rng in rngs(seed, seeds)]
        cases.append(Case(policy, k, some, tuple(runs)))
    report_progress(progress, len(wanted), len(wanted), "")
    return Eviction(mix, serving, seed, tuple(cases))
