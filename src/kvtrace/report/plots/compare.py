"""Two traces side by side: the distributions and the hit curve of each, with the distance between them."""

from __future__ import annotations

import numpy as np

from ...analysis.comparison import Side, samples, turns_of_both
from ...analysis.distances import Sample, distance
from .hit_curve import POINTS
from .plot import Axis, Panel, Plot, Series, Study, cdf

SHAPE = {  # what each request is like
    "Input length": ("input_length", "tokens"),
    "Output length": ("output_length", "tokens"),
    "Gap": ("gap_ms", "ms"),
    "Hit tokens": ("hit_tokens", "tokens"),
    "Reuse distance": ("reuse_distance", "tokens"),
}
BEHAVIOUR = {  # how they follow each other
    "Reuse time": ("reuse_time_ms", "ms"),
    "Turns": ("turns", "requests of a session"),
    "Time to the next turn": ("think_ms", "ms"),
}


def plot(one: Study, other: Study) -> Plot:
    """Hit curves and distributions of two traces; the titles name their Kolmogorov-Smirnov distances.

    >>> from kvtrace.trace.building import toy
    >>> plot(Study(toy("0 1", "0 2"), "a"), Study(toy("0 1", "0 2"), "b")).panels[1].title
    'Input length: distance 0.000'
    """
    found = _samples(one, other)
    panels = [_curves(one, other), *(_panel(name, *SHAPE[name], one, other, *found) for name in SHAPE)]
    says = (
        "The distance is the greatest vertical gap between two cumulative distributions (Kolmogorov-Smirnov): 0 where "
        "they are equal, 1 where they share nothing."
    )
    return Plot("The two traces compared", says, panels)


def behaviour(one: Study, other: Study) -> Plot | None:
    """Reuse times and conversations of two traces; None where they are equal, which the scores say better.

    >>> from kvtrace.trace.building import toy
    >>> behaviour(Study(toy("0", "0 1"), "a"), Study(toy("0", "0 1"), "b")) is None
    True
    """
    a, b = _samples(one, other)
    if not any(_differ(a[key], b[key]) for key, _ in BEHAVIOUR.values()):
        return None
    panels = [_panel(name, *BEHAVIOUR[name], one, other, a, b) for name in BEHAVIOUR]
    says = "When blocks are wanted again, and how conversations go; sessions are inferred unless both traces have them."
    return Plot("Reuse and conversations compared", says, panels)


def side(study: Study) -> Side:
    """A study as `compare` takes it, with what is known of it."""
    return Side(study.trace, study.hit_blocks, study.curve)


def _samples(*studies: Study) -> tuple[dict[str, Sample], dict[str, Sample]]:
    """The values of both traces, reuse distances in tokens: the block sizes may differ."""
    one, other = (side(study) for study in studies)
    turns = turns_of_both(one, other)
    return samples(one, turns[0], in_blocks=False), samples(other, turns[1], in_blocks=False)


def _panel(name, key, unit, one, other, a, b):
    far = _far(a[key], b[key])
    axis = Axis(f"{name.lower()} ({unit})", log=True)
    title = name if far is None else f"{name}: distance {far:.3f}"
    return cdf(title, axis, (one.name, *a[key]), (other.name, *b[key]), why="a trace has no values.")


def _far(a: Sample, b: Sample) -> float | None:
    """The distance of two samples; None where one has no values."""
    return distance(a, b) if len(a[0]) and len(b[0]) else None


def _differ(a: Sample, b: Sample) -> bool:
    return len(a[0]) > 0 if not len(b[0]) else _far(a, b) != 0


def _curves(*studies):
    series = []
    for colour, study in enumerate(studies):
        at = np.array(study.curve.capacities(POINTS))
        rates = np.array([hits.token_hit_rate for hits in study.curve.hits(at)])
        series.append(Series(study.name, at * study.trace.block_size, rates, colour))
    top = max(float(found.y.max()) for found in series)
    y = Axis("token hit rate", percent=True, limits=(0, min(1.0, top * 1.15) or 1.0))
    return Panel("Hit rate of an LRU cache", Axis("capacity (tokens)", log=True), y, series)
