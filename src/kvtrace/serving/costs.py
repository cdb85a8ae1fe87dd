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

from .._base.errors import InputError, UsageError
from .._base.output_files import write_atomically
from .hardware.described import read_object
from .hardware.gpus import Gpu
from .hardware.links import Link
from .hardware.models import ModelShape, model_shape
from .hardware.roofline import Roofline
from .operating_range import LABELS, OperatingRange, range_of_run
from .plan_runs import step_cost
from .simulation import ServingRun, StepCost

VERSION = 1
HINT = "Write the file with kvtrace calibrate."
TERMS = tuple(field.name for field in fields(StepCost))
FORMS = {  # name -> its terms; "max" takes the time of attention within that of the matrices, the others beside it
    "sum": ("token_s", "step_s", "overhead_s", "attention_pair_s", "attention_read_s"),
    "sum-request": ("token_s", "step_s", "overhead_s", "request_s", "attention_pair_s", "attention_read_s"),
    "max": ("token_s", "pair_s", "step_s", "read_s", "overhead_s"),
}
SIBLINGS = {"expert_token_s": "token_s", "expert_step_s": "step_s"}  # an unknown share of the peaks is that of another
EXTRAS = (*SIBLINGS, "exchange_s")  # terms of any form where the model has experts, or the instance several GPUs
NO_TIME = Link(1e30, 0.0)
# Attention reads 53 % of the peak at 256 tokens a request and 66 % at 512 (docs/serving/serving-model.md): as if each
# request had so many tokens more.
REQUEST_TOKENS = 125
ALLOWANCE = 0.1  # beyond the range, without an error


def start_terms(roofline: Roofline) -> dict[str, float]:
    """The roofline's value of each term, also of those that its own sum leaves out.

    >>> from kvtrace.serving.hardware import gpu, model_shape
    >>> terms = start_terms(Roofline(model_shape("llama-3.1-8b"), gpu("h100")))
    >>> [f"{terms[name]:.2g}" for name in ("token_s", "step_s", "request_s")]
    ['1.9e-05', '0.0046', '7.4e-06']
    """
    terms = asdict(step_cost(roofline))
    pair, read = terms["attention_pair_s"], terms["attention_read_s"]
    return terms | {"pair_s": pair, "read_s": read, "request_s": REQUEST_TOKENS * read}


def terms_of(form: str, start: Mapping[str, float]) -> tuple[str, ...]:
    """The terms of a form that have a value, by those of the roofline."""
    return tuple(name for name in (*FORMS[form], *EXTRAS) if start[name] > 0)


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

    def for_model(
        self, model: ModelShape | dict[str, Any] | str | Path, *, gpus: int = 1, link: Link | None = None
    ) -> StepCost:
        """The cost of a step of another model on the same kind of GPU, or on another number of them.

        Each term stays the same multiple of the roofline's, and the overhead grows with the layers. Routed experts that
        the measured model lacks have the multiples of other products and weights. What GPUs exchange is not scaled.

        Args:
            model: A ModelShape, a model's name, or its config.json.
            gpus: The GPUs of an instance, by tensor parallelism.
            link: What connects them; the default is that of the GPU.

        Raises:
            UsageError: gpus is not valid.
        """
        shape = model if isinstance(model, ModelShape) else model_shape(model)
        here = self.roofline
        overhead = here.step_overhead_s * shape.layers / here.model.layers
        there = replace(here, model=shape, gpus=gpus, step_overhead_s=overhead, link=link)
        measured, wanted = (start_terms(replace(one, link=NO_TIME)) for one in (here, there))
        factors = {
            name: _share(seconds - _exchange(here)[name], measured[name]) for name, seconds in self.terms.items()
        }
        factors |= {name: factors[other] for name, other in SIBLINGS.items() if not measured[name]}
        exchange = _exchange(there)
        terms = {name: factors[name] * wanted[name] + exchange[name] for name in (*FORMS[self.form], *SIBLINGS)}
        return StepCost(**terms, exchange_s=exchange["exchange_s"], expert_share=shape.expert_share)

    def extrapolation(self, run: ServingRun) -> dict[str, float]:
        """By how much a run goes beyond the recording: name of the quantity -> multiple of the largest value seen."""
        return range_of_run(run).beyond(self.seen)

    def require_seen(self, run: ServingRun, allowance: float = ALLOWANCE) -> None:
        """UsageError if a run goes beyond the recording by more than a share."""
        over = {name: times for name, times in self.extrapolation(run).items() if times > 1 + allowance}
        if over:
            told = ", ".join(f"{LABELS[name]}: {times:.2g} times" for name, times in over.items())
            raise UsageError(f"The run goes beyond what the costs were measured for ({told}). Record a larger load.")

    def to_dict(self) -> dict[str, Any]:
        """The content of a costs.json."""
        return {"version": VERSION, **asdict(self)}

    def save(self, path: str | Path) -> None:
        """Write a costs.json."""
        with write_atomically(path) as file:
            file.write(orjson.dumps(self.to_dict(), option=orjson.OPT_INDENT_2) + b"\n")


def _exchange(roofline: Roofline) -> dict[str, float]:
    """The part of each term that the GPUs of an instance take to exchange activations."""
    free = start_terms(replace(roofline, link=NO_TIME))
    return {name: seconds - free[name] for name, seconds in start_terms(roofline).items()}


def _share(seconds: float, start: float) -> float:
    """A fitted term as a multiple of the roofline's; a term that is all exchange is not known below a tenth."""
    return max(seconds / start, 0.1) if start else 1.0


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
        raise InputError(f"{path}: model_shape, gpu_figures, gpus or scheduler is not valid. {HINT}")
    return costs


def _is_valid(costs: Costs) -> bool:
    """Whether the model, its GPUs and the scheduler of a file can be used."""
    if not isinstance(costs.scheduler, str) or not isinstance(costs.errors, dict):
        return False
    try:
        terms = start_terms(costs.roofline)
        return all(terms[name] > 0 for name in FORMS[costs.form])
    except (TypeError, KeyError, ValueError, AttributeError, ArithmeticError, UsageError):
        return False


def _numbers(values: Any) -> bool:
    return isinstance(values, dict) and all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 for value in values.values()
    )
