"""A validation: errors of the statistics, requests one by one, distributions, and the engine over time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...serving.latencies import STATISTICS
from ...serving.validation import LATENCIES, OverTimeDict, Validation
from .plot import MAX_LINEAR_RATIO, Axis, Panel, Plot, Series, cdf, time_unit

MAX_DOTS = 2000  # of a panel; further requests are left out
NAMES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}
MEASURED, SIMULATED, EQUAL = 0, 1, 5  # colours


def plots(validation: Validation) -> dict[str, Plot]:
    """All plots of the page, by name."""
    return {
        "errors": errors(validation), "requests": scatter(validation), "distributions": distributions(validation),
        "over-time": over_time(validation),
    }  # fmt: skip


def overview(validation: Validation) -> Plot:
    """Single requests, and the engine over time: the figure in a notebook and in a file."""
    panels = [*scatter(validation).panels, *over_time(validation).panels]
    return Plot("Simulated against measured", "Dotted: equal times.", panels)


def errors(validation: Validation) -> Plot:
    """The error of each statistic, with the interval of its bootstrap."""
    explanation = (
        "Simulated / measured - 1. Above 0 the simulation is slower than the engine. Bars are intervals of 90 % by a "
        "bootstrap over windows of requests."
    )
    return Plot("Errors of the statistics", explanation, [_errors(validation, name) for name in LATENCIES])


def scatter(validation: Validation) -> Plot:
    """Each request's measured and simulated latencies."""
    explanation = "One dot for each request. On the dotted line, both times are equal."
    return Plot("Single requests", explanation, [_scatter(validation, name) for name in LATENCIES])


def distributions(validation: Validation) -> Plot:
    """The cumulative distributions of the latencies."""
    rows, panels = validation.counted, []
    for name in LATENCIES:
        samples = {"measured": validation.measured, "simulated": validation.simulated}
        parts = [(label, _known(getattr(latencies, name)[rows]), None) for label, latencies in samples.items()]
        why = "no request has two output tokens."
        panels.append(cdf(NAMES[name], Axis(f"{NAMES[name]} (s)", log=True, unit="s"), *parts, why=why))
    return Plot("Distributions", "The share of the requests up to each time, measured and simulated.", panels)


def over_time(validation: Validation) -> Plot:
    """Requests that run and wait, and the use of the KV cache."""
    state = validation.over_time
    unit, ms = time_unit(1000 * state["seconds"][-1])
    moments, x = np.array(state["seconds"]) * 1000 / ms, Axis(f"time ({unit})", limits=(0, 0), unit=unit)
    y = Axis("requests", limits=(0, 0), unit="requests")
    gauges = validation.recording.gauges is not None
    source = "the engine's own gauges" if gauges else "the times of the requests"
    return Plot(
        "The engine over time",
        f"Requests that run and wait, measured by {source}, and the blocks that requests hold.",
        [
            _lines("Running requests", x, y, moments, state["running"], state["simulated_running"]),
            _lines("Waiting requests", x, y, moments, state["waiting"], state["simulated_waiting"]),
            _kv_use(state, x, moments),
        ],
    )


def _kv_use(state: OverTimeDict, x: Axis, moments: np.ndarray) -> Panel:
    """The share of the KV cache in use; blocks, if the size of the cache is not known."""
    use, measured = state["simulated_kv_use"], state["kv_use"]
    if use is None:
        y, note = Axis("blocks in use", limits=(0, 0), unit="blocks"), "The size of the KV cache is not known."
        return _lines("KV use", x, y, moments, None, state["simulated_kv_blocks"], note)
    y = Axis("share of the KV cache", percent=True, limits=(0, 0))
    note = "Simulated; the recording does not have it." if measured is None else ""
    return _lines("KV use", x, y, moments, measured, use, note)


def _errors(validation: Validation, latency: str) -> Panel:
    rows = [error for error in validation.errors if error.latency == latency]
    title = NAMES[latency]
    if not rows:
        return Panel(title, missing="no request has two output tokens.")
    place = np.arange(len(rows), dtype=float)
    ticks = dict(zip(place.tolist(), STATISTICS, strict=True))
    values, low, high = (np.array([getattr(error, name) for error in rows]) for name in ("error", "low", "high"))
    series = [
        Series("error", place, values, SIMULATED, "points", low, high),
        Series("no error", np.array([-0.5, len(rows) - 0.5]), np.zeros(2), EQUAL, "dash"),
    ]
    return Panel(
        title, Axis("statistic", ticks=ticks, limits=(-0.5, len(rows) - 0.5)), Axis("error", percent=True), series
    )


def _scatter(validation: Validation, latency: str) -> Panel:
    """Measured to the right, simulated upwards, on equal axes."""
    rows = validation.counted
    x, y = (getattr(latencies, latency)[rows] for latencies in (validation.measured, validation.simulated))
    has_both = ~(np.isnan(x) | np.isnan(y))
    x, y = x[has_both], y[has_both]
    correlation = validation.rank_correlation[latency]
    title = NAMES[latency] + (f", rank correlation {correlation:.3f}" if correlation is not None else "")
    if not len(x):
        return Panel(title, missing="no request has two output tokens.")
    kept = np.unique(np.linspace(0, len(x) - 1, MAX_DOTS).astype(np.int64)) if len(x) > MAX_DOTS else slice(None)
    low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
    log = low > 0 and high > MAX_LINEAR_RATIO * low
    ends = np.array([low if log else 0.0, high])
    limits = None if log else (0.0, 1.04 * high or 1.0)
    across, up = (
        Axis(f"{word} {NAMES[latency]} (s)", log, limits=limits, unit="s") for word in ("measured", "simulated")
    )
    series = [Series("request", x[kept], y[kept], SIMULATED, "points"), Series("equal", ends, ends, EQUAL, "dash")]
    note = f"{MAX_DOTS:,} of {len(x):,} requests are drawn." if len(x) > MAX_DOTS else ""
    return Panel(title, across, up, series, note=note)


def _lines(
    title: str, x: Axis, y: Axis, moments: np.ndarray, measured: Sequence[float] | None,
    simulated: Sequence[float], note: str = "",
) -> Panel:  # fmt: skip
    series = [] if measured is None else [Series("measured", moments, np.array(measured), MEASURED, "step")]
    series.append(Series("simulated", moments, np.array(simulated), SIMULATED, "step"))
    return Panel(title, x, y, series, note=note)


def _known(values: np.ndarray) -> np.ndarray:
    return values[~np.isnan(values)]
