"""The costs of an engine's steps: by the roofline, or fitted to a recording for the same GPU and this or another model.

A fitted term is a multiple of the roofline's term. Another model keeps these multiples: its own terms follow from its
config.json, and the GPU reaches the same share of its peaks. The operating range says how far the recording went: the
most tokens of a step, requests at once, and tokens of context.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from ..._base.errors import InputError, UsageError
from ..._base.input_files import read_object
from ..._base.output_files import write_atomically
from ..deployment import Deployment
from ..hardware.gpus import Gpu, Link, gpu
from ..hardware.roofline import Roofline, deployed_shape
from ..models.config import read_config
from ..models.shape import ModelShape, model_shape
from ..schedulers.base import BatchLimits
from ..serving_run import ServingRun
from ..simulation import StepCost


def roofline_cost(roofline: Roofline) -> StepCost:
    """Seconds per token and step, of routed experts, and of attention, the head and what GPUs exchange.

    The last ones overlap with nothing.
    """
    return StepCost(
        token_s=roofline.seconds_per_dense_token, step_s=roofline.seconds_per_step,
        request_s=roofline.seconds_per_request,
        overhead_s=roofline.head_s + roofline.fixed_s + roofline.exchange_s_per_step,
        attention_pair_s=roofline.seconds_per_pair, attention_read_s=roofline.seconds_per_cached_token,
        exchange_s=roofline.exchange_s_per_token, bulk_exchange_s=roofline.bulk_exchange_s_per_token,
        bulk_exchange_step_s=roofline.bulk_exchange_s_per_step,
        bulk_exchange_tokens=roofline.bulk_exchange_tokens, expert_token_s=roofline.seconds_per_expert_token,
        expert_step_s=roofline.seconds_for_experts, expert_share=roofline.model.expert_share,
        window_read_s=roofline.seconds_per_window_token, window_pair_s=roofline.seconds_per_window_pair,
        window_tokens=roofline.model.window_tokens, launch_s=roofline.terms.launch_s,
        front_request_s=roofline.terms.front_request_s, front_token_s=roofline.terms.front_token_s,
        front_delay_s=roofline.terms.front_delay_s,
    )  # fmt: skip


def step_cost(roofline: Roofline) -> StepCost:
    """The time of a step of an instance, by the roofline of its GPUs and model: the `cost` of a simulation in time.

    Args:
        roofline: From `roofline_of(deployment)`, or calibrated, from `Costs.for_deployment`.

    Returns:
        Seconds per token and step, likewise of routed experts; and of attention, the head and what GPUs exchange, which
        overlap with nothing.
    """
    return roofline.cost if isinstance(roofline, CalibratedRoofline) else roofline_cost(roofline)


LABELS = {"step_tokens": "tokens a step", "batch": "requests at once", "context": "tokens of context at once",
          "request_tokens": "tokens of a request"}  # fmt: skip


@dataclass(frozen=True)
class OperatingRange:
    """The largest values of a run; times outside this range are extrapolated."""

    step_tokens: int  # prompt tokens of a step
    batch: int  # requests that run at once
    context: int  # tokens of all requests that run at once
    request_tokens: int  # prompt and output of one request

    def beyond(self, seen: OperatingRange) -> dict[str, float]:
        """The values that are larger than those of another range, as multiples of them.

        >>> OperatingRange(2048, 90, 100, 10).beyond(OperatingRange(2048, 60, 100, 10))
        {'batch': 1.5}
        """
        mine, theirs = asdict(self), asdict(seen)
        return {name: mine[name] / max(theirs[name], 1) for name in LABELS if mine[name] > theirs[name]}


def range_of(
    started: np.ndarray,
    first: np.ndarray,
    ended: np.ndarray,
    computed: np.ndarray,
    tokens: np.ndarray,
    *,
    step_tokens: int,
) -> OperatingRange:
    """The range of requests that were served.

    Args:
        started: When each request was admitted, in seconds.
        first: When it had its first token.
        ended: When it ended.
        computed: The tokens of its prompt that were not cached.
        tokens: The tokens of its prompt and output.
        step_tokens: The limit of the scheduler.

    >>> times = [np.array(column) for column in ([0.0, 0.0, 5.0], [1.0, 1.0, 6.0], [4.0, 3.0, 7.0])]
    >>> range_of(*times, np.array([10, 20, 5]), np.array([12, 22, 9]), step_tokens=512)
    OperatingRange(step_tokens=30, batch=2, context=34, request_tokens=22)
    """
    served = ~np.isnan(ended)
    started, first, ended, computed, tokens = (column[served] for column in (started, first, ended, computed, tokens))
    if not len(ended):
        return OperatingRange(0, 0, 0, 0)
    _, step = np.unique(first, return_inverse=True)  # request -> the step that completed its prompt
    prompts = np.bincount(step, weights=computed)
    return OperatingRange(
        int(min(prompts.max(), step_tokens)), _most(started, ended, np.ones(len(ended))),
        _most(started, ended, tokens), int(tokens.max()),
    )  # fmt: skip


def range_of_run(run: ServingRun) -> OperatingRange:
    """The range of a simulated run; of several instances, the largest values of any."""
    limit = run.scheduler.limits.step_tokens if run.scheduler else 1 << 62
    trace = run.trace
    ranges = []
    for instance in range(run.instances):
        rows = run.instance == instance
        columns = (run.started_s, run.first_s, run.ended_s, trace.input_length - run.cached_tokens,
                   trace.input_length + trace.output_length)  # fmt: skip
        ranges.append(asdict(range_of(*(column[rows] for column in columns), step_tokens=limit)))
    return OperatingRange(**{name: max(row[name] for row in ranges) for name in LABELS})


def active_at(started: np.ndarray, ended: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """How many requests have started and not ended at each moment.

    >>> active_at(np.array([0.0, 1.0]), np.array([2.0, 3.0]), np.array([0.5, 1.5, 2.5])).tolist()
    [1, 2, 1]
    """
    return np.searchsorted(np.sort(started), moments, "right") - np.searchsorted(np.sort(ended), moments, "right")


def _most(started: np.ndarray, ended: np.ndarray, weights: np.ndarray) -> int:
    """The largest sum of weights at a time."""
    times = np.concatenate([ended, started])  # an end before a start at the same time
    changes = np.concatenate([-weights, weights])
    return int(np.cumsum(changes[np.argsort(times, kind="stable")]).max())


FORMS = {  # name -> its terms; "max" takes the time of attention within that of the matrices, the others beside it
    "sum": ("token_s", "step_s", "overhead_s", "attention_pair_s", "attention_read_s"),
    "sum-request": ("token_s", "step_s", "overhead_s", "request_s", "attention_pair_s", "attention_read_s"),
    "max": ("token_s", "pair_s", "step_s", "read_s", "overhead_s"),
}
SIBLINGS = {"expert_token_s": "token_s", "expert_step_s": "step_s"}  # an unknown share of the peaks is that of another
ATTENTION = ("pair_s", "read_s", "attention_pair_s", "attention_read_s")
EXTRAS = (*SIBLINGS, "exchange_s")  # terms of any form where the model has experts, or the instance several GPUs
EXCHANGE = ("exchange_s", "bulk_exchange_s", "bulk_exchange_step_s")
# Not fitted, terms of the engine and its machine: the same for another model, but launches grow with its layers.
HOST_TERMS = ("launch_s", "graph_tokens", "front_request_s", "front_token_s", "front_delay_s")
NO_TIME = Link(1e30, 0.0)
# Attention reads 53 % of the peak at 256 tokens a request and 66 % at 512 (docs/serving/models.md): as if each
# request had this many more tokens.
REQUEST_TOKENS = 125


def start_terms(roofline: Roofline) -> dict[str, float]:
    """The roofline's value of each term, also of those that its own sum leaves out.

    >>> from kvtrace.serving.hardware import gpu
    >>> from kvtrace.serving.models import model_shape
    >>> terms = start_terms(Roofline(model_shape("llama-3.1-8b"), gpu("h100")))
    >>> [f"{terms[name]:.2g}" for name in ("token_s", "step_s", "request_s")]
    ['1.9e-05', '0.0046', '7.4e-06']
    """
    terms = asdict(roofline_cost(roofline))
    pair, read = terms["attention_pair_s"], terms["attention_read_s"]
    return terms | {"pair_s": pair, "read_s": read, "request_s": terms["request_s"] + REQUEST_TOKENS * read}


def terms_of(form: str, start: Mapping[str, float]) -> tuple[str, ...]:
    """The terms of a form that have a value, by those of the roofline."""
    return tuple(name for name in (*FORMS[form], *EXTRAS) if start[name] > 0)


def exchange_terms(roofline: Roofline) -> dict[str, float]:
    """The part of each term that the GPUs of an instance take to exchange activations."""
    free = start_terms(replace(roofline, link=NO_TIME))
    return {name: seconds - free[name] for name, seconds in start_terms(roofline).items()}


def window_terms(roofline: Roofline, multiples: Mapping[str, float]) -> dict[str, float]:
    """The roofline's terms of layers with windows, with the multiples of the other layers' attention."""
    pair = multiples.get("attention_pair_s", multiples.get("pair_s", 1.0))
    read = multiples.get("attention_read_s", multiples.get("read_s", 1.0))
    return {
        "window_read_s": read * roofline.seconds_per_window_token,
        "window_pair_s": pair * roofline.seconds_per_window_pair,
        "window_tokens": roofline.model.window_tokens,
    }


def bulk_terms(start: Mapping[str, float], multiple: float) -> dict[str, float]:
    """The roofline's other way to exchange, with the multiple of `exchange_s`: their ratio is that of the link."""
    return {name: multiple * start[name] for name in EXCHANGE if name != "exchange_s"}


@dataclass(frozen=True)
class CalibratedRoofline(Roofline):
    """A model on GPUs whose terms are multiples of the roofline's.

    >>> from kvtrace.serving.hardware import gpu
    >>> from kvtrace.serving.models import model_shape
    >>> line = CalibratedRoofline(model_shape("llama-3.1-8b"), gpu("h100"), multiples={"token_s": 2.0})
    >>> [one.seconds_per_token / line.plain.seconds_per_token for one in (line, line.plain)]
    [2.0, 1.0]
    """

    form: str = "sum"
    multiples: Mapping[str, float] = field(default_factory=dict)  # term -> multiple; 1 where it has none
    host: Mapping[str, float] = field(default_factory=dict)  # term of HOST_TERMS -> its value; 0 where it has none
    source: str = ""  # what was measured, for people

    @property
    def plain(self) -> Roofline:
        """The same model and GPUs, not calibrated."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(Roofline)}
        return Roofline(**values)

    @property
    def cost(self) -> StepCost:
        """The time of a step."""
        free, exchange = start_terms(replace(self.plain, link=NO_TIME)), exchange_terms(self.plain)
        names = (*FORMS[self.form], *SIBLINGS)
        terms = {name: self._multiple(name) * free[name] + exchange[name] for name in names}
        if "request_s" in self.multiples and "request_s" not in FORMS[self.form]:  # states that were not measured
            terms["request_s"] = self.multiples["request_s"] * self.plain.seconds_per_request
        terms |= window_terms(self.plain, self.multiples)
        terms |= {name: self._multiple(name) * exchange[name] for name in EXCHANGE}
        terms["bulk_exchange_tokens"] = self.plain.bulk_exchange_tokens if terms["bulk_exchange_s"] else 0.0
        expert_share = min(1.0, self._multiple("expert_share") * free["expert_share"])
        return StepCost(**terms, **self.host, expert_share=expert_share)

    @property
    def seconds_per_dense_token(self) -> float:
        """As in the roofline, calibrated."""
        return self._multiple("token_s") * super().seconds_per_dense_token

    @property
    def seconds_per_expert_token(self) -> float:
        """As in the roofline, calibrated."""
        return self._multiple("expert_token_s") * super().seconds_per_expert_token

    @property
    def seconds_per_pair(self) -> float:
        """As in the roofline, calibrated."""
        return self._multiple("pair_s" if self.form == "max" else "attention_pair_s") * super().seconds_per_pair

    @property
    def seconds_per_window_pair(self) -> float:
        """As in the roofline, calibrated."""
        return window_terms(self.plain, self.multiples)["window_pair_s"]

    @property
    def seconds_per_window_token(self) -> float:
        """As in the roofline, calibrated."""
        return window_terms(self.plain, self.multiples)["window_read_s"]

    def _multiple(self, term: str) -> float:
        return self.multiples.get(term, self.multiples.get(SIBLINGS.get(term, ""), 1.0))


VERSION = 2  # 1 had no deployment: tensor parallelism over all GPUs
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
    deployment: Mapping[str, Any] = field(default_factory=dict)  # that was measured, as JSON, without its GPU
    kernels: str = ""  # the tables that they were fitted to, in place of a recording

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
    def measured(self) -> Deployment:
        """The deployment that was measured."""
        given = {"model": self.model, "tensor_parallel_size": self.gpus} | dict(self.deployment)
        return Deployment.from_dict(given | {"gpu": self.roofline.gpu})

    @property
    def basis(self) -> str:
        """What was measured, for people."""
        served = f"{self.model} on {self.gpus} x {self.gpu}"
        if self.kernels:
            return f"the kernels of {served} ({self.kernels})"
        return f"a recording of {served}, with the scheduler of {self.scheduler}"

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
        overhead = here.fixed_s * shape.layers / here.model.layers
        free, exchange = start_terms(replace(here, link=NO_TIME)), exchange_terms(here)
        multiples = {
            name: max((self.terms[name] - exchange[name]) / free[name], LEAST)
            for name in terms_of(self.form, free)
        }  # fmt: skip
        multiples |= {name: self.terms.get(name, 0.0) / exchange[name] for name in EXCHANGE if exchange[name]}
        if free["expert_share"]:
            multiples["expert_share"] = self.terms["expert_share"] / free["expert_share"]
        if shape.state_bytes and not here.model.state_bytes and "request_s" not in multiples:
            multiples["request_s"] = multiples.get("attention_read_s", multiples.get("read_s", 1.0))
        host = {name: self.terms.get(name, 0.0) for name in HOST_TERMS}
        host["launch_s"] *= shape.layers / here.model.layers
        return CalibratedRoofline(
            shape, here.gpu, self.gpus if gpus is None else gpus, step_overhead_s=overhead, link=link, form=self.form,
            multiples=multiples, host=host, source=self.basis,
        )  # fmt: skip

    @property
    def batch_limits(self) -> BatchLimits:
        """The limits of the engine that was measured."""
        return BatchLimits(**self.limits)

    def for_deployment(self, deployment: Deployment) -> CalibratedRoofline:
        """The model of a deployment on the same kind of GPU, as `for_gpus`; without a model, the measured one.

        UsageError if the deployment names another GPU.
        """
        if deployment.gpu is not None and gpu(deployment.gpu) != self.roofline.gpu:
            raise UsageError("--costs and --gpu cannot be combined. Use one of them.")
        measured = deployment.model is None or deployment == self.measured
        shape = None if measured else deployed_shape(deployment)
        return self.for_gpus(shape, gpus=deployment.gpus_per_instance)

    def measured_tokens(self, deployment: Deployment) -> int | None:
        """Tokens of KV in an instance, if they were measured and the memory is divided as it was there."""
        return self.kv_tokens if deployment.same_memory(self.measured) else None

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


def stored(deployment: Deployment) -> dict[str, Any]:
    """A deployment as a costs.json has it: with the fields of a model that is a file, without the GPU."""
    values = {name: value for name, value in deployment.to_dict().items() if name != "gpu"}
    if isinstance(deployment.model, str) and deployment.model == values.get("model"):
        return values
    return values | {"model": dict(read_config(deployment.served_model).values)}


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
    version = described.pop("version", None)
    if version == 1:
        described["deployment"] = {}
    elif version != VERSION:
        raise InputError(f"{path}: not a costs.json of version 1 or {VERSION}. {HINT}")
    described.setdefault("kernels", "")
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
    if not all(isinstance(text, str) for text in (costs.scheduler, costs.kernels)):
        return False
    if not all(type(number) in (int, float) for number in numbers):
        return False
    if costs.kv_tokens is not None and (type(costs.kv_tokens) is not int or costs.kv_tokens < 1):
        return False
    try:
        BatchLimits(**costs.limits)
        _ = costs.measured
        terms = start_terms(costs.roofline)
        return all(terms[name] > 0 for name in FORMS[costs.form])
    except (TypeError, KeyError, ValueError, AttributeError, ArithmeticError, UsageError):
        return False


def _numbers(values: Any) -> bool:
    return isinstance(values, dict) and all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 for value in values.values()
    )
