"""The costs of an engine's steps as they were fitted to a recording, for the same GPU with this or another model.

A rate is fitted as seconds per token, pair or byte. `per_unit` keeps the FLOP and bytes that a unit stands for, so that
another model's rates follow from its config.json: the GPU reaches the same share of its peaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import orjson

from .._base.errors import InputError, UsageError
from .._base.output_files import write_atomically
from .hardware.described import read_object
from .hardware.gpus import GPUS
from .hardware.links import PCIE, Link
from .hardware.models import ModelShape, model_shape
from .operating_range import LABELS, OperatingRange, range_of_run
from .simulation import ServingRun, StepCost
from .step_terms import with_exchange, with_experts, without_experts

VERSION = 1
HINT = "Write the file with kvtrace calibrate."
TERMS = tuple(field.name for field in fields(StepCost))
ALLOWANCE = 0.1  # beyond the range, without an error


def units_of(model: ModelShape, gpus: int = 1) -> dict[str, float]:
    """What one unit of each term stands for, on each of the GPUs: FLOP, bytes, or layers for the overhead.

    A token is multiplied by the layers, and a step reads the layers and the head; the embedding is a look-up.
    """
    token, pair = 2.0 * model.matrix_parameters / gpus, model.flops_per_pair / gpus
    step, read = (model.matrix_bytes + model.head_bytes) / gpus, model.kv_bytes_per_token / gpus
    return {
        "token_s": token, "pair_s": pair, "step_s": step, "read_s": read, "overhead_s": float(model.layers),
        "request_s": 1.0, "attention_pair_s": pair, "attention_read_s": read, "exchange_s": 1.0,
        "expert_token_s": token, "expert_step_s": step, "expert_share": 1.0,
    }  # fmt: skip


@dataclass(frozen=True)
class Costs:
    """The fitted costs, where they come from, how far the recording went, and their errors on its held-out part."""

    model: str
    gpu: str
    gpus: int
    scheduler: str
    form: str
    terms: Mapping[str, float]  # term of StepCost -> seconds
    per_unit: Mapping[str, float]  # term -> FLOP, bytes or layers that a unit stands for
    seen: OperatingRange
    errors: Mapping[str, float]  # such as ttft_s_mean -> relative error on the held-out part

    @property
    def step_cost(self) -> StepCost:
        """The cost of a step of the model that was measured."""
        return StepCost(**self.terms)

    def for_model(
        self, model: ModelShape | dict[str, Any] | str | Path, *, gpus: int = 1, link: Link | None = None
    ) -> StepCost:
        """The cost of a step of another model on the same kind of GPU.

        The GPU reaches the same share of its peaks, and the overhead grows with the layers. Routed experts are terms of
        their own. Several GPUs divide the work, and exchange the activations of each token twice a layer; the costs
        were then measured on one GPU.

        Args:
            model: A ModelShape, a model's name, or its config.json.
            gpus: The GPUs of an instance, by tensor parallelism.
            link: What connects them; the default is that of the GPU in the catalog, else PCIe 4.0.

        Raises:
            UsageError: gpus is not valid, or the costs were measured on several GPUs.
        """
        shape = model if isinstance(model, ModelShape) else model_shape(model)
        if type(gpus) is not int or gpus < 1:
            raise UsageError("--gpus must be at least 1.")
        if self.gpus > 1:
            raise UsageError(f"The costs were measured on {self.gpus} GPUs. Scale costs that were measured on one.")
        units = units_of(shape, gpus)
        fitted = asdict(without_experts(self.step_cost))
        terms = {name: seconds * units[name] / self.per_unit[name] for name, seconds in fitted.items()}
        link = link or (GPUS[self.gpu].link if self.gpu in GPUS else PCIE)
        return with_exchange(with_experts(StepCost(**terms), shape), shape, gpus, link)

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


def read_costs(path: str | Path) -> Costs:
    """Read a costs.json.

    Raises:
        UsageError: The file does not exist.
        InputError: It is not a costs.json of this version.
    """
    described = read_object(path, InputError, HINT)
    if described.pop("version", None) != VERSION:
        raise InputError(f"{path}: not a costs.json of version {VERSION}. {HINT}")
    names = [field.name for field in fields(Costs)]
    if set(described) != set(names):
        raise InputError(f"{path}: has missing or unknown keys. {HINT}")
    for name, keys in (("terms", TERMS), ("per_unit", TERMS), ("seen", tuple(LABELS))):
        if not _numbers(described[name]) or set(described[name]) != set(keys):
            raise InputError(f"{path}: {name} does not hold {', '.join(keys)}, as numbers from 0 on. {HINT}")
    if not all(value > 0 for value in described["per_unit"].values()) or type(described["gpus"]) is not int:
        raise InputError(f"{path}: per_unit or gpus is not valid. {HINT}")
    return Costs(**{**described, "seen": OperatingRange(**described["seen"])})


def _numbers(values: Any) -> bool:
    return isinstance(values, dict) and all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 for value in values.values()
    )
