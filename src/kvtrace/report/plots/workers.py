"""Prefill and decode workers over time: the requests that wait, run, or send their KV cache, of a disaggregated run."""

from __future__ import annotations

import numpy as np

from ...serving.disaggregated import DisaggregatedRun
from .plot import BINS, Axis, Panel, Plot, Series, time_unit


def workers_plot(run: DisaggregatedRun) -> Plot:
    """The mean number of requests that wait and run on the workers of each kind, and of KV transfers, in windows.

    >>> from kvtrace.cache.simulation import Setting
    >>> from kvtrace.serving.apart import Link, Workers, serve_apart
    >>> from kvtrace.serving.simulation import StepCost
    >>> from kvtrace.trace.building import toy
    >>> half = Workers(StepCost(token_s=0.001), Setting(100, engine="vllm"))
    >>> run = serve_apart(toy("0 1", block_size=16), half, half, link=Link(16e3), bytes_per_token=1e3)
    >>> panel = workers_plot(run).panels[1]
    >>> panel.series[0].name, panel.series[0].y.max().round(6).item()
    ('in flight', 1.0)
    """
    explanation = (
        f"Mean numbers of requests in windows of {_window(run)}. A request waits for a prefill worker from arrival to "
        "admission, and runs there until the prompt is computed. Then it waits for room on a decode worker, its KV "
        "cache is in flight, and it runs until the last token."
    )
    return Plot("Prefill and decode workers over time", explanation, worker_panels(run))


def worker_panels(run: DisaggregatedRun) -> list[Panel]:
    """Prefill workers, KV transfers and decode workers: mean numbers of requests in windows, from their times."""
    kinds = _times(run)
    served = ~np.isnan(run.ended_s)
    if not run.makespan_s:
        return [Panel(title, missing="no request was served.") for title in kinds]
    edges = np.linspace(0, run.makespan_s, BINS + 1)
    unit, ms = time_unit(run.makespan_s * 1000)
    middle = (edges[1:] + edges[:-1]) / 2 * 1000 / ms
    time, count = (
        Axis(f"time ({unit})", limits=(0, 0), unit=unit),
        Axis("requests (mean)", limits=(0, 0), unit="requests"),
    )
    notes = dict(zip(kinds, _notes(run, served), strict=True))
    panels = []
    for title, states in kinds.items():
        series = [
            Series(name, middle, mean_number(begin[served], end[served], edges), colour)
            for colour, (name, (begin, end)) in enumerate(states.items())
        ]
        panels.append(Panel(title, time, count, series, note=notes[title]))
    return panels


def _window(run: DisaggregatedRun) -> str:
    """The length of a window, for people."""
    length_ms = run.makespan_s * 1000 / BINS
    unit, ms = time_unit(length_ms)
    return f"{length_ms / ms:.3g} {unit}"


def _times(run: DisaggregatedRun) -> dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Panel -> state -> when each request enters and leaves it, in seconds; NaN: it is never in that state."""
    arrival_s, is_local = run.trace.timestamp / 1000, np.isnan(run.transfer_begin_s)
    prefill_s, computed_s = np.where(is_local, np.nan, [run.started_s, run.prefilled_s])
    ready_s = np.where(is_local, arrival_s, run.transfer_end_s)  # for the decode worker
    return {
        f"Prefill workers: {run.prefill_workers:,}": {
            "running": (prefill_s, computed_s), "waiting": (np.where(is_local, np.nan, arrival_s), prefill_s),
        },
        "KV transfers": {
            "in flight": (run.transfer_begin_s, run.transfer_end_s),
            "waiting for room": (computed_s, np.fmax(computed_s, run.transfer_begin_s)),
        },
        f"Decode workers: {run.decode_workers:,}": {
            "running": (run.decode_started_s, run.ended_s), "waiting": (ready_s, run.decode_started_s),
        },
    }  # fmt: skip


def _notes(run: DisaggregatedRun, served: np.ndarray) -> tuple[str, str, str]:
    """What the panels do not show."""
    rejected = f"{run.rejected:,} rejected requests are not counted." if run.rejected else ""
    local = int(np.isnan(run.transfer_begin_s[served]).sum())
    preempted = int((run.preemptions[served] > 0).sum())
    decode = [
        f"{local:,} prompts are computed here, without a transfer." if local else "",
        f"{preempted:,} requests are preempted, and run until they end." if preempted else "",
    ]
    return rejected, "", " ".join(filter(None, decode))


def mean_number(begin: np.ndarray, end: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The mean number of open intervals in each window, whose edges rise; an interval with a NaN is left out.

    >>> mean_number(np.array([0.0, 1.0]), np.array([2.0, 4.0]), np.array([0.0, 2.0, 4.0])).tolist()
    [1.5, 1.0]
    """
    timed = ~(np.isnan(begin) | np.isnan(end))
    opened, closed = _elapsed(begin[timed], edges), _elapsed(end[timed], edges)
    return np.maximum(np.diff(opened - closed), 0.0) / np.diff(edges)


def _elapsed(moments: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Edge -> the sum of the times since the moments before it."""
    moments = np.sort(moments)
    before = np.searchsorted(moments, edges)
    return before * edges - np.append(0.0, np.cumsum(moments))[before]
