"""What to expect of times without a recording: the measured errors of the nearest deployments.

hardware/measured.json has the errors of such times (simulated / measured - 1) on public measurements, each a closed
loop, and on recordings; `python -m benchmarks.silicon --errors FILE` writes it. Nearest is the deployment itself; then
others with the same GPU, kind of model, engine and number of GPUs; then the same GPU and kind of model; then the same
GPU. Otherwise nothing was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import orjson

from .._base.results import Described

if TYPE_CHECKING:
    from .deployment import Deployment
    from .models.shape import ModelShape

Level = Literal["deployment", "kind, engine and GPUs", "kind", "GPU", "not measured"]

FILE = Path(__file__).with_name("hardware") / "measured.json"
LOADS = ((8, "1 to 8"), (32, "9 to 32"), (128, "33 to 128"), (1 << 62, "more than 128"))  # requests at once
ENOUGH = 10  # measurements at a load, without which all loads count
SPREAD = 5  # measurements that have an interval
BITS = (4, 8, 16)  # of a weight
SIZES = ("layers", "hidden", "heads", "kv_heads", "experts", "vocabulary")  # of one architecture
ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}
MOST_MODELS = 3  # that are named
FITTED = "development"  # the source of measurements to which constants of kvtrace were fitted
PREFIX = "Times without a recording: "


class MeasuredErrors(NamedTuple):
    """A row of measured.json: the errors on one deployment at the loads of a class."""

    gpu: str
    model: str  # of the catalog
    kind: str
    engine: str
    precision: str  # of the weights, such as fp8
    tp: int
    dp: int
    ep: bool
    requests_at_once: str  # of LOADS
    source: str  # the side of its public measurements, or "recording"
    tpot: tuple[float, ...]  # simulated / measured - 1, in ascending order; of the means
    ttft: tuple[float, ...]  # only where it was measured without compilations

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return self.tp * self.dp


@cache
def measured() -> tuple[MeasuredErrors, ...]:
    """The rows of measured.json."""
    return tuple(rows_of(FILE.read_bytes()))


def rows_of(text: bytes | str) -> list[MeasuredErrors]:
    """The rows of a file as `text_of` writes it."""
    rows = orjson.loads(text)["rows"]
    return [MeasuredErrors(**row | {name: tuple(row[name]) for name in ("tpot", "ttft")}) for row in rows]


def text_of(rows: Iterable[MeasuredErrors]) -> str:
    """The text of a measured.json, a row a line.

    >>> place = ("h100", "qwen3-32b", "dense", "vllm", "bf16", 1, 1, False)
    >>> row = MeasuredErrors(*place, "1 to 8", "recording", (0.1,), ())
    >>> rows_of(text_of([row])) == [row]
    True
    """
    lines = ",\n".join(f"  {orjson.dumps(row._asdict()).decode()}" for row in sorted(rows))
    about = "errors of times without a recording, simulated / measured - 1; python -m benchmarks.silicon --errors"
    return f'{{\n "about": "{about}",\n "rows": [\n{lines}\n ]\n}}\n'


def load_class(requests_at_once: float) -> str:
    """The class of a load, by the requests that run at once on all GPUs of a deployment.

    >>> load_class(0.5), load_class(8.0), load_class(8.1)
    ('1 to 8', '1 to 8', '9 to 32')
    """
    return next(name for most, name in LOADS if requests_at_once <= most)


def model_kind(shape: ModelShape) -> str:
    """The kind of a model: whether it has experts, and what its layers keep beside keys and values of all tokens.

    >>> from kvtrace.serving.models import model_shape
    >>> [model_kind(model_shape(name)) for name in ("qwen3-32b", "gpt-oss-120b", "deepseek-v3")]
    ['dense', 'experts, windows', 'experts, latent attention']
    """
    kinds = {kind.kind for kind in shape.cache}
    parts = ["experts" if shape.experts else "dense"]
    if "latent" in kinds:
        parts.append("sparse latent attention" if shape.indexer_layers else "latent attention")
    if kinds & {"window", "chunk"}:
        parts.append("windows")
    return ", ".join([*parts, "states"] if "state" in kinds else parts)


@dataclass(frozen=True)
class ErrorSpread(Described):
    """The errors of a time, simulated / measured - 1."""

    measurements: int
    mean_absolute: float
    median: float
    low: float | None  # the 5 % quantile; None for fewer than five measurements
    high: float | None  # the 95 % quantile

    @classmethod
    def of(cls, errors: Sequence[float]) -> ErrorSpread | None:
        """The spread of some errors; None if there are none.

        >>> ErrorSpread.of([-0.1, 0.3])
        ErrorSpread(measurements=2, mean_absolute=0.2, median=0.1, low=None, high=None)
        """
        if not errors:
            return None
        figures = [np.abs(errors).mean(), *np.quantile(errors, (0.5, 0.05, 0.95))]
        mean, median, low, high = (round(float(figure), 4) for figure in figures)
        return cls(len(errors), mean, median, *((low, high) if len(errors) >= SPREAD else (None, None)))

    def in_words(self, off: str = "") -> str:
        """The errors in a sentence, with words for a mean of several.

        >>> ErrorSpread.of([-0.104, 0.3]).in_words(" off on average"), ErrorSpread.of([-0.104]).in_words()
        ('20 % off on average (median +10 %)', '10 % too short')
        """
        if self.measurements == 1:
            return f"{_percent(self.mean_absolute)} too {'short' if self.median < 0 else 'long'}"
        return f"{_percent(self.mean_absolute)}{off} (median {_percent(self.median, '+')})"

    @property
    def factors(self) -> list[float] | None:
        """The measured times as multiples of simulated ones, at both ends of the interval; None without one.

        >>> ErrorSpread(9, 0.2, 0.0, -0.2, 0.25).factors
        [0.8, 1.25]
        """
        if self.low is None or self.high is None:
            return None
        return [1 / (1 + self.high), 1 / max(1 + self.low, 1e-3)]


def _percent(share: float, sign: str = "") -> str:
    return f"{100 * share:{sign}.0f} %".replace("-0 %", "0 %").replace("+0 %", "0 %")


@dataclass(frozen=True)
class ExpectedError(Described):
    """The measured error of times like those of a result that rests on no recording."""

    level: Level  # what the measured deployments share with this one
    measured: str  # these deployments, in words; "" if there are none
    requests_at_once: str | None  # the load of these measurements; None: of all loads
    held_out: int  # of these measurements, those to which no constant of kvtrace was fitted
    tpot_error: ErrorSpread | None  # None: not measured
    ttft_error: ErrorSpread | None
    text: str  # all that in a sentence or two


def expected_error(
    deployment: Deployment, requests_at_once: float | None = None, rows: Sequence[MeasuredErrors] | None = None
) -> ExpectedError:
    """The measured error of the deployments that are nearest to one.

    Args:
        deployment: The engine, the model and the GPUs.
        requests_at_once: That run on all its GPUs; None: all loads count.
        rows: What was measured; the default is measured.json.

    Raises:
        UsageError: The deployment has no model or no GPU.

    >>> from kvtrace.serving.deployment import Deployment
    >>> expected_error(Deployment("llama-3.1-8b", gpu="t4")).text
    'Times without a recording: not measured on T4. Calibrate with a recording of your engine before you trust them.'
    """
    here = _place(deployment)
    level, near = _nearest(here, measured() if rows is None else rows)
    if not near:
        advice = "Calibrate with a recording of your engine before you trust them."
        return ExpectedError(level, "", None, 0, None, None, f"{PREFIX}not measured on {here.label}. {advice}")
    load, loaded, note = None, near, ""
    if requests_at_once is not None:
        wanted = load_class(requests_at_once)
        alike = [row for row in near if row.requests_at_once == wanted]
        if sum(len(row.tpot) for row in alike) >= ENOUGH:
            load, loaded, note = wanted, alike, f" with {wanted} requests at once"
        elif not alike:
            note = f", none with {wanted} requests at once"
    tpot, ttft = (ErrorSpread.of(sorted(e for row in loaded for e in getattr(row, name))) for name in ("tpot", "ttft"))
    words, held_out = _in_words(level, loaded, here), sum(len(row.tpot) for row in loaded if row.source != FITTED)
    return ExpectedError(level, words, load, held_out, tpot, ttft, _sentence(level, f"{words}{note}", tpot, ttft))


class _Place(NamedTuple):
    """What decides how near a deployment is."""

    gpu: str | None  # None: not of the table
    label: str
    kind: str
    engine: str
    gpus: int
    sizes: tuple[int, ...]
    bits: int
    parallel: tuple[int, int, bool] | None  # TP, DP and EP; None: it has more, which nobody measured


def _place(deployment: Deployment) -> _Place:
    from .hardware.gpus import GPUS, gpu, gpu_label
    from .models.shape import model_shape

    card, shape = gpu(deployment.card), model_shape(deployment.served_model, dtype=deployment.weights_dtype)
    row, dp = GPUS.get(card.name), deployment.data_parallel_size
    is_known = row is not None and replace(card, price_per_hour=row.price_per_hour) == row
    plain = deployment.gpus_per_instance == deployment.tensor_parallel_size and deployment.speculative is None
    plain = plain and deployment.decode_context_parallel_size == 1
    return _Place(
        card.name if is_known else None, gpu_label(card.name), model_kind(shape), deployment.engine,
        deployment.gpus_per_instance * dp, _sizes(shape), _bits(shape),
        (deployment.tensor_parallel_size, dp, deployment.enable_expert_parallel) if plain else None,
    )  # fmt: skip


def _sizes(shape: ModelShape) -> tuple[int, ...]:
    return tuple(getattr(shape, name) for name in SIZES)


def _bits(shape: ModelShape) -> int:
    """Bits of most weights of the layers."""
    parameters = shape.layer_parameters + shape.routed_parameters
    bits = 8 * shape.matrix_bytes / parameters if parameters else 8 * shape.bytes_per_parameter
    return min(BITS, key=lambda each: abs(np.log(each / bits)))


@cache
def _sizes_of(model: str) -> tuple[int, ...]:
    from .models.shape import model_shape

    return _sizes(model_shape(model))


def _nearest(here: _Place, rows: Sequence[MeasuredErrors]) -> tuple[Level, list[MeasuredErrors]]:
    """The nearest rows, and what they share with a deployment."""
    levels: dict[Level, Callable[[MeasuredErrors], bool]] = {
        "deployment": lambda row: here.parallel == (row.tp, row.dp, row.ep)
        and here.engine == row.engine and here.kind == row.kind and here.bits == _bits_of(row.precision)
        and here.sizes == _sizes_of(row.model),
        "kind, engine and GPUs": lambda row: here.parallel is not None
        and (here.kind, here.engine, here.gpus) == (row.kind, row.engine, row.gpus),
        "kind": lambda row: here.kind == row.kind,
        "GPU": lambda row: True,
    }  # fmt: skip
    there = [row for row in rows if row.gpu == here.gpu]
    for level, is_near in levels.items():
        if near := [row for row in there if is_near(row)]:
            return level, near
    return "not measured", []


def _bits_of(precision: str) -> int:
    """Bits of a weight: 4 of fp4 and int4."""
    return next(bits for bits in BITS if precision.endswith(str(bits)))


def _in_words(level: Level, rows: Sequence[MeasuredErrors], here: _Place) -> str:
    """What was measured, in words."""
    names = list(dict.fromkeys(row.model for row in rows))
    models = ", ".join(names) if len(names) <= MOST_MODELS else f"{len(names)} models"
    engine, where = ENGINES.get(here.engine, here.engine), f"{here.gpus} x {here.label}"
    if level == "deployment":
        return f"{models} in {engine} on {where}"
    if level == "kind, engine and GPUs":
        return f"{kind_in_words(here.kind)} in {engine} on {where} ({models})"
    return f"{kind_in_words(here.kind) if level == 'kind' else 'other kinds of model'} on {here.label} ({models})"


def kind_in_words(kind: str) -> str:
    """Models of a kind, in words.

    >>> kind_in_words("dense"), kind_in_words("experts, windows")
    ('dense models', 'models with experts and windows')
    """
    first, *others = kind.split(", ")
    if first == "dense":
        return "dense models" + (f" with {' and '.join(others)}" if others else "")
    return f"models with {' and '.join([first, *others])}"


def _sentence(level: Level, where: str, tpot: ErrorSpread | None, ttft: ErrorSpread | None) -> str:
    assert tpot is not None
    count = f"{tpot.measurements:,} measurement{'' if tpot.measurements == 1 else 's'}"
    first = f", TTFT {ttft.in_words()}" if ttft else ", TTFT not measured"
    mine = "" if level == "deployment" else " This deployment itself was not measured."
    return f"{PREFIX}on {count} of {where}, TPOT was {tpot.in_words(' off on average')}{first}.{mine}"
