"""Validate: a recording's requests simulated under given costs, beside what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from .._base.results import Result
from ..cache.simulation import Setting
from .costs import Costs
from .latencies import STATISTICS, Latencies, StatisticError, StatisticErrorDict, errors_of
from .operating_range import active_at
from .recordings.recording import Recording
from .schedulers import Scheduler
from .simulation import ServingRun, StepCost, simulate_serving

MOMENTS = 100  # at which requests are counted
LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
PAIRS = tuple((latency, statistic) for latency in LATENCIES for statistic in STATISTICS)


class CountsDict(TypedDict):
    """Requests that run and that wait, over time."""

    seconds: list[float]
    running: list[int]
    simulated_running: list[int]
    waiting: list[int]
    simulated_waiting: list[int]


class ValidationDict(TypedDict):
    """The result of `Validation.to_dict`."""

    requests: int
    rejected: int
    left_out: int
    preemptions: int
    errors: list[StatisticErrorDict]
    output_tokens_per_s: float
    simulated_output_tokens_per_s: float
    rank_correlation: dict[str, float]
    extrapolation: dict[str, float]
    counts: CountsDict


@dataclass(frozen=True, eq=False, repr=False)
class Validation(Result):
    """A simulation of a recording, beside the recording."""

    recording: Recording
    run: ServingRun
    errors: list[StatisticError]
    extrapolation: dict[str, float]  # quantity -> multiple of the largest value of the calibration

    _shown = ("arrival_s", "ttft_s", "simulated_ttft_s", "e2e_s", "simulated_e2e_s")

    def _headline(self) -> str:
        means = [one for one in self.errors if one.statistic == "mean"]
        return ", ".join(f"{one.latency} {one.error:+.1%}" for one in means) + f" of {len(self.recording):,} requests"

    def _columns(self) -> dict[str, np.ndarray]:
        measured, simulated = self.measured, self.simulated
        return {
            "arrival_s": self.recording.arrival_s,
            **{name: getattr(measured, name) for name in LATENCIES},
            **{f"simulated_{name}": getattr(simulated, name) for name in LATENCIES},
        }

    @property
    def measured(self) -> Latencies:
        """The measured latency of each request."""
        one = self.recording
        return Latencies.of(one.arrival_s, one.first_s, one.ended_s, one.trace.output_length)

    @property
    def simulated(self) -> Latencies:
        """The simulated latency of each request."""
        return Latencies.of(self.recording.arrival_s, self.run.first_s, self.run.ended_s, self.run.trace.output_length)

    @property
    def rank_correlation(self) -> dict[str, float]:
        """Spearman's rank correlation of the requests' measured and simulated latencies."""
        measured, simulated = self.measured, self.simulated
        return {name: _rank_correlation(getattr(measured, name), getattr(simulated, name)) for name in LATENCIES}

    def counts(self) -> CountsDict:
        """Requests that run and wait at moments of equal distance.

        A request waits until the engine schedules it, or until its first token if the recording does not say when.
        """
        one, run = self.recording, self.run
        known = one.scheduled_s is not None
        served = ~np.isnan(run.ended_s)
        starts = one.scheduled_s if one.scheduled_s is not None else one.first_s
        simulated_starts = (run.started_s if known else run.first_s)[served]
        moments = np.linspace(0, max(one.ended_s.max(), run.makespan_s), MOMENTS)
        return {
            "seconds": moments.tolist(),
            "running": active_at(starts, one.ended_s, moments).tolist(),
            "simulated_running": active_at(simulated_starts, run.ended_s[served], moments).tolist(),
            "waiting": active_at(one.arrival_s, starts, moments).tolist(),
            "simulated_waiting": active_at(one.arrival_s[served], simulated_starts, moments).tolist(),
        }

    def to_dict(self) -> ValidationDict:
        """Statistics, throughput, rank correlations, and requests over time."""
        output = self.recording.trace.output_length
        served = ~np.isnan(self.run.ended_s)
        return {
            "requests": len(self.recording), "rejected": self.run.rejected, "left_out": self.recording.left_out,
            "preemptions": int(self.run.preemptions.sum()),
            "errors": [error.to_dict() for error in self.errors],
            "output_tokens_per_s": float(output.sum() / self.recording.ended_s.max()),
            "simulated_output_tokens_per_s": float(output[served].sum() / (self.run.makespan_s or 1.0)),
            "rank_correlation": self.rank_correlation, "extrapolation": self.extrapolation, "counts": self.counts(),
        }  # fmt: skip


def validate(
    recording: Recording,
    costs: Costs | StepCost,
    *,
    scheduler: Scheduler | None = None,
    capacity: int | None = None,
    seed: int = 0,
) -> Validation:
    """Simulate the requests of a recording, and compare their times with the measured ones.

    Args:
        recording: What was measured (`read_recording`).
        costs: The costs of a calibration, or of a step: `costs.for_model(...)` for another model.
        scheduler: The engine's scheduler; the default is vLLM's with the settings of the recording.
        capacity: Blocks of the cache; the default is that of the recording, unlimited if it does not state one.
        seed: Of the bootstrap.

    Returns:
        The errors of each statistic, and the times of each request.

    Raises:
        UsageError: The scheduler or the capacity is not valid.
    """
    scheduler = scheduler or recording.scheduler()
    setting = recording.setting(scheduler) if capacity is None else Setting(capacity, engine=scheduler.name)
    cost = costs.step_cost if isinstance(costs, Costs) else costs
    run = simulate_serving(recording.trace, cost, setting=setting, scheduler=scheduler)
    simulated = Latencies.of(recording.arrival_s, run.first_s, run.ended_s, run.trace.output_length)
    measured = Latencies.of(recording.arrival_s, recording.first_s, recording.ended_s, recording.trace.output_length)
    extrapolation = costs.extrapolation(run) if isinstance(costs, Costs) else {}
    return Validation(recording, run, errors_of(measured, simulated, PAIRS, seed=seed), extrapolation)


def _rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    known = ~(np.isnan(one) | np.isnan(other))
    if known.sum() < 2:
        return float("nan")
    ranks: list[Any] = [_ranks(values[known]) for values in (one, other)]
    return float(np.corrcoef(*ranks)[0, 1]) if all(np.ptp(rank) for rank in ranks) else float("nan")


def _ranks(values: np.ndarray) -> np.ndarray:
    """The rank of each value; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]
