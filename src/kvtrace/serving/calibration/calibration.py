"""Calibrate: fit the cost of a step to a recording, through the simulation itself, and test it on the recording's end.

The requests of the last part are held out: the fit does not see their times. Among the forms of the cost, the
roofline's own is taken unless another fits clearly better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from ..._base.errors import UsageError
from ..._base.results import DescribedResult
from ...cache.demand import block_demand
from ...cache.engines import EngineName
from ...cache.simulation import Setting
from ..deployment import Deployment
from ..hardware.roofline import Roofline, roofline_of
from ..latencies import Latencies, StatisticError, errors_of, mean_error
from ..recordings.recording import Recording
from ..run_options import TimeSetup
from ..schedulers import Scheduler
from ..simulation import ServingRun, StepCost, open_loop
from .costs import (
    ATTENTION,
    FORMS,
    HOST_TERMS,
    Costs,
    bulk_terms,
    range_of_run,
    roofline_cost,
    start_terms,
    stored,
    terms_of,
    window_terms,
)
from .fitting import BOUND, DecodeTimes, TokenGaps, fit, scipy_optimize

SCHEMA = 1  # version of the keys of `Calibration.to_dict`
FLOOR = 0.05  # of the mean time of a request: errors of shorter times count less
PRIOR = 0.02  # a term that is one SPREAD away from its start counts as an error of 2 % of one request
SEVERAL = 5  # times as much with several GPUs: there times hardly tell what GPUs exchange from what they compute
SPREAD = {  # of the logarithm of a term around the roofline's: shares of peaks are known better than launches
    "token_s": 0.15, "step_s": 0.1, "pair_s": 0.5, "read_s": 0.3, "attention_pair_s": 0.5, "attention_read_s": 0.3,
    "overhead_s": 0.5, "request_s": 1.0, "exchange_s": 0.5, "expert_token_s": 0.15, "expert_step_s": 0.1,
}  # fmt: skip
COUNTS = 5  # of the steps between tokens, each with the costs of the one before
MIN_PART = 10  # requests of each part


@dataclass(frozen=True, eq=False, repr=False)
class Calibration(DescribedResult):
    """The costs, and their errors on the held-out requests;
    https://github.com/kvtrace/kvtrace/blob/main/docs/serving/calibrate.md explains the keys."""

    _schema = SCHEMA
    requests: int
    left_out: int  # that failed
    held_out: int
    errors: list[StatisticError]  # of the held-out requests
    fitted_errors: list[StatisticError]
    unfitted_errors: list[StatisticError]  # of the held-out requests, with the roofline's costs
    forms: Mapping[str, float]  # form -> mean error of a request that is fitted
    worth: Mapping[str, float]  # term -> mean error of the held-out requests without it
    costs: Costs

    _shown = ("latency", "statistic", "measured", "simulated", "error")

    def _headline(self) -> str:
        return (
            f"form {self.costs.form}, mean error {mean_error(self.errors):.2%} of {self.held_out:,} held-out requests"
        )

    def _columns(self) -> dict[str, list[Any]]:
        rows = [error.to_dict() for error in self.errors]
        return {name: [row[name] for row in rows] for name in rows[0]}


def calibrate(
    recording: Recording,
    deployment: Deployment,
    *,
    scheduler: Scheduler | None = None,
    holdout: float = 0.5,
    seed: int = 0,
    on_part: Callable[[str], None] | None = None,
) -> Calibration:
    """Fit the cost of a step to the first part of a recording, and test it on the rest.

    Args:
        recording: What was measured (`read_recording`).
        deployment: The model that was served, and the GPUs; the fit starts from their roofline.
        scheduler: The engine's scheduler; the default is vLLM's with the settings of the recording.
        holdout: The share of the requests, the last ones, that are not fitted. With 0 the errors are those of the fit.
        seed: Of the starting points and of the bootstrap.
        on_part: Receives the name of each form before it is fitted, and "worth".

    Returns:
        The costs, the errors of the held-out requests, and what each term is worth.

    Raises:
        UsageError: An argument is not valid, the parts are too small, or SciPy is not installed.
    """
    roofline = roofline_of(deployment).ideal  # a fit takes the place of the terms
    if not 0 <= holdout < 1:
        raise UsageError("--holdout must be at least 0 and below 1.")
    fitted = np.arange(len(recording)) < round((1 - holdout) * len(recording))
    if fitted.sum() < 2 * MIN_PART or (holdout and (~fitted).sum() < MIN_PART):
        raise UsageError(
            f"--holdout must leave at least {2 * MIN_PART} requests to fit and {MIN_PART} to hold out (or none); the "
            f"recording has {len(recording):,}."
        )
    served = Served(recording, roofline, deployment, scheduler)
    if np.isnan(served.run(served.roofline_terms).ended_s[fitted]).all():
        raise UsageError(
            "No request that is fitted has room in the engine's KV cache. Check --model, --gpu and --gpus, and the "
            "unit of the lengths in LOG."
        )
    report = on_part or (lambda part: None)
    tried = {}
    for form in FORMS:
        report(form)
        tried[form] = _fit_terms(served, fitted, terms_of(form, served.roofline_terms), seed)
    report("worth")
    request_errors = {form: served.request_errors(fitted_terms, fitted) for form, fitted_terms in tried.items()}
    form = _chosen(request_errors)
    terms = tried[form]
    held = ~fitted if holdout else fitted
    errors = served.errors(terms, held)
    costs = _costs_of(served, form, terms, fitted, errors)
    return Calibration(
        len(recording), recording.left_out, int((~fitted).sum()), errors,
        served.errors(terms, fitted), served.errors(served.start, held),
        {name: float(values.mean()) for name, values in request_errors.items()}, _worth(served, fitted, held, terms),
        costs,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Served:
    """A recording that can be simulated under any costs."""

    recording: Recording
    roofline: Roofline
    deployment: Deployment
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
        engine = cast(EngineName, self.scheduler.name)
        time = TimeSetup(deployment=self.deployment, schedulers={engine: self.scheduler})
        return replace(recording.setting(self.scheduler), capacity=time.blocks_of(engine, recording.trace.block_size))

    @cached_property
    def measured(self) -> Latencies:
        """The measured latencies."""
        recording = self.recording
        return Latencies.of(recording.arrival_s, recording.first_s, recording.ended_s, recording.trace.output_length)

    @cached_property
    def start(self) -> dict[str, float]:
        """The terms of the roofline, as a simulation without a fit takes them."""
        return asdict(roofline_cost(self.roofline))

    def starts(self, names: tuple[str, ...]) -> np.ndarray:
        """The roofline's value of each term of a form."""
        return np.array([self.roofline_terms[name] for name in names])

    @cached_property
    def roofline_terms(self) -> dict[str, float]:
        """The roofline's value of each term of any form."""
        return start_terms(self.roofline)

    @cached_property
    def _demand(self):
        return block_demand(self.recording.simulated_trace, *self.scheduler.setting_of(self.setting).demand_options)

    def cost(self, terms: Mapping[str, float]) -> StepCost:
        """The cost of a step of these terms, with what is not fitted: it follows from them, or is the roofline's."""
        base = self.roofline_terms
        multiples = {name: terms[name] / base[name] for name in (*ATTENTION, "exchange_s") if terms.get(name)}
        others = window_terms(self.roofline, multiples) | bulk_terms(base, multiples.get("exchange_s", 0.0))
        others |= {name: base[name] for name in (*HOST_TERMS, "expert_share", "bulk_exchange_tokens")}
        return StepCost(**{"token_s": 0.0, **others, **terms})

    def run(self, terms: Mapping[str, float]) -> ServingRun:
        """The recording's requests under these costs."""
        trace, cost = self.recording.simulated_trace, self.cost(terms)
        has_experts = self.roofline_terms["expert_step_s"] > 0
        ranks = self.recording.settings.ranks(self.setting.engine, has_experts=has_experts)
        return open_loop(trace, cost, setting=self.setting, scheduler=self.scheduler, demand=self._demand, **ranks)

    def simulated(self, terms: Mapping[str, float]) -> Latencies:
        """The latencies under these costs."""
        run = self.run(terms)
        return Latencies.of(self.recording.arrival_s, run.first_s, run.ended_s, run.trace.output_length)

    def errors(self, terms: Mapping[str, float], rows: np.ndarray, *, intervals: bool = True) -> list[StatisticError]:
        """The errors of some requests under these costs."""
        return errors_of(self.measured.take(rows), self.simulated(terms).take(rows), intervals=intervals)

    def _columns(self, terms: Mapping[str, float]) -> tuple[ServingRun, tuple[np.ndarray, ...]]:
        """A run under some costs, and the recording's lengths with its cached tokens, those of the run by default."""
        recording, trace, run = self.recording, self.recording.trace, self.run(terms)
        cached = run.cached_tokens if recording.cached_tokens is None else recording.cached_tokens
        return run, (trace.input_length, trace.output_length, cached)

    def decode_times(self, terms: Mapping[str, float], rows: np.ndarray) -> tuple[DecodeTimes, np.ndarray]:
        """What the decoding of each request consists of, and which are of `rows`: only their measured times count.

        The times of the others are those under some costs; one that is rejected has none.
        """
        run, lengths = self._columns(terms)
        recording = self.recording
        times = np.where(rows, recording.first_s, run.first_s), np.where(rows, recording.ended_s, run.ended_s)
        served = ~np.isnan(times[1])
        limit = self.scheduler.limits.step_tokens
        on_ranks = [np.flatnonzero(served & (run.instance == rank)) for rank in range(run.instances)]
        parts = [
            DecodeTimes.of(*(column[part] for column in (*times, *lengths)), step_tokens=limit) for part in on_ranks
        ]
        return DecodeTimes.joined(parts), rows[np.concatenate(on_ranks)]

    def token_gaps(self, terms: Mapping[str, float], rows: np.ndarray) -> TokenGaps:
        """The gaps between the tokens of some requests, until another one arrives."""
        run, lengths = self._columns(terms)
        recording = self.recording
        until = float(recording.arrival_s[~rows].min(initial=np.inf))
        columns, limit = (recording.first_s, recording.ended_s, *lengths), self.scheduler.limits.step_tokens
        on_ranks = [rows & (run.instance == rank) for rank in range(run.instances)] if run.instances > 1 else [rows]
        return TokenGaps.joined(
            TokenGaps.of(*(column[part] for column in columns), step_tokens=limit, until=until) for part in on_ranks
        )

    def request_errors(self, terms: Mapping[str, float], rows: np.ndarray) -> np.ndarray:
        """The mean of the relative errors of TTFT and E2E of each of some requests."""
        return np.abs(self.residuals(terms, rows)).reshape(2, -1).mean(axis=0)

    def residuals(self, terms: Mapping[str, float], rows: np.ndarray) -> np.ndarray:
        """The relative errors of TTFT and then of E2E of some requests, simulated under these costs."""
        simulated, measured = self.simulated(terms).take(rows), self.measured.take(rows)
        floor = FLOOR * measured.e2e_s.mean()
        errors = [
            (getattr(simulated, name) - getattr(measured, name)) / (getattr(measured, name) + floor)
            for name in ("ttft_s", "e2e_s")
        ]
        return np.nan_to_num(np.concatenate(errors), nan=1.0)  # a request that is rejected is wholly wrong

    def before(self, rows: np.ndarray) -> Served:
        """The part of the recording that the times of these requests depend on."""
        recording = self.recording
        count = int((recording.arrival_s <= recording.ended_s[rows].max()).sum())
        if count == len(recording):
            return self
        part = Recording(
            recording.trace[:count], recording.first_s[:count], recording.ended_s[:count], recording.settings,
            cached_tokens=None if recording.cached_tokens is None else recording.cached_tokens[:count],
        )  # fmt: skip
        return Served(part, self.roofline, self.deployment, self.scheduler)


def _chosen(errors: Mapping[str, np.ndarray]) -> str:
    """The first form, unless the mean error of another is smaller by more than two standard errors of the difference.

    >>> _chosen({"a": np.array([1.0, 2.0, 3.0]), "b": np.array([0.5, 1.6, 2.5]), "c": np.array([0.0, 1.0, 5.0])})
    'b'
    """
    best, *others = errors
    for name in others:
        gain = errors[best] - errors[name]
        if gain.mean() > 2 * gain.std(ddof=1) / np.sqrt(len(gain)):
            best = name
    return best


def _fit_terms(
    served: Served, rows: np.ndarray, names: tuple[str, ...], seed: int = 0, at: Mapping[str, float] | None = None
) -> dict[str, float]:
    """The terms that fit the times of some requests; with `at` the fit begins there."""
    part = served.before(rows)
    rows = rows[: len(part.recording)]
    starts, spread = served.starts(names), np.array([SPREAD[name] for name in names])
    weights = PRIOR * (1 if served.roofline.gpus == 1 else SEVERAL) / spread

    def terms_at(x: np.ndarray) -> dict[str, float]:
        return dict(zip(names, (starts * np.exp(x)).tolist(), strict=True))

    def with_prior(residuals: np.ndarray, x: np.ndarray) -> np.ndarray:
        return np.concatenate([residuals, weights * x])

    def simulated(x: np.ndarray) -> np.ndarray:
        return with_prior(part.residuals(terms_at(x), rows), x)

    if at is not None:
        begin = [np.log([at[name] for name in names]) - np.log(starts)]
        return terms_at(fit(simulated, len(names), points=begin, starts=1).x)
    points = _counted(part, rows, terms_at, lambda x: weights * x, len(names))
    return terms_at(fit(simulated, len(names), points=points, seed=seed).x)


def _counted(
    part: Served, rows: np.ndarray, terms_at: Callable[[np.ndarray], dict[str, float]],
    prior: Callable[[np.ndarray], np.ndarray], size: int,
) -> list[np.ndarray]:  # fmt: skip
    """Starting points: the roofline, and the terms at which the times that need no simulation fit best."""
    roofline = x = np.zeros(size)

    def whole(x: np.ndarray) -> Mapping[str, float]:
        return vars(part.cost(terms_at(x)))

    def best(errors: Callable[[Mapping[str, float]], np.ndarray], begin: np.ndarray) -> np.ndarray:
        return scipy_optimize().least_squares(
            lambda x: np.concatenate([errors(whole(x)), prior(x)]), begin, bounds=(-BOUND, BOUND),
            loss="soft_l1", f_scale=PRIOR,
        ).x  # fmt: skip

    for _ in range(2):  # the second time beside requests that are simulated with the costs of the first
        decode, measured = part.decode_times(terms_at(x), rows)
        x = best(lambda terms: decode.errors(terms, measured), roofline)  # noqa: B023
    points, gaps = [roofline, x], part.token_gaps(terms_at(x), rows)
    for _ in range(COUNTS):
        steps = gaps.steps(whole(x))
        x = best(lambda terms: gaps.errors(terms, steps), x)  # noqa: B023
    return [*points, x]


def _worth(served: Served, fitted: np.ndarray, held: np.ndarray, terms: Mapping[str, float]) -> dict[str, float]:
    """The mean error of the held-out requests without each term, the others fitted again."""
    others = {name: tuple(term for term in terms if term != name) for name in terms}
    fits = {name: _fit_terms(served, fitted, rest, at=terms) for name, rest in others.items()}
    return {name: mean_error(served.errors(fit, held, intervals=False)) for name, fit in fits.items()}


def _costs_of(
    served: Served, form: str, terms: Mapping[str, float], fitted: np.ndarray, errors: list[StatisticError]
) -> Costs:
    line, scheduler, settings = served.roofline, served.scheduler, served.recording.settings
    limits = scheduler.limits
    size = served.recording.trace.block_size
    blocks = settings.blocks_of(size)
    kv_tokens = blocks * size if blocks else None
    return Costs(
        line.model.name, line.gpu.name, line.gpus, f"{scheduler.name} {scheduler.version}".strip(), form,
        asdict(served.cost(terms)), line.model.to_dict(), asdict(line.gpu),
        {"step_tokens": limits.step_tokens, "requests": limits.requests}, kv_tokens,
        range_of_run(served.before(fitted).run(terms)),
        {f"{error.latency}_{error.statistic}": error.error for error in errors},
        stored(served.deployment),
    )  # fmt: skip
