"""Costs of a step fitted to measured kernels: to what the estimator of aiconfigurator-core says of a grid of steps.

The package (`pip install 'kvtrace[silicon]'`, Apache-2.0) has tables of kernels that ran in vLLM and SGLang, and adds
up those of a step. The grid goes as far as the deployment: to its largest step, its most requests at once, and the
tokens that its memory holds. A residual is a relative error; a term may be 0.1 to 20 times that of the roofline, with
a weak prior for what the grid does not show. Tables route tokens to experts as models do, which use fewer of them than
tokens that draw at random: the share of the experts that a token uses is fitted too.

No table holds what a host does between steps. Launches without a CUDA graph and the way to the engine are those of the
roofline. `HOST_S` was fitted to the rows of `python -m benchmarks.silicon` that are for development: the mean error of
TPOT falls from 20.8 to 13.1 % on the 208 rows of SGLang, and from 16.7 to 14.7 % on the 389 of vLLM.
"""

from __future__ import annotations

import json
import logging
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..._base.errors import KvtraceError, UsageError
from ..._base.results import Described, DescribedResult, column
from ..deployment import Deployment
from ..hardware.roofline import Roofline, roofline_of
from ..hardware.room import kv_room, step_limits
from ..models.config import Fields, read_config
from ..models.quantisation import NVFP4, STORED, quantisation
from ..models.shares import kv_format
from ..simulation import StepCost
from .costs import (
    ATTENTION,
    FORMS,
    HOST_TERMS,
    LEAST,
    Costs,
    OperatingRange,
    bulk_terms,
    exchange_terms,
    start_terms,
    stored,
    terms_of,
    window_terms,
)
from .fitting import scipy_optimize, step_seconds

SCHEMA = 1  # version of the keys of `KernelFit.to_dict`
PACKAGE = "aiconfigurator-core"
SYSTEMS = {  # our GPU -> its tables there
    "a100": "a100_sxm", "b200": "b200_sxm", "b300": "b300_sxm", "h100": "h100_sxm", "h200": "h200_sxm", "l40s": "l40s",
    "rtx-pro-6000-server": "rtx_pro_6000_server",
}  # fmt: skip
ARCHITECTURES = {"qwen2": "Qwen2ForCausalLM", "qwen2_moe": "Qwen2MoeForCausalLM"}  # without a config.json there
LONGEST, MOST_REQUESTS, LARGEST_STEP = 1 << 17, 1 << 10, 1 << 16  # of the grid, whatever the deployment allows
KINDS = {"decode": 0.7, "prompts": 0.15, "mixed": 0.15}  # of steps -> weight, about a server's time in them
HOST_S = {"vllm": 0.0005, "sglang": 0.0025}  # a step, beside its kernels
SHARE = "expert_share"
PRIOR = 0.02  # a term that is e times the roofline's counts as an error of 2 % of all steps
STARTS, SPREAD = 4, 0.7  # starting points: the roofline, and random ones around it
MOST = 20.0  # times the roofline


class Estimator(Protocol):
    """What the package knows of a deployment, in milliseconds; its `EngineHandle`."""

    def decode_step_latency(self, gen_tokens: int, isl: int, osl: int) -> float:
        """A step of `gen_tokens` requests that decode."""

    def predict_prefill_latency(self, bs: int, isl: int, prefix: int) -> float:
        """A step of `bs` prompts of `isl` tokens, of which `prefix` are cached."""

    def mixed_step_latency(self, ctx_tokens: int, gen_tokens: int, isl: int, osl: int) -> float:
        """A step of prompts of `isl` tokens, `ctx_tokens` in all, beside `gen_tokens` requests that decode."""


@dataclass(frozen=True, eq=False)
class StepGrid:
    """Steps and their times: one value per step, and the largest values of any.

    >>> grid = StepGrid.of([("decode", 8, 0, 800, 8, 0.01)], OperatingRange(8, 8, 800, 100), "by hand")
    >>> grid.seconds_of({"token_s": 0.001, "attention_read_s": 0.0001}).tolist()
    [0.088]
    """

    kind: np.ndarray  # a name of `KINDS`
    tokens: np.ndarray  # that the step computes
    pairs: np.ndarray  # n^2 - p^2 of prompts that grow from p to n tokens
    read: np.ndarray  # tokens of context that attention reads
    requests: np.ndarray
    seconds: np.ndarray  # as estimated
    seen: OperatingRange
    source: str  # the package and its tables, for people

    @classmethod
    def of(cls, steps: Sequence[tuple[Any, ...]], seen: OperatingRange, source: str) -> StepGrid:
        """The grid of some steps: each is the columns above, in this order."""
        names = ("kind", "tokens", "pairs", "read", "requests", "seconds")
        columns: dict[str, Any] = {name: np.array(column) for name, *column in zip(names, *steps, strict=True)}
        return cls(**columns, seen=seen, source=source)

    def seconds_of(self, terms: Mapping[str, float]) -> np.ndarray:
        """Seconds of the steps under terms of a StepCost; those that are missing are 0."""
        return step_seconds(terms, self.tokens, self.pairs, self.read, self.requests)


@dataclass(frozen=True)
class KindError(Described):
    """How far the fitted costs are from the estimator, over the steps of a kind."""

    kind: str = field(metadata=column("steps that"))  # a name of `KINDS`
    steps: int = field(metadata=column("steps", ","))
    mean: float = field(metadata=column("mean error", ".1%"))  # of the relative errors, in size
    largest: float = field(metadata=column("largest", ".1%"))


@dataclass(frozen=True, eq=False, repr=False)
class KernelFit(DescribedResult):
    """Costs that were fitted to kernel tables, and how far they are from them;
    https://github.com/kvtrace/kvtrace/blob/main/docs/serving/calibrate.md explains the keys."""

    _schema = SCHEMA
    source: str  # the package and its tables
    errors: list[KindError]
    forms: Mapping[str, float]  # form -> mean error of a step, weighted as in the fit
    costs: Costs

    _shown = ("kind", "steps", "mean", "largest")

    def _headline(self) -> str:
        return f"{self.source}: form {self.costs.form}, mean error of a step {self.forms[self.costs.form]:.1%}"

    def _columns(self) -> dict[str, list[Any]]:
        rows = [error.to_dict() for error in self.errors]
        return {name: [row[name] for row in rows] for name in rows[0]}


def calibrate_from_kernels(deployment: Deployment) -> KernelFit:
    """Fit the costs of a step to the kernel tables of aiconfigurator-core.

    Args:
        deployment: A model in vLLM or SGLang on GPUs. `max_num_seqs`, `max_num_batched_tokens` and `max_model_len`
            limit the grid as they limit the engine.

    Returns:
        The costs, as a recording gives them, and how far they are from the tables. The operating range is that of the
        grid, and no error of a simulated time is known.

    Raises:
        UsageError: The package is not installed, or has no tables for this model, GPU and engine.

    >>> from kvtrace.serving import Deployment, calibrate_from_kernels
    >>> calibrate_from_kernels(Deployment("llama-3.1-8b", gpu="tpu-v5e"))
    Traceback (most recent call last):
    ...
    kvtrace._base.errors.UsageError: aiconfigurator-core has no tables of tpu-v5e. It has a100, b200, b300, h100, h200,
    l40s, rtx-pro-6000-server; --gpu alone takes the roofline.
    """
    roofline_of(deployment)  # fails early if the model or the GPU is not valid
    _require_tables(deployment)
    scipy_optimize()
    return fit_grid(deployment, grid_of(deployment))


def fit_grid(deployment: Deployment, grid: StepGrid) -> KernelFit:
    """Fit the costs of a deployment to a grid of steps; the form with the smallest mean error is taken."""
    line = roofline_of(deployment)
    tried = {form: _fit_terms(form, line.ideal, grid) for form in FORMS}
    forms = {form: _mean(grid, _errors(grid, terms)) for form, terms in tried.items()}
    form = min(forms, key=lambda name: forms[name])
    errors = np.abs(_errors(grid, tried[form]))
    rows = [KindError(kind, int(part.sum()), float(errors[part].mean()), float(errors[part].max()))
            for kind in KINDS if (part := grid.kind == kind).any()]  # fmt: skip
    limits, host_s = step_limits(deployment), HOST_S[deployment.engine]
    start = start_terms(line)
    terms = {"token_s": 0.0, **tried[form], **{name: start[name] for name in HOST_TERMS}}
    terms["overhead_s"] += host_s
    costs = Costs(
        line.model.name, line.gpu.name, line.gpus, deployment.engine, form,
        asdict(StepCost(**terms)), line.model.to_dict(), asdict(line.gpu),
        {"step_tokens": limits.step_tokens, "requests": limits.requests}, None, grid.seen, {}, stored(deployment),
        f"{grid.source}, {1000 * host_s:g} ms of the host a step",
    )  # fmt: skip
    return KernelFit(grid.source, rows, forms, costs)


def _fit_terms(form: str, line: Roofline, grid: StepGrid) -> dict[str, float]:
    """The terms of a form that fit the steps best."""
    start = start_terms(line)
    names = [*terms_of(form, start), *([SHARE] if 0 < start[SHARE] < 1 else [])]
    lows, highs = np.log([_bounds(line, start, name) for name in names]).T
    weights = np.sqrt(_weights(grid))

    def terms_at(x: np.ndarray) -> dict[str, float]:
        terms = {name: start[name] * factor for name, factor in zip(names, np.exp(x).tolist(), strict=True)}
        multiples = {name: terms[name] / start[name] for name in (*ATTENTION, "exchange_s") if name in terms}
        bulk = bulk_terms(start, multiples.get("exchange_s", 0.0))
        others = {name: start[name] for name in (SHARE, "bulk_exchange_tokens")}
        return {**others, **window_terms(line, multiples), **bulk, **terms}

    def residuals(x: np.ndarray) -> np.ndarray:
        return np.concatenate([weights * np.log1p(_errors(grid, terms_at(x))), PRIOR * x / np.sqrt(len(x))])

    random, least_squares = np.random.default_rng(0), scipy_optimize().least_squares
    points = [np.zeros(len(names)), *random.normal(0, SPREAD, (STARTS - 1, len(names)))]
    inside = [np.clip(point, 0.99 * lows, 0.99 * highs) for point in points]
    fits = [least_squares(residuals, point, bounds=(lows, highs)) for point in inside]
    return terms_at(min(fits, key=lambda fit: fit.cost).x)


def _bounds(line: Roofline, start: Mapping[str, float], name: str) -> tuple[float, float]:
    """The least and the largest multiple of the roofline's term that `Costs.for_gpus` can return."""
    if name == SHARE:
        return LEAST, 1 / start[SHARE]
    exchange = 0.0 if name == "exchange_s" else exchange_terms(line)[name]
    return (LEAST * (start[name] - exchange) + exchange) / start[name] * (1 + 1e-9), MOST


def _errors(grid: StepGrid, terms: Mapping[str, float]) -> np.ndarray:
    return grid.seconds_of(terms) / grid.seconds - 1


def _weights(grid: StepGrid) -> np.ndarray:
    """A weight for each step: all steps of a kind have that of the kind; the sum is 1."""
    names, kinds, counts = np.unique(grid.kind, return_inverse=True, return_counts=True)
    weights = np.array([KINDS[name] for name in names.tolist()]) / counts
    return weights[kinds] / weights[kinds].sum()


def _mean(grid: StepGrid, errors: np.ndarray) -> float:
    return float((_weights(grid) * np.abs(errors)).sum())


# -- the grid ------------------------------------------------------------------------------------------------------


def grid_of(deployment: Deployment) -> StepGrid:
    """What the package says of the steps of a deployment; UsageError if it cannot."""
    last = None
    with _quiet(), tempfile.TemporaryDirectory() as folder:
        for system, options in _tries(deployment, Path(folder)):
            try:
                engine, tables = _estimator(folder, system, deployment.engine, options)
                steps, seen = ask(engine, deployment)
            except KvtraceError:  # ours: the model does not fit
                raise
            except Exception as error:  # its own: each is a deployment that it cannot estimate
                last = error
            else:
                source = f"{PACKAGE} {version(PACKAGE)}, tables of {deployment.engine} {tables} on {system}"
                return StepGrid.of(steps, seen, source)
    raise UsageError(
        f"{PACKAGE} has no data for {deployment.model_name} in {deployment.engine} on {deployment.gpu_name} "
        f"({_reason(last)}). --gpu alone takes the roofline."
    ) from last


def ask(engine: Estimator, deployment: Deployment) -> tuple[list[tuple[Any, ...]], OperatingRange]:
    """The steps of a grid, as the columns of `StepGrid`, and its largest values."""
    limits, room = step_limits(deployment), kv_room(deployment).tokens or LONGEST
    longest = min(room, LONGEST, deployment.max_model_len or LONGEST)
    most, largest = min(limits.requests, MOST_REQUESTS), min(limits.step_tokens, LARGEST_STEP)
    batches = [*_doubled(1, most)]
    decode = [
        ("decode", batch, 0, batch * context, batch, engine.decode_step_latency(batch, context - 1, 0))
        for batch in batches for context in _doubled(64, longest) if batch * context <= room
    ]  # fmt: skip
    cached = [
        ("prompts", new, new * (2 * before + new), before, 1, engine.predict_prefill_latency(1, before + new, before))
        for new in _doubled(16, min(largest, longest)) for before in [0, *_doubled(1024, longest - new)]
    ]  # fmt: skip
    several = [(count, new) for new in _doubled(64, min(largest, longest)) for count in _doubled(2, largest // new)]
    prompts = [
        ("prompts", count * new, count * new**2, 0, count, engine.predict_prefill_latency(count, new, 0))
        for count, new in several if count <= most and count * new <= room
    ]  # fmt: skip
    mixed = [
        ("mixed", count * new + batch, count * new**2, batch * (new + 1), count + batch,
         engine.mixed_step_latency(count * new, batch, new, 0))
        for count, new in [(1, new) for new in _doubled(256, min(largest, longest))] + several for batch in batches[2:]
        if count * new >= 256 and count * new + batch <= largest and count + batch <= most
        and (count + batch) * (new + 1) <= room
    ]  # fmt: skip
    steps: list[tuple[Any, ...]] = [*decode, *cached, *prompts, *mixed]
    seen = OperatingRange(largest, most, max(step[3] for step in steps), longest)
    return [(*counts, ms / 1000) for *counts, ms in steps], seen


def _doubled(least: int, most: int) -> Iterator[int]:
    """Powers of two times `least`, and `most`; nothing where that is less."""
    while least < most:
        yield least
        least *= 2
    if most >= 1 and least < 2 * most:
        yield most


# -- the package ---------------------------------------------------------------------------------------------------


def _require_tables(deployment: Deployment) -> None:
    """UsageError, before the package is looked for, where it can have no tables."""
    if deployment.engine not in ("vllm", "sglang"):
        raise UsageError(f"{PACKAGE} has tables of vllm and sglang, not of {deployment.engine}. Use one of these.")
    if deployment.gpu_name not in SYSTEMS:
        raise UsageError(
            f"{PACKAGE} has no tables of {deployment.gpu_name}. It has {', '.join(SYSTEMS)}; --gpu alone takes the "
            "roofline."
        )
    if deployment.gpus_per_instance > deployment.tensor_parallel_size or deployment.decode_context_parallel_size > 1:
        raise UsageError(
            f"{PACKAGE} is read for tensor, data and expert parallelism alone. --gpu alone takes the roofline."
        )


def _tries(deployment: Deployment, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tables of a deployment and the package's options for it, the best ones first; writes the model's config."""
    try:
        import aiconfigurator_core  # type: ignore[import-not-found]
    except ImportError:
        raise UsageError(f"{PACKAGE} is not installed. Try `pip install 'kvtrace[silicon]'`.") from None
    fields = read_config(deployment.served_model)
    catalog = Path(str(aiconfigurator_core.__file__)).parent / "model_configs"
    (folder / "config.json").write_text(json.dumps(_described(fields, deployment, catalog)))
    tensor, ranks = deployment.tensor_parallel_size, deployment.data_parallel_size
    whole = deployment.enable_expert_parallel
    fp8 = "compress_ratios" in fields or kv_format(fields, deployment)[0] == 8  # vLLM keeps compressed keys in FP8
    options = {
        "tp_size": tensor, "attention_dp_size": ranks, "moe_tp_size": 1 if whole else tensor * ranks,
        "moe_ep_size": tensor * ranks if whole else 1, "moe_quant_mode": _expert_mode(fields, deployment),
        "kvcache_quant_mode": "fp8" if fp8 else "bfloat16",
    }  # fmt: skip
    for products, attention in product(_product_modes(fields, deployment), (None, "bfloat16")):
        # attention in FP8 has no tables in places
        yield SYSTEMS[str(deployment.gpu_name)], {**options, "gemm_quant_mode": products, "fmha_quant_mode": attention}


def _estimator(folder: str, system: str, engine: str, options: Mapping[str, Any]) -> tuple[Estimator, str]:
    """The package's estimator, and the version of its tables."""
    from aiconfigurator_core.sdk.engine import EngineHandle, compile_engine  # type: ignore[import-not-found]
    from aiconfigurator_core.sdk.perf_database import resolve_query_version  # type: ignore[import-not-found]

    tables = resolve_query_version(system, engine, "current")
    return EngineHandle(compile_engine(folder, system, engine, tables, **options)), tables


def _reason(error: Exception | None) -> str:
    """Its own words, in a line, without paths."""
    words = re.sub(r"\s+", " ", re.sub(r"( at)? /\S+", "", str(error))).replace("perf database error: ", "").strip(" .")
    return f"{type(error).__name__}: {words}"[:160]


def _described(fields: Fields, deployment: Deployment, catalog: Path) -> dict[str, Any]:
    """The config.json of a model as the package reads it.

    The catalog leaves out what decides no cost. What the package wants beside it is in its own config.json of the
    model, if it has one of this size; else the architecture of models of this type is enough for it.
    """
    own = dict(fields.values)
    own.pop("vision_config", None)
    if deployment.weights_dtype is not None:
        own["quantization_config"] = STORED.get(deployment.weights_dtype)
    near = max(_models_of(catalog, str(own.get("model_type"))), key=lambda each: _alike(each, own), default={})
    names = near.get("architectures") or [ARCHITECTURES.get(str(own.get("model_type")))]
    same = all(near.get(name) == own.get(name) for name in ("num_hidden_layers", "hidden_size"))
    rest = near if same else {"max_position_embeddings": LONGEST}
    if "architectures" not in own and names == [None]:
        raise UsageError(
            f"{PACKAGE} has no tables for models of the type {own.get('model_type')}. --gpu alone takes the roofline."
        )
    return {**rest, "architectures": names, **{name: value for name, value in own.items() if value is not None}}


def _models_of(catalog: Path, model_type: str) -> Iterator[dict[str, Any]]:
    """The package's own models of a type, without their precision."""
    for path in sorted(catalog.glob("*_config.json")):
        text = path.read_text(encoding="utf-8")
        if f'"{model_type}"' not in text or path.name.endswith("hf_quant_config.json"):
            continue
        outer = json.loads(re.sub(r"-?\bInfinity\b", "null", text))
        inner = outer.get("text_config") or {}
        if model_type in (outer.get("model_type"), inner.get("model_type")):
            values = {**outer, **inner, "architectures": outer["architectures"]}
            for name in ("quantization_config", "text_config", "vision_config", "torch_dtype", "dtype"):
                values.pop(name, None)
            yield values


def _alike(values: Mapping[str, Any], own: Mapping[str, Any]) -> int:
    return sum(own.get(name) == value for name, value in values.items())


def _product_modes(fields: Fields, deployment: Deployment) -> tuple[str | None, ...]:
    """The package's names to try for the precision of products outside the experts; None = as it reads the config.

    vLLM's tables of FP8 in blocks hold launches, which CUDA graphs hide in a server: the smallest product takes 59 us
    on an H200, 231 on a B200 and 335 on an L40S; in FP8 without blocks it takes 8, and in SGLang 8 with them. So the
    time without blocks counts: the mean error of TPOT on all 597 rows for development falls from 29.0 to 14.4 %.
    """
    storage = quantisation(fields, deployment.weights_dtype).default
    blocks = storage is not None and storage.bits == 8 and storage.is_float and min(storage.group) > 1
    return ("fp8", None) if blocks and deployment.engine == "vllm" else (None,)


def _expert_mode(fields: Fields, deployment: Deployment) -> str | None:
    """The package's name of the experts' precision, where only they are in NVFP4; None = as it reads the config."""
    rules = quantisation(fields, deployment.weights_dtype)
    if rules.default == NVFP4:
        return None
    named = any(names.match("layers.0.mlp.experts.0.up_proj") and storage == NVFP4 for names, storage in rules.named)
    return "nvfp4" if named or rules.experts == NVFP4 else None


@contextmanager
def _quiet() -> Iterator[None]:
    """Its log is no part of ours."""
    log = logging.getLogger("aiconfigurator_core")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)
