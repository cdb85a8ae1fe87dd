"""Two traces side by side: the distributions and the hit curve of each, with the distance between them."""

from __future__ import annotations

import numpy as np

from ...reuse import reuse_distances
from .hit_curve import POINTS
from .plot import Axis, Panel, Plot, Series, Study, cdf


def plot(one: Study, other: Study) -> Plot:
    """Hit curves and distributions of two traces; the titles name their Kolmogorov-Smirnov distances.

    >>> from kvtrace.trace import toy
    >>> plot(Study(toy("0 1", "0 2"), "a"), Study(toy("0 1", "0 2"), "b")).panels[1].title
    'Input length: distance 0.000'
    """
    samples = [_samples(study) for study in (one, other)]
    panels = [_curves(one, other)]
    for name, unit in (("Input length", "tokens"), ("Output length", "tokens"), ("Gap", "ms"), ("Hit tokens", "tokens"),
                       ("Reuse distance", "tokens")):  # fmt: skip
        pair = [sample[name] for sample in samples]
        title = f"{name}: distance {distance(*pair):.3f}" if all(len(values) for values, _ in pair) else name
        named = [(study.name, *values) for study, values in zip((one, other), pair, strict=True)]
        panels.append(cdf(title, Axis(f"{name.lower()} ({unit})", log=True), *named, why="a trace has no values."))
    says = (
        "The distance is the greatest vertical gap between two cumulative distributions (Kolmogorov-Smirnov): 0 where "
        "they are equal, 1 where they share nothing."
    )
    return Plot("The two traces compared", says, panels)


def distance(a: tuple, b: tuple) -> float:
    """The Kolmogorov-Smirnov distance of two samples, each values and how many each stands for (None: one).

    >>> distance((np.array([1, 2]), None), (np.array([2, 3]), None))
    0.5
    """
    values = np.unique(np.concatenate([a[0], b[0]]))
    return float(np.abs(_share_up_to(values, *a) - _share_up_to(values, *b)).max())


def _share_up_to(values, sample, counts):
    order = np.argsort(sample, kind="stable")
    weights = np.ones(len(sample)) if counts is None else counts[order]
    reached = np.concatenate([[0], np.cumsum(weights)])
    return reached[np.searchsorted(sample[order], values, side="right")] / reached[-1]


def _samples(study):
    trace = study.trace
    values, counts = reuse_distances(trace, study.curve.found)
    return {
        "Input length": (trace.input_length, None),
        "Output length": (trace.output_length, None),
        "Gap": (np.diff(trace.timestamp), None),
        "Hit tokens": (np.minimum(study.hit_blocks * trace.block_size, trace.input_length), None),
        "Reuse distance": (values * trace.block_size, counts),  # in tokens: the block sizes may differ
    }


def _curves(*studies):
    series = []
    for colour, study in enumerate(studies):
        at = np.array(study.curve.capacities(POINTS))
        rates = np.array([hits.token_hit_rate for hits in study.curve.hits(at)])
        series.append(Series(study.name, at * study.trace.block_size, rates, colour))
    top = max(float(found.y.max()) for found in series)
    y = Axis("token hit rate", percent=True, limits=(0, min(1.0, top * 1.15) or 1.0))
    return Panel("Hit rate of an LRU cache", Axis("capacity (tokens)", log=True), y, series)
