"""Validate: a recording's requests simulated under given costs, beside what was measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, NotRequired, TypedDict

import numpy as np

from .._base.errors import UsageError
from .._base.results import PlottedResult, as_json
from ..cache.engines import EngineName
from .calibration.costs import Costs, active_at
from .deployment import Deployment
from .expectations import ExpectedError
from .instances import Timeline
from .latencies import STATISTICS, Latencies, StatisticError, errors_of
from .recordings.recording import BLOCKS, Recording
from .schedulers import Scheduler
from .simulation import ServingRun, StepCost, open_loop

SCHEMA = 1  # version of the keys of `Validation.to_dict`
MOMENTS = 100  # at which requests are counted, where the recording has no gauges
LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
PAIRS = tuple((latency, statistic) for latency in LATENCIES for statistic in STATISTICS)
ENGINES = ("vllm", "sglang")


class OverTimeDict(TypedDict):
    """The engine at some moments; docs/serving/calibrate.md explains the keys."""

    seconds: list[float]
    running: list[int]
    simulated_running: list[int]
    waiting: list[int]
    simulated_waiting: list[int]
    kv_use: list[float] | None
    simulated_kv_use: list[float] | None
    simulated_kv_blocks: list[int]


class ValidationDict(TypedDict):
    """The result of `Validation.to_dict`; docs/serving/calibrate.md explains the keys."""

    schema: int
    format: str
    requests: int
    left_out: int
    rejected: int
    warm_up: int
    deployment: dict[str, Any]
    scheduler: str
    capacity: int | None
    block_size: int
    step_cost: dict[str, float]
    errors: list[StatisticError]
    rank_correlation: dict[str, float | None]
    requests_per_s: float
    simulated_requests_per_s: float
    output_tokens_per_s: float
    simulated_output_tokens_per_s: float
    cached_tokens: int | None
    simulated_cached_tokens: int | None
    simulated_preemptions: int
    extrapolation: dict[str, float]
    over_time: OverTimeDict
    expected_error: NotRequired[ExpectedError]


@dataclass(frozen=True, eq=False, repr=False)
class Validation(PlottedResult):
    """A simulation of a recording, beside the recording."""

    recording: Recording
    run: ServingRun
    cost: StepCost
    errors: list[StatisticError]  # of the requests after the warm-up
    extrapolation: dict[str, float]  # quantity -> multiple of the largest value of the calibration
    warm_up: int = 0  # first requests that are simulated and not counted

    _shown = ("row", "arrival_s", "ttft_s", "simulated_ttft_s", "e2e_s", "simulated_e2e_s")

    def _headline(self) -> str:
        means = [error for error in self.errors if error.statistic == "mean"]
        return ", ".join(f"{mean.latency} {mean.error:+.1%}" for mean in means) + f" of {len(self.counted):,} requests"

    def _columns(self) -> dict[str, np.ndarray]:
        return self.per_request()

    def per_request(self) -> dict[str, np.ndarray]:
        """Column name -> one value for each request, in order of arrival; NaN where a time is not known.

        `row` is the request's row of the recording's file, from 0; times are in seconds.
        """
        recorded, run = self.recording, self.run
        row = np.arange(len(recorded)) if recorded.file_row is None else recorded.file_row
        columns = {
            "row": row, "arrival_s": recorded.arrival_s, "input_length": recorded.trace.input_length,
            "output_length": recorded.trace.output_length,
        }  # fmt: skip
        for name in LATENCIES:
            columns |= {name: getattr(self.measured, name), f"simulated_{name}": getattr(self.simulated, name)}
        if recorded.cached_tokens is not None:
            columns["cached_tokens"] = recorded.cached_tokens
        return columns | {"simulated_cached_tokens": run.cached_tokens, "simulated_preemptions": run.preemptions}

    @property
    def expected_error(self) -> ExpectedError | None:
        """The error of such times on the nearest measured deployments; None unless `validate` got `unfitted`."""
        return self.run.expected_error

    @property
    def capacity(self) -> int | None:
        """Blocks of the KV cache; None if it is not known, and the simulated one unlimited."""
        blocks = self.run.setting.capacity
        return None if blocks == BLOCKS else blocks

    @property
    def counted(self) -> np.ndarray:
        """The requests after the warm-up."""
        return np.arange(self.warm_up, len(self.recording))

    @cached_property
    def measured(self) -> Latencies:
        """The measured latency of each request."""
        recorded = self.recording
        return Latencies.of(recorded.arrival_s, recorded.first_s, recorded.ended_s, recorded.trace.output_length)

    @cached_property
    def simulated(self) -> Latencies:
        """The simulated latency of each request."""
        return Latencies.of(self.recording.arrival_s, self.run.first_s, self.run.ended_s, self.run.trace.output_length)

    @property
    def rank_correlation(self) -> dict[str, float | None]:
        """Spearman's rank correlation of the measured and simulated latencies; None if all values are equal."""
        pairs = {name: (getattr(self.measured, name), getattr(self.simulated, name)) for name in LATENCIES}
        return {name: _rank_correlation(*(part[self.counted] for part in pair)) for name, pair in pairs.items()}

    @cached_property
    def over_time(self) -> OverTimeDict:
        """Requests that run and wait, and KV use: at the moments of the recording's gauges, else at equal distances.

        Gauges stand beside the state of the simulated engine, summed over its data-parallel ranks; if that ends later,
        they go on at 0. Without gauges, both sides are counted from the times of the requests: a request waits until
        the engine schedules it, or until its first token where the recording does not say when.
        """
        gauges, lines = self.recording.gauges, self.run.timelines
        if gauges is not None:
            gauges = gauges.until(self.run.makespan_s)
            state = Timeline.sum_at(lines, gauges.seconds)
            counts = [gauges.running, state.running, gauges.waiting, state.waiting]
            moments, kv_use = gauges.seconds, gauges.kv_use
        else:
            moments = np.linspace(0, max(self.recording.ended_s.max(), self.run.makespan_s), MOMENTS)
            counts, kv_use = self._counts_at(moments), None
        running, simulated_running, waiting, simulated_waiting = ([int(count) for count in column] for column in counts)
        blocks = Timeline.sum_at(lines, moments).blocks
        return {
            "seconds": moments.tolist(), "running": running, "simulated_running": simulated_running,
            "waiting": waiting, "simulated_waiting": simulated_waiting,
            "kv_use": None if kv_use is None else kv_use.tolist(),
            "simulated_kv_use": None if self.capacity is None else (blocks / (len(lines) * self.capacity)).tolist(),
            "simulated_kv_blocks": blocks.tolist(),
        }  # fmt: skip

    def _counts_at(self, moments: np.ndarray) -> list[np.ndarray]:
        """Running, simulated running, waiting and simulated waiting requests, by the times of the requests."""
        recorded, run = self.recording, self.run
        served = ~np.isnan(run.ended_s)
        has_starts = recorded.scheduled_s is not None
        starts = recorded.scheduled_s if recorded.scheduled_s is not None else recorded.first_s
        simulated_starts = (run.started_s if has_starts else run.first_s)[served]
        return [
            active_at(starts, recorded.ended_s, moments), active_at(simulated_starts, run.ended_s[served], moments),
            active_at(recorded.arrival_s, starts, moments),
            active_at(recorded.arrival_s[served], simulated_starts, moments),
        ]  # fmt: skip

    def to_dict(self) -> ValidationDict:
        """Keys as https://github.com/kvtrace/kvtrace/blob/main/docs/serving/calibrate.md lists them."""
        recorded, run = self.recording, self.run
        output, served, span = recorded.trace.output_length, ~np.isnan(run.ended_s), float(recorded.ended_s.max())
        assert run.scheduler is not None
        return {
            "schema": SCHEMA, "format": recorded.format, "requests": len(recorded), "left_out": recorded.left_out,
            "rejected": run.rejected, "warm_up": self.warm_up,
            "deployment": recorded.settings.deployment.to_dict(),
            "scheduler": f"{run.scheduler.name} {run.scheduler.version}".strip(), "capacity": self.capacity,
            "block_size": recorded.trace.block_size, "step_cost": asdict(self.cost),
            "errors": as_json(self.errors),
            "rank_correlation": self.rank_correlation,
            "requests_per_s": len(recorded) / span, "simulated_requests_per_s": int(served.sum()) / run.makespan_s,
            "output_tokens_per_s": int(output.sum()) / span,
            "simulated_output_tokens_per_s": int(output[served].sum()) / run.makespan_s,
            "cached_tokens": None if recorded.cached_tokens is None else int(recorded.cached_tokens.sum()),
            "simulated_cached_tokens": int(run.cached_tokens[served].sum()) if recorded.states_blocks else None,
            "simulated_preemptions": int(run.preemptions.sum()), "extrapolation": self.extrapolation,
            "over_time": self.over_time,
            **({"expected_error": self.expected_error.to_dict()} if self.expected_error else {}),  # type: ignore[typeddict-item]
        }  # fmt: skip


def validate(
    recording: Recording,
    costs: Costs | StepCost,
    *,
    engine: EngineName | None = None,
    scheduler: Scheduler | None = None,
    capacity: int | None = None,
    warm_up: int = 0,
    seed: int = 0,
    unfitted: Deployment | None = None,
) -> Validation:
    """Simulate the requests of a recording, and compare their times with the measured ones.

    Its data-parallel ranks are instances behind the engine's own balancer, with the blocks of one rank each.

    Args:
        recording: What was measured (`read_recording`).
        costs: The costs of a calibration, or of a step: `step_cost(roofline)` if nothing was fitted,
            `costs.for_model(...)` for another model.
        engine: vllm or sglang; the default is the recording's.
        scheduler: The engine's scheduler; the default has the settings of the recording.
        capacity: Blocks of the KV cache of a rank; the default is that of the recording, unlimited if it does not state
            one.
        warm_up: First requests that are simulated and not counted, such as those that a calibration was fitted to.
        seed: Of the bootstrap.
        unfitted: The deployment whose roofline the costs are, if nothing was fitted: the result then has the error that
            was expected.

    Returns:
        The errors of each statistic, and the times of each request.

    Raises:
        UsageError: The engine, the scheduler, the capacity or the warm-up is not valid, or the balancer of the ranks is
            not simulated.
    """
    scheduler = scheduler or recording.scheduler(engine)
    if scheduler.name not in ENGINES:
        raise UsageError(f"validate simulates the engines {' and '.join(ENGINES)}, not {scheduler.name}.")
    setting = recording.setting(scheduler)
    if capacity is not None:
        setting = replace(setting, capacity=capacity)
    if not 0 <= warm_up < len(recording):
        raise UsageError(f"--warm-up leaves none of the {len(recording):,} requests to count.")
    cost = costs.step_cost if isinstance(costs, Costs) else costs
    ranks = recording.settings.ranks(setting.engine, has_experts=cost.expert_step_s > 0)
    run = open_loop(recording.simulated_trace, cost, setting=setting, scheduler=scheduler, timelines=True, **ranks)
    run = replace(run, unfitted=unfitted)
    if np.isnan(run.ended_s[warm_up:]).all():
        raise UsageError(f"No request fits into a KV cache of {setting.capacity:,} blocks. Give a larger --capacity.")
    simulated = Latencies.of(recording.arrival_s, run.first_s, run.ended_s, run.trace.output_length)
    measured = Latencies.of(recording.arrival_s, recording.first_s, recording.ended_s, recording.trace.output_length)
    counted = np.arange(warm_up, len(recording))
    errors = errors_of(measured.take(counted), simulated.take(counted), PAIRS, seed=seed)
    extrapolation = costs.extrapolation(run) if isinstance(costs, Costs) else {}
    return Validation(
        recording, run, cost, [error for error in errors if not np.isnan(error.measured)], extrapolation, warm_up
    )


def _rank_correlation(values: np.ndarray, other: np.ndarray) -> float | None:
    both = ~(np.isnan(values) | np.isnan(other))
    if both.sum() < 2:
        return None
    ranks: list[Any] = [_ranks(column[both]) for column in (values, other)]
    return float(np.corrcoef(*ranks)[0, 1]) if all(np.ptp(rank) for rank in ranks) else None


def _ranks(values: np.ndarray) -> np.ndarray:
    """The rank of each value; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]
