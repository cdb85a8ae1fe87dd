"""The costs of an engine's steps as they were fitted to a recording, for the same GPU with this or another model.

A fitted term is a multiple of the roofline's term. Another model keeps these multiples: its own terms follow from its
config.json, and the GPU reaches the same share of its peaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import orjson

from ..._base.errors import InputError, UsageError
from ..._base.input_files import read_object
from ..._base.output_files import write_atomically
from ..hardware.gpus import Gpu
from ..hardware.links import Link
from ..hardware.roofline import Roofline
from ..models.shape import ModelShape, model_shape
from ..schedulers.base import BatchLimits
from ..serving_run import ServingRun
from ..simulation import StepCost
from .calibrated import FORMS, NO_TIME, CalibratedRoofline, exchange_terms, start_terms, terms_of
from .operating_range import LABELS, OperatingRange, range_of_run

VERSION = 1
HINT = "Write the file with kvtrace calibrate."
TERMS = tuple(field.name for field in fields(StepCost))
LEAST = 0.1  # multiple of the roofline; a term may be all exchange
ALLOWANCE = 0.1  # beyond the range, without an error


@dataclass(frozen=True)
class Costs:
    """The fitted costs, where they come from, how far the recording went, and their errors on its held-out part."""

    model: str
    gpu: str
    gpus: int
    scheduler: str
    form: str
    terms: Mapping[str, float]  # term of StepCost -> seconds
    model_shape: Mapping[str, Any]  # the fields of ModelShape
    gpu_figures: Mapping[str, Any]  # the fields of Gpu
    limits: Mapping[str, int]  # of the engine that was measured: step_tokens, requests
    kv_tokens: int | None  # of its KV cache, if the recording states it
    seen: OperatingRange
    errors: Mapping[str, float]  # such as ttft_s_mean -> relative error on the held-out part

    @property
    def step_cost(self) -> StepCost:
        """The cost of a step of the model that was measured."""
        return StepCost(**self.terms)

    @property
    def roofline(self) -> Roofline:
        """The model and the GPUs that were measured."""
        figures = dict(self.gpu_figures)
        link = Link(**figures.pop("link"))
        return Roofline(ModelShape(**self.model_shape), Gpu(**figures, link=link), self.gpus)

    @property
    def basis(self) -> str:
        """What was measured, for people."""
        return f"{self.model} on {self.gpus} x {self.gpu}, with the scheduler of {self.scheduler}"

    def for_model(
        self, model: ModelShape | dict[str, Any] | str | Path, *, gpus: int = 1, link: Link | None = None
    ) -> StepCost:
        """The cost of a step of another model on the same kind of GPU; `for_gpus` has the arguments."""
        return self.for_gpus(model, gpus=gpus, link=link).cost

    def for_gpus(
        self,
        model: ModelShape | dict[str, Any] | str | Path | None = None,
        *,
        gpus: int | None = None,
        link: Link | None = None,
    ) -> CalibratedRoofline:
        """A model on the same kind of GPU.

        Each term stays the same multiple of the roofline's, and the overhead grows with the layers. Routed experts that
        the measured model lacks have the multiples of other products and weights. What GPUs exchange is the roofline's,
        unless several GPUs were measured.

        Args:
            model: A ModelShape, a model's name, or its config.json; by default the one that was measured.
            gpus: The GPUs of an instance, by tensor parallelism; by default as many as were measured.
            link: What connects them; the default is that of the GPU.

        Raises:
            UsageError: gpus is not valid.
        """
        here = self.roofline
        shape = here.model if model is None else model if isinstance(model, ModelShape) else model_shape(model)
        overhead = here.step_overhead_s * shape.layers / here.model.layers
        free, exchange = start_terms(replace(here, link=NO_TIME)), exchange_terms(here)
        multiples = {
            name: max((self.terms[name] - exchange[name]) / free[name], LEAST)
            for name in terms_of(self.form, free)
        }  # fmt: skip
        if exchange["exchange_s"]:
            multiples["exchange_s"] = self.terms["exchange_s"] / exchange["exchange_s"]
        if shape.state_bytes and not here.model.state_bytes and "request_s" not in multiples:
            multiples["request_s"] = multiples.get("attention_read_s", multiples.get("read_s", 1.0))
        return CalibratedRoofline(
            shape, here.gpu, self.gpus if gpus is None else gpus, step_overhead_s=overhead, link=link, form=self.form,
            multiples=multiples, source=self.basis,
        )  # fmt: skip

    @property
    def batch_limits(self) -> BatchLimits:
        """The limits of the engine that was measured."""
        return BatchLimits(**self.limits)

    def capacity_tokens(self, roofline: Roofline, limits: BatchLimits) -> int:
        """Tokens of KV in an instance: as many as were measured for the same model and GPUs, else by their memory."""
        same = (roofline.model, roofline.gpu, roofline.gpus) == (self.roofline.model, self.roofline.gpu, self.gpus)
        if same and self.kv_tokens:
            return self.kv_tokens
        return roofline.capacity_tokens(limits.step_tokens, limits.requests)

    def require_engine(self, engine: str) -> None:
        """UsageError if the costs were measured with another engine."""
        measured = self.scheduler.split(" ")[0]
        if engine != measured:
            raise UsageError(
                f"The costs were measured with the engine {measured}, not {engine}. Use --engine {measured}."
            )

    def extrapolation(self, run: ServingRun) -> dict[str, float]:
        """By how much a run goes beyond the recording: name of the quantity -> multiple of the largest value seen."""
        return range_of_run(run).beyond(self.seen)

    def require_seen(self, run: ServingRun, allowance: float = ALLOWANCE) -> None:
        """UsageError if a run goes beyond the recording by more than a share."""
        over = {name: times for name, times in self.extrapolation(run).items() if times > 1 + allowance}
        if over:
            raise UsageError(
                f"The run goes beyond what the costs were measured for ({excess(over)}). Record a larger load, or "
                "allow it with --extrapolate."
            )

    def to_dict(self) -> dict[str, Any]:
        """The content of a costs.json."""
        return {"version": VERSION, **asdict(self)}

    def to_json(self) -> bytes:
        """The bytes of a costs.json."""
        return orjson.dumps(self.to_dict(), option=orjson.OPT_INDENT_2) + b"\n"

    def save(self, path: str | Path) -> None:
        """Write a costs.json."""
        with write_atomically(path) as file:
            file.write(self.to_json())


def excess(over: Mapping[str, float]) -> str:
    """By how much a run goes beyond a recording, in words.

    >>> excess({"batch": 1.5})
    'requests at once: 1.5 times'
    """
    return ", ".join(f"{LABELS[name]}: {times:.2g} times" for name, times in over.items())


def read_costs(path: str | Path) -> Costs:
    """Read a costs.json.

    Raises:
        UsageError: The file does not exist.
        InputError: It is not a costs.json of this version.
    """
    described = read_object(path, InputError, HINT)
    if described.pop("version", None) != VERSION:
        raise InputError(f"{path}: not a costs.json of version {VERSION}. {HINT}")
    if set(described) != {field.name for field in fields(Costs)}:
        raise InputError(f"{path}: has missing or unknown keys. {HINT}")
    form, seen, terms = FORMS.get(str(described["form"])), described["seen"], described["terms"]
    if form is None:
        raise InputError(f"{path}: form is not one of {', '.join(FORMS)}. {HINT}")
    if not _numbers(terms) or not set(form) <= set(terms) <= set(TERMS) or not all(terms[name] > 0 for name in form):
        raise InputError(f"{path}: terms does not hold {', '.join(form)}, as numbers above 0. {HINT}")
    if not _numbers(seen) or set(seen) != set(LABELS):
        raise InputError(f"{path}: seen does not hold {', '.join(LABELS)}, as numbers from 0 on. {HINT}")
    costs = Costs(**{**described, "seen": OperatingRange(**seen)})
    if not _is_valid(costs):
        raise InputError(f"{path}: model_shape, gpu_figures, gpus, scheduler, limits or errors is not valid. {HINT}")
    return costs


def _is_valid(costs: Costs) -> bool:
    """Whether the model, its GPUs and the scheduler of a file can be used."""
    numbers = (*costs.errors.values(),) if isinstance(costs.errors, dict) else ("",)
    if not isinstance(costs.scheduler, str) or not all(type(one) in (int, float) for one in numbers):
        return False
    if costs.kv_tokens is not None and (type(costs.kv_tokens) is not int or costs.kv_tokens < 1):
        return False
    try:
        BatchLimits(**costs.limits)
        terms = start_terms(costs.roofline)
        return all(terms[name] > 0 for name in FORMS[costs.form])
    except (TypeError, KeyError, ValueError, AttributeError, ArithmeticError, UsageError):
        return False


def _numbers(values: Any) -> bool:
    return isinstance(values, dict) and all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 for value in values.values()
    )
