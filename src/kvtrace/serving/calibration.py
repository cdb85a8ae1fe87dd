"""Calibrate: fit the cost of a step to a recording, through the simulation itself, and test it on the recording's end.

The requests of the last part are held out: the fit does not see their times. The form of the cost is chosen on the last
third of the part that is fitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from .._base.errors import UsageError
from .._base.results import Result
from ..cache.demand import block_demand
from ..cache.simulation import Setting
from .costs import Costs, units_of
from .fitting import fit
from .hardware.gpus import Gpu
from .hardware.gpus import gpu as gpu_of
from .hardware.models import ModelShape, model_shape
from .hardware.roofline import Roofline
from .latencies import Latencies, StatisticError, StatisticErrorDict, errors_of, mean_error
from .operating_range import range_of_run
from .recordings.recording import Recording
from .schedulers import Scheduler
from .simulation import ServingRun, StepCost, simulate_serving
from .step_terms import with_experts

FORMS = {  # name -> its terms; a sum takes the time of attention beside that of the matrices
    "max": ("token_s", "pair_s", "step_s", "read_s", "overhead_s"),
    "sum": ("token_s", "step_s", "overhead_s", "attention_pair_s", "attention_read_s"),
    "sum-request": ("token_s", "step_s", "overhead_s", "request_s", "attention_pair_s", "attention_read_s"),
}
REQUEST_S = 2e-5  # where the fit starts: sampling and bookkeeping of a request in a step
FLOOR = 0.05  # of the mean time of a request: errors of shorter times count less
PRIOR = 0.05  # weight of the roofline: a term that is 2.7 times its start counts as an error of 5 %
CHOICE = 2 / 3  # of the fitted requests; the others choose the form
MIN_PART = 10  # requests of each part


class CalibrationDict(TypedDict):
    """The result of `Calibration.to_dict`."""

    costs: dict[str, Any]
    requests: int
    held_out: int
    errors: list[StatisticErrorDict]
    fitted_errors: list[StatisticErrorDict]
    unfitted_errors: list[StatisticErrorDict]
    forms: dict[str, float]
    worth: dict[str, float]


@dataclass(frozen=True, eq=False, repr=False)
class Calibration(Result):
    """The costs, and their errors on the requests that were held out."""

    costs: Costs
    requests: int
    held_out: int
    errors: list[StatisticError]  # of the held-out requests
    fitted_errors: list[StatisticError]
    unfitted_errors: list[StatisticError]  # of the held-out requests, with the roofline's costs
    forms: Mapping[str, float]  # form -> mean error on the part that chose the form
    worth: Mapping[str, float]  # term -> mean error of the held-out requests without it

    _shown = ("latency", "statistic", "measured", "simulated", "error")

    def _headline(self) -> str:
        return (
            f"form {self.costs.form}, mean error {mean_error(self.errors):.2%} of {self.held_out:,} held-out requests"
        )

    def _columns(self) -> dict[str, list[Any]]:
        rows = [error.to_dict() for error in self.errors]
        return {name: [row[name] for row in rows] for name in rows[0]}  # type: ignore[literal-required]

    def to_dict(self) -> CalibrationDict:
        """The costs and all errors."""
        return {
            "costs": self.costs.to_dict(), "requests": self.requests, "held_out": self.held_out,
            "errors": [error.to_dict() for error in self.errors],
            "fitted_errors": [error.to_dict() for error in self.fitted_errors],
            "unfitted_errors": [error.to_dict() for error in self.unfitted_errors],
            "forms": dict(self.forms), "worth": dict(self.worth),
        }  # fmt: skip


def calibrate(
    recording: Recording,
    model: ModelShape | dict[str, Any] | str | Path,
    gpu: Gpu | str | Path,
    *,
    gpus: int = 1,
    scheduler: Scheduler | None = None,
    holdout: float = 0.5,
    seed: int = 0,
) -> Calibration:
    """Fit the cost of a step to the first part of a recording, and test it on the rest.

    Args:
        recording: What was measured (`read_recording`).
        model: The model that was served: a ModelShape, a name, or a config.json.
        gpu: Its GPU; the fit starts from the roofline of both.
        gpus: The GPUs of the engine.
        scheduler: The engine's scheduler; the default is vLLM's with the settings of the recording.
        holdout: The share of the requests, the last ones, that are not fitted.
        seed: Of the starting points and of the bootstrap.

    Returns:
        The costs, the errors of the held-out requests, and what each term is worth.

    Raises:
        UsageError: An argument is not valid, the parts are too small, or SciPy is not installed.
    """
    shape = model if isinstance(model, ModelShape) else model_shape(model)
    roofline = Roofline(shape, gpu if isinstance(gpu, Gpu) else gpu_of(gpu), gpus)
    if not 0 < holdout < 1:
        raise UsageError("--holdout must be above 0 and below 1.")
    fitted = np.arange(len(recording)) < round((1 - holdout) * len(recording))
    if min(fitted.sum(), (~fitted).sum()) < MIN_PART:
        raise UsageError(f"--holdout leaves fewer than {MIN_PART} requests to fit or to hold out.")
    served = Served(recording, roofline, scheduler)
    forms = _try_forms(served, fitted, seed)
    form = min(forms, key=lambda name: forms[name])
    terms = _fit_terms(served, fitted, FORMS[form], seed)
    costs = _costs_of(served, form, terms, gpus, fitted)
    held = ~fitted
    return Calibration(
        costs, len(recording), int(held.sum()), served.errors(terms, held), served.errors(terms, fitted),
        served.errors(served.start, held), forms, _worth(served, fitted, terms, FORMS[form]),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Served:
    """A recording that can be simulated under any costs."""

    recording: Recording
    roofline: Roofline
    given_scheduler: Scheduler | None = None

    @cached_property
    def scheduler(self) -> Scheduler:
        """The scheduler that was given, else the recording's."""
        return self.given_scheduler or self.recording.scheduler()

    @cached_property
    def setting(self) -> Setting:
        """The cache of the engine, of the recorded size, else of the size that the GPU's memory allows."""
        recording = self.recording
        if recording.settings.blocks:
            return recording.setting(self.scheduler)
        blocks = self.roofline.kv_capacity_tokens // recording.trace.block_size
        return Setting(max(blocks, 1), engine=self.scheduler.name)

    @cached_property
    def measured(self) -> Latencies:
        """The measured latencies."""
        one = self.recording
        return Latencies.of(one.arrival_s, one.first_s, one.ended_s, one.trace.output_length)

    @cached_property
    def start(self) -> dict[str, float]:
        """The terms of the roofline."""
        line = self.roofline
        return {
            "token_s": line.seconds_per_token, "pair_s": line.seconds_per_pair,
            "step_s": line.seconds_per_step + line.seconds_for_experts,
            "read_s": line.seconds_per_cached_token, "overhead_s": line.step_overhead_s,
        }  # fmt: skip

    def starts(self, names: tuple[str, ...]) -> np.ndarray:
        """The roofline's value of each term of a form."""
        known = self.start | {
            "request_s": REQUEST_S, "attention_pair_s": self.start["pair_s"], "attention_read_s": self.start["read_s"]
        }  # fmt: skip
        return np.array([known[name] for name in names])

    @cached_property
    def _demand(self):
        return block_demand(self.recording.trace, *self.scheduler.setting_of(self.setting).demand_options)

    def run(self, terms: Mapping[str, float]) -> ServingRun:
        """The recording's requests under these costs."""
        trace, cost = self.recording.trace, with_experts(StepCost(**{"token_s": 0.0, **terms}), self.roofline.model)
        return simulate_serving(trace, cost, setting=self.setting, scheduler=self.scheduler, demand=self._demand)

    def simulated(self, terms: Mapping[str, float]) -> Latencies:
        """The latencies under these costs."""
        run = self.run(terms)
        return Latencies.of(self.recording.arrival_s, run.first_s, run.ended_s, run.trace.output_length)

    def errors(self, terms: Mapping[str, float], rows: np.ndarray) -> list[StatisticError]:
        """The errors of some requests under these costs."""
        return errors_of(self.measured.take(rows), self.simulated(terms).take(rows))

    def before(self, rows: np.ndarray) -> Served:
        """The part of the recording that the times of these requests depend on."""
        recording = self.recording
        count = int((recording.arrival_s <= recording.ended_s[rows].max()).sum())
        if count == len(recording):
            return self
        part = Recording(
            recording.trace[:count], recording.first_s[:count], recording.ended_s[:count],
            recording.settings,
        )  # fmt: skip
        return Served(part, self.roofline, self.scheduler)


def _try_forms(served: Served, fitted: np.ndarray, seed: int) -> dict[str, float]:
    """The mean error of each form on the last third of the fitted requests, fitted on the others."""
    first = fitted & (np.cumsum(fitted) <= round(CHOICE * fitted.sum()))
    last = fitted & ~first
    return {
        form: mean_error(served.errors(_fit_terms(served, first, names, seed), last)) for form, names in FORMS.items()
    }


def _fit_terms(
    served: Served, rows: np.ndarray, names: tuple[str, ...], seed: int = 0, at: Mapping[str, float] | None = None
) -> dict[str, float]:
    """The terms that fit the times of some requests; with `at` the fit begins there."""
    part = served.before(rows)
    rows = rows[: len(part.recording)]
    starts = served.starts(names)
    measured = part.measured.take(rows)
    floor = FLOOR * measured.e2e_s.mean()

    def residuals(x: np.ndarray) -> np.ndarray:
        simulated = part.simulated(dict(zip(names, starts * np.exp(x), strict=True))).take(rows)
        errors = [
            (getattr(simulated, name) - getattr(measured, name)) / (getattr(measured, name) + floor)
            for name in ("ttft_s", "e2e_s")
        ]
        return np.concatenate([*errors, PRIOR * x])

    if at is None:
        done = fit(residuals, len(names), seed=seed)
    else:
        done = fit(residuals, len(names), starts=1, at=np.log([at[name] for name in names]) - np.log(starts))
    return dict(zip(names, (starts * np.exp(done.x)).tolist(), strict=True))


def _worth(served: Served, fitted: np.ndarray, terms: Mapping[str, float], names: tuple[str, ...]) -> dict[str, float]:
    """The mean error of the held-out requests without each term, the others fitted again."""
    others = {name: tuple(one for one in names if one != name) for name in names}
    return {
        name: mean_error(served.errors(_fit_terms(served, fitted, rest, at=terms), ~fitted))
        for name, rest in others.items()
    }


def _costs_of(served: Served, form: str, terms: Mapping[str, float], gpus: int, fitted: np.ndarray) -> Costs:
    roofline, scheduler = served.roofline, served.scheduler
    errors = {f"{one.latency}_{one.statistic}": one.error for one in served.errors(terms, ~fitted)}
    return Costs(
        roofline.model.name, roofline.gpu.name, gpus, f"{scheduler.name} {scheduler.version}".strip(), form,
        asdict(with_experts(StepCost(**{"token_s": 0.0, **terms}), roofline.model)), units_of(roofline.model, gpus),
        range_of_run(served.before(fitted).run(terms)), errors,
    )  # fmt: skip
