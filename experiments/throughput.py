"""Figure 2 of Lin's report: items per second against the probability of a frequent sequence, and against length.

An item is a request. The engine is real (engine.py), its model small and random; every point is measured with and
without prefix caching, in turns. Frequent and random prompts are equally long here, so that without caching
the work does not depend on p, and prompt length is the one thing that the second sweep changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from kvtrace._base.errors import UsageError

from . import hit_rate
from .hit_rate import SCHEMA, report_progress
from .measure import Bench, Machine, Pairs, check_repeats, check_vocabulary
from .model import Shape
from .prompts import Mix, repeated
from .reported import LEFT_OPEN, REPORTED
from .settings import Progress, Serving

REPEATS = 5
PROBABILITIES = (0.0, *hit_rate.PROBABILITIES)  # at 0 nothing is shared: what caching costs
LENGTHS = (15, 32, 64, 128, 256, 512, 1024)
AT_LENGTHS = (15, 256)  # the prompts of the sweep over p: the report's, and long ones
AT_PROBABILITIES = (0.5, 0.9)  # of the sweep over length
REQUESTS = 64


def small_mix() -> Mix:
    """The default prompts: few enough that a run takes a second, outputs short enough that prompts matter."""
    return Mix(requests=REQUESTS, frequent=4, output_length=(4, 16), vocabulary=Shape().vocabulary)


@dataclass(frozen=True)
class Spot:
    """The pairs at one probability and prompt length; p is None for the one repeated prompt."""

    p: float | None
    prompt_length: int
    pairs: Pairs

    def to_dict(self) -> dict[str, Any]:
        """`p`, `prompt_length`, and the figures."""
        return {"p": self.p, "prompt_length": self.prompt_length, **self.pairs.to_dict()}


@dataclass(frozen=True)
class Throughput:
    """Items per second with and without prefix caching, over p and over prompt length."""

    mix: Mix
    serving: Serving
    about: dict[str, Any]  # the model and the machine
    seed: int
    spots: tuple[Spot, ...]

    def over_p(self, prompt_length: int) -> list[Spot]:
        """The sweep over p at one prompt length."""
        spots = [spot for spot in self.spots if spot.p is not None and spot.prompt_length == prompt_length]
        return sorted(spots, key=lambda spot: spot.p or 0.0)

    def over_length(self, p: float) -> list[Spot]:
        """The sweep over prompt length at one p."""
        return sorted((spot for spot in self.spots if spot.p == p), key=lambda spot: spot.prompt_length)

    def pays_from_length(self, p: float) -> int | None:
        """The prompt length from which on caching pays at every length tried, at this p; None where it never does."""
        return next((spot.prompt_length for spot in _paying(self.over_length(p))), None)

    def pays_from_p(self, prompt_length: int) -> float | None:
        """The p from which on caching pays at every p tried, at this prompt length; None where it never does."""
        return next((spot.p for spot in _paying(self.over_p(prompt_length))), None)

    @property
    def identical(self) -> list[Spot]:
        """The one repeated prompt, at each of the lengths of the sweep over p."""
        return [spot for spot in self.spots if spot.p is None]

    @property
    def probabilities(self) -> list[float]:
        """The probabilities at which several prompt lengths were measured."""
        every = sorted({spot.p for spot in self.spots if spot.p is not None})
        longest = max((len(self.over_length(p)) for p in every), default=0)
        return [p for p in every if len(self.over_length(p)) == longest > 1]

    @property
    def prompt_lengths(self) -> list[int]:
        """The prompt lengths at which several p were measured."""
        every = sorted({spot.prompt_length for spot in self.spots})
        longest = max((len(self.over_p(length)) for length in every), default=0)
        return [length for length in every if len(self.over_p(length)) == longest > 1]

    def to_dict(self) -> dict[str, Any]:
        """Keys as experiments/README.md lists them."""
        mix = {name: value for name, value in asdict(self.mix).items() if name not in SWEPT}
        return {
            "schema": SCHEMA, "experiment": "throughput", "mix": mix, "serving": asdict(self.serving), **self.about,
            "seed": self.seed, "points": [spot.to_dict() for spot in self.spots],
            "pays_from_length": [{"p": p, "prompt_length": self.pays_from_length(p)} for p in self.probabilities],
            "pays_from_p": [{"prompt_length": at, "p": self.pays_from_p(at)} for at in self.prompt_lengths],
            "reported": dict(REPORTED), "left_open": list(LEFT_OPEN),
        }  # fmt: skip


SWEPT = ("p", "frequent_length", "random_length")


def throughput(
    probabilities: Sequence[float] = PROBABILITIES,
    prompt_lengths: Sequence[int] = LENGTHS,
    *,
    at_lengths: Sequence[int] = AT_LENGTHS,
    at_probabilities: Sequence[float] = AT_PROBABILITIES,
    mix: Mix | None = None,
    serving: Serving | None = None,
    shape: Shape | None = None,
    machine: Machine | None = None,
    repeats: int = REPEATS,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> Throughput:
    """Items per second at each p (with prompts of `at_lengths`) and each prompt length (at `at_probabilities`).

    Also of one identical prompt, at each of `at_lengths`. The mix's own p and prompt lengths are ignored. Each
    repeat runs all points, so that a slow minute of the machine affects all. UsageError without PyTorch.
    """
    mix, serving = mix or small_mix(), serving or Serving()
    wanted: list[tuple[float | None, int]] = sorted(
        {(p, length) for p in probabilities for length in at_lengths}
        | {(p, length) for p in at_probabilities for length in prompt_lengths}
    )
    wanted += [(None, length) for length in at_lengths]
    _check(mix, shape or Shape(), wanted, repeats)
    pairs: dict[tuple[float | None, int], list] = {spot: [] for spot in wanted}
    with Bench(shape, machine).running() as bench:
        for repeat in range(repeats):
            for place, (p, length) in enumerate(wanted):
                doing = f"{length:,} tokens, {'identical' if p is None else f'p = {p:g}'}"
                report_progress(progress, repeat * len(wanted) + place, repeats * len(wanted), doing)
                requests = _requests(mix, p, length, np.random.default_rng(seed + repeat))
                pairs[p, length].append(bench.pair(requests, serving, length + mix.output_length[1], repeat))
        about = bench.to_dict()
    report_progress(progress, repeats * len(wanted), repeats * len(wanted), "")
    spots = tuple(Spot(p, length, Pairs(tuple(runs))) for (p, length), runs in pairs.items())
    return Throughput(mix, serving, about, seed, spots)


def _paying(spots: list[Spot]) -> list[Spot]:
    """The last of the spots, as many as caching pays at without an exception."""
    last = next((place for place in range(len(spots), 0, -1) if spots[place - 1].pairs.pays != "yes"), 0)
    return spots[last:]


def _requests(mix, p, length, rng):
    if p is None:
        return repeated(length, mix.requests, mix.output_length, rng, mix.vocabulary)
    return replace(mix, p=p, frequent_length=(length, length), random_length=length).draw(rng)


def _check(mix, shape, wanted, repeats):
    check_repeats(repeats)
    check_vocabulary(mix.vocabulary, shape)
    if not wanted:
        raise UsageError("nothing to measure: name at least one probability and one prompt length.")
