"""Figure 1 of Lin's report: hit rate against the probability of a frequent sequence.

A hit is counted once, when a prompt is admitted, as the report says. Its hash table looks blocks up, so its rate is
most likely our block hit rate: hit blocks / prompt blocks, partial ones among both. All three rates are given.
No model runs: tokens of outputs are random, and appended one by one, as an engine would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from kvtrace._base.errors import UsageError
from kvtrace.analysis.distribution import Distribution
from kvtrace.trace.hits import Hits

from .fit import Fit
from .prompts import Mix, Request
from .reported import LEFT_OPEN, REPORTED
from .serving import Live, ServingRun, serve
from .settings import Progress, Serving

SCHEMA = 1  # version of the keys of to_dict
RATES = ("block_hit_rate", "token_hit_rate", "request_hit_rate")
PROBABILITIES = tuple(step / 10 for step in range(1, 11))
SEEDS = 5


@dataclass(frozen=True)
class Point:
    """The counts at one probability, a run for each seed."""

    p: float
    runs: tuple[Hits, ...]

    def rate(self, name: str) -> Distribution:
        """One of the three rates over the seeds."""
        return spread(self.runs, name)

    def to_dict(self) -> dict[str, Any]:
        """`p`, each rate over the seeds, and `runs`, the counts."""
        return {"p": self.p, **over_seeds(self.runs)}


@dataclass(frozen=True)
class HitRates:
    """Hit rate against probability, and the line through each rate's means."""

    mix: Mix
    serving: Serving
    seed: int
    points: tuple[Point, ...]

    def fit(self, name: str = "block_hit_rate") -> Fit:
        """The line through the means of one rate."""
        return Fit.of([point.p for point in self.points], [point.rate(name).mean for point in self.points])

    def to_dict(self) -> dict[str, Any]:
        """Keys as experiments/README.md lists them."""
        mix = {name: value for name, value in asdict(self.mix).items() if name != "p"}
        return {
            "schema": SCHEMA, "experiment": "hit-rate", "mix": mix, "serving": asdict(self.serving), "seed": self.seed,
            "points": [point.to_dict() for point in self.points],
            "fit": {name: self.fit(name).to_dict() for name in RATES},
            "reported": dict(REPORTED), "left_open": list(LEFT_OPEN),
        }  # fmt: skip


def hit_rate(
    probabilities: Sequence[float] = PROBABILITIES,
    *,
    mix: Mix | None = None,
    serving: Serving | None = None,
    seeds: int = SEEDS,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> HitRates:
    """Hit rates of the report's prompts, for each probability and seed; `mix.p` is ignored.

    Seeds are `seed` ... `seed + seeds - 1`; a seed's prompts differ between probabilities only in which are frequent.

    >>> result = hit_rate([0.0, 1.0], mix=Mix(requests=50, output_length=(1, 9)), seeds=2)
    >>> [point.rate("block_hit_rate").max for point in result.points]
    [0.0, 0.695]
    """
    mix, serving = mix or Mix(), serving or Serving()
    if not len(probabilities):
        raise UsageError("--p names no probability. Example: 0.1,0.5,1.")
    points = []
    for done, p in enumerate(probabilities):
        report_progress(progress, done, len(probabilities), f"p = {p:g}")
        runs = [count(replace(mix, p=p).draw(rng), serving, mix.longest, rng) for rng in rngs(seed, seeds)]
        points.append(Point(p, tuple(runs)))
    report_progress(progress, len(points), len(points), "")
    return HitRates(mix, serving, seed, tuple(points))


def count(requests: list[Request], serving: Serving, longest: int, rng: np.random.Generator) -> Hits:
    """The hits of one run in an empty cache, outputs random."""
    return run(requests, serving, longest, rng).hits(serving.block_size)


def run(requests: list[Request], serving: Serving, longest: int, rng: np.random.Generator) -> ServingRun:
    """One run in an empty cache, which is checked at its end."""
    cache = serving.cache(longest)
    served = serve(requests, cache, Dice(rng), batch=serving.batch)
    cache.check()
    return served


class Dice:
    """A model that answers with random tokens: no two outputs are alike."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng

    def prefill(self, admitted: list[Live]) -> list[int]:
        """As many tokens."""
        return self.decode(admitted)

    def decode(self, live: list[Live]) -> list[int]:
        """As many tokens."""
        return self.rng.integers(1 << 31, size=len(live)).tolist()


def rngs(seed: int, seeds: int) -> Iterable[np.random.Generator]:
    """A source of randomness for each seed."""
    if seeds < 1:
        raise UsageError(f"seeds is {seeds}; it must be at least 1.")
    return (np.random.default_rng(one) for one in range(seed, seed + seeds))


def spread(runs: Sequence[Hits], name: str) -> Distribution:
    """A rate over several runs."""
    return Distribution.of(np.array([getattr(hits, name) for hits in runs]))


def over_seeds(runs: Sequence[Hits]) -> dict[str, Any]:
    """Each rate over the seeds, and the counts of each run."""
    return {name: spread(runs, name).to_dict() for name in RATES} | {"runs": [hits.to_dict() for hits in runs]}


def report_progress(progress: Callable[[Progress], None] | None, done: int, total: int, doing: str) -> None:
    """Call the progress callback, if any."""
    if progress is not None:
        progress(Progress(done, total, doing))
