"""Two traces compared: their distributions and hit curves, with the distances."""

from __future__ import annotations

import numpy as np

from ...analysis.comparison import PreparedTrace, require_comparable, samples_of_both, sessions_of_both
from ...analysis.distribution import WeightedValues, distance
from .hit_rates import POINTS
from .plot import Axis, Panel, Plot, Series, Study, cdf, highest, rate_axis

SHAPE = {  # figures of single requests
    "Input length": ("input_length", "tokens"),
    "Output length": ("output_length", "tokens"),
    "Gap": ("gap_ms", "ms"),
    "Hit tokens": ("hit_tokens", "tokens"),
    "Reuse distance": ("reuse_distance", "tokens"),
}
BEHAVIOUR = {  # figures of request sequences
    "Reuse time": ("reuse_time_ms", "ms"),
    "Turns": ("turns", "requests of a session"),
    "Time to the next turn": ("turn_gap_ms", "ms"),
}
AGENTS = {  # of sessions, where both traces tell
    "Think time": ("think_ms", "ms"),
    "Service time": ("service_ms", "ms"),
    "Context growth": ("growth", "tokens"),
}


def plot(first: Study, second: Study) -> Plot:
    """Hit curves and distributions of two traces; the titles name their Kolmogorov-Smirnov distances.

    >>> from kvtrace.trace.building import toy
    >>> plot(Study(toy("0 1", "0 2"), "a"), Study(toy("0 1", "0 2"), "b")).panels[1].title
    'Input length: distance 0.000'
    """
    both = _samples(first, second)
    panels = [_curves(first, second), *(_panel(name, *SHAPE[name], first, second, *both) for name in SHAPE)]
    explanation = (
        "The distance is the largest vertical gap between two cumulative distributions (Kolmogorov-Smirnov): 0 if they "
        "are equal, 1 if they have no overlap."
    )
    return Plot("The two traces compared", explanation, panels)


def behaviour(first: Study, second: Study) -> Plot | None:
    """Reuse times and sessions of two traces; None if they are equal.

    >>> from kvtrace.trace.building import toy
    >>> behaviour(Study(toy("0", "0 1"), "a"), Study(toy("0", "0 1"), "b")) is None
    True
    """
    a, b = _samples(first, second)
    if not any(_differ(a[key], b[key]) for key, _ in BEHAVIOUR.values()):
        return None
    of_agents = AGENTS if all(key in a for key, _ in AGENTS.values()) else {}
    panels = [_panel(name, *figure, first, second, a, b) for name, figure in (BEHAVIOUR | of_agents).items()]
    explanation = (
        "When blocks are used again, and how sessions continue. Sessions are inferred unless both traces record them."
    )
    return Plot("Reuse and sessions compared", explanation, panels)


def prepared(study: Study) -> PreparedTrace:
    """A study as `compare` takes it, with its hits and its curve."""
    require_comparable(study.trace, study.name)
    return PreparedTrace(study.trace, study.hit_blocks, study.curve)


def _samples(*studies: Study) -> tuple[dict[str, WeightedValues], dict[str, WeightedValues]]:
    """The values of both traces. Reuse distances are in tokens, because the block sizes may differ."""
    first, second = (prepared(study) for study in studies)
    sessions = sessions_of_both(first, second)
    return samples_of_both(first, second, sessions, in_blocks=False)


def _panel(name, key, unit, first, second, a, b):
    gap = _distance(a[key], b[key])
    axis = Axis(f"{name.lower()} ({unit})", log=True, unit=unit)
    title = name if gap is None else f"{name}: distance {gap:.3f}"
    return cdf(title, axis, (first.name, *a[key]), (second.name, *b[key]), why="a trace has no values.")


def _distance(a: WeightedValues, b: WeightedValues) -> float | None:
    """The distance of two samples; None if one has no values."""
    return distance(a, b) if len(a[0]) and len(b[0]) else None


def _differ(a: WeightedValues, b: WeightedValues) -> bool:
    return len(a[0]) > 0 if not len(b[0]) else _distance(a, b) != 0


def _curves(*studies):
    series = []
    for colour, study in enumerate(studies):
        at = np.array(study.curve.capacities(POINTS))
        rates = np.array([hits.token_hit_rate for hits in study.curve.hits(at)])
        series.append(Series(study.name, at * study.trace.block_size, rates, colour))
    y = rate_axis("token hit rate", highest(series))
    return Panel("Hit rate of an LRU cache", Axis("capacity (tokens)", log=True, unit="tokens"), y, series)
