"""Causes over time: the prompt tokens of each window of time by cause, hits at the bottom."""

from __future__ import annotations

import numpy as np

from ...serving.misses.explanation import Explanation
from .causes import not_simulated, parts, title_of
from .plot import NO_DURATION, Axis, Panel, Plot, Series, Study, time_unit

WINDOWS = 60  # at most, so that a bar has a few pixels on a phone
_TIMES = {1000.0: (1, 2, 5, 10, 15, 30), 60_000.0: (1, 2, 5, 10, 15, 30), 3_600_000.0: (1, 2, 3, 6, 12)}
ROUND_MS = (
    *(float(step * 10**power) for power in range(3) for step in (1, 2, 5)),
    *(count * unit for unit, counts in _TIMES.items() for count in counts),
    *(days * 86_400_000.0 for days in (1, 2, 7, 14, 28)),
)  # lengths of windows that people use
TITLES = ("Share of prompt tokens by cause", "Prompt tokens by cause")
EXPLANATION = (
    "When a cache misses, and why: each prompt token has one cause. Only the grey part, first use, is beyond the reach "
    "of every cache."
)


def plot(study: Study) -> Plot:
    """The share and the number of prompt tokens of each cause in each window of time.

    >>> from kvtrace.trace.building import toy
    >>> shown = plot(Study(toy("0 1", "2 3", "0 1", gap_ms=60_000), capacity=2))
    >>> {series.name: series.y[series.y > 0].tolist() for series in shown.panels[1].series}
    {'hit': [], 'evicted': [2], 'first use': [2, 2]}
    """
    explanation = study.explanation
    if explanation is None:
        return Plot("Causes of misses over time", EXPLANATION, [not_simulated(study, title) for title in TITLES])
    return Plot(f"Causes of misses over time, {title_of(explanation)}", EXPLANATION, panels(explanation))


def panels(explanation: Explanation) -> list[Panel]:
    """The share of each cause, and its tokens; both are bars on one another."""
    trace = explanation.simulation.trace
    duration = float(trace.timestamp[-1]) if len(trace) else 0.0
    if not duration:
        return [Panel(title, missing=NO_DURATION) for title in TITLES]
    window_ms, (unit, ms) = round_window(duration), time_unit(duration)
    which = (trace.timestamp // window_ms).astype(np.int64)
    windows = int(which[-1]) + 1
    middle = (np.arange(windows) + 0.5) * window_ms / ms
    total = np.bincount(which, trace.input_length, windows)
    shares, counts = [], []
    for part in parts(explanation):
        tokens = np.bincount(which, part.tokens, windows).astype(np.int64)
        share = np.divide(tokens, total, out=np.zeros(windows), where=total > 0)
        shares.append(Series(part.name, middle, share, part.colour, "stack", opacity=part.opacity))
        counts.append(Series(part.name, middle, tokens, part.colour, "stack", opacity=part.opacity))
    time, length = Axis(f"time ({unit})", limits=(0, 0), unit=unit), named(window_ms)
    share_axis = Axis(f"share of prompt tokens in {length}", percent=True, limits=(0, 1))
    token_axis = Axis(f"prompt tokens in {length}", limits=(0, 0), unit="prompt tokens")
    note = _warm_up_note(explanation.simulation.warm_up)
    return [
        Panel(TITLES[0], time, share_axis, shares, note=note), Panel(TITLES[1], time, token_axis, counts, note=note),
    ]  # fmt: skip


def _warm_up_note(requests: int) -> str:
    return f"The first {requests:,} requests are the warm-up, which totals leave out." if requests else ""


def round_window(duration_ms: float) -> float:
    """The shortest round length of a window of which at most `WINDOWS` cover a duration.

    >>> round_window(3_000_000) / 60_000, round_window(250), round_window(86_400_000 * 7) / 3_600_000
    (1.0, 5.0, 3.0)
    """
    return next((length for length in ROUND_MS if duration_ms < WINDOWS * length), duration_ms / (WINDOWS - 1))


def named(duration_ms: float) -> str:
    """A round duration for people.

    >>> named(300_000), named(20), named(1000), named(86_400_000 * 7)
    ('5 min', '20 ms', '1 s', '7 days')
    """
    units = ((86_400_000.0, "days"), (3_600_000.0, "h"), (60_000.0, "min"), (1000.0, "s"))
    ms, unit = next(((ms, unit) for ms, unit in units if duration_ms >= ms), (1.0, "ms"))
    count = f"{duration_ms / ms:.3g}"
    return "1 day" if (count, unit) == ("1", "days") else f"{count} {unit}"
