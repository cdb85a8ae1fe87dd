"""What a changing fleet costs: the hits and the times of each phase of its schedule."""

from __future__ import annotations

from typing import NotRequired, Protocol, TypedDict

import numpy as np

from ..trace.hits import count_hits
from ..trace.trace import Trace
from .fleet_schedule import FleetSpans
from .quantiles import Quantiles, quantiles_of, served_only


class FleetRun(Protocol):
    """A run of several instances; in time it also has `first_s` and `ended_s`."""

    @property
    def trace(self) -> Trace: ...
    @property
    def hit_blocks(self) -> np.ndarray: ...
    @property
    def instance(self) -> np.ndarray: ...
    @property
    def warm_up(self) -> int: ...
    @property
    def spans(self) -> FleetSpans | None: ...


class FleetPhase(TypedDict):
    """The requests that arrived while the same instances took requests."""

    start_s: float
    instances: int  # that took requests
    requests: int
    blocks: int
    hit_blocks: int
    block_hit_rate: float
    tokens: int
    hit_tokens: int
    token_hit_rate: float
    ttft_s: NotRequired[Quantiles]


class FleetDict(TypedDict):
    """The key `fleet` of a run with a schedule, and of the run without changes beside it."""

    kind: str  # "fixed" or "changing"
    started: int  # instances that the schedule starts
    drained: int  # that it drains
    instance_hours: float  # of all instances, with their start-up
    phases: list[FleetPhase]


def fleet_of(run: FleetRun) -> FleetDict | None:
    """The phases of a run; None without a schedule."""
    spans = run.spans
    if spans is None:
        return None
    return {
        "kind": "changing" if spans.changes else "fixed", "started": len(spans) - spans.first,
        "drained": int(np.isfinite(spans.drains_s).sum()), "instance_hours": instance_hours(run), "phases": phases(run),
    }  # fmt: skip


def phase_of(run: FleetRun) -> np.ndarray:
    """Request -> the phase in which it arrived."""
    assert run.spans is not None
    return np.searchsorted(run.spans.phases_s, run.trace.timestamp / 1000, "right") - 1


def phases(run: FleetRun) -> list[FleetPhase]:
    """The hits of each phase; in time also the TTFT of its requests."""
    spans, which = run.spans, phase_of(run)
    assert spans is not None
    first_s = getattr(run, "first_s", None)  # of a run in time
    which[: run.warm_up] = -1
    rows: list[FleetPhase] = []
    for number, start_s in enumerate(spans.phases_s):
        mine = np.flatnonzero(which == number)
        hits = count_hits(run.trace, run.hit_blocks, mine)
        row: FleetPhase = {
            "start_s": start_s, "instances": len(spans.taking(start_s)), "requests": hits.requests,
            "blocks": hits.blocks, "hit_blocks": hits.hit_blocks, "block_hit_rate": hits.block_hit_rate,
            "tokens": hits.tokens, "hit_tokens": hits.hit_tokens, "token_hit_rate": hits.token_hit_rate,
        }  # fmt: skip
        if first_s is not None:
            row["ttft_s"] = quantiles_of(served_only((first_s - run.trace.timestamp / 1000)[mine]))
        rows.append(row)
    return rows


def instance_hours(run: FleetRun) -> float:
    """Hours of all instances: from the beginning of each start-up until the end of the run, or until it has drained."""
    spans, ended = run.spans, getattr(run, "ended_s", run.trace.timestamp / 1000)
    assert spans is not None
    last = float(np.nanmax(ended, initial=0.0))
    gone = np.minimum(spans.drains_s, last)
    served = (run.instance >= 0) & np.isfinite(ended)
    np.maximum.at(gone, run.instance[served], ended[served])
    return float(np.maximum(0.0, gone - spans.started_s).sum()) / 3600


def imbalance_of(run: FleetRun) -> float:
    """The tokens of the busiest instance / the mean over those that take requests, as the mean over the phases."""
    spans, which, tokens = run.spans, phase_of(run), run.trace.input_length
    assert spans is not None
    counted = (np.arange(len(which)) >= run.warm_up) & (run.instance >= 0)
    busiest = total = 0.0
    for number, start_s in enumerate(spans.phases_s):
        mine = counted & (which == number)
        loads = np.bincount(run.instance[mine], tokens[mine], len(spans))
        busiest += float(loads.max(initial=0.0)) * len(spans.taking(start_s))
        total += float(loads.sum())
    return busiest / total if total else 1.0
