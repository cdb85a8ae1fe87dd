"""GPUs and the links between them: arithmetic, bandwidth, memory and price, each a row of GPUS or a JSON file.

gpus.json has the figures and their sources. Peaks are the vendors' public data-sheet figures, without sparsity, and
shares are public measurements; prices are assumptions: an hour's rent on demand. A link has the bandwidth and the
latency of the all-reduces of tensor parallelism. No figure was fitted to a recording of a served model.
docs/serving/models.md has the table. The formulas take numbers and columns of numbers, which are checked here: float64,
not negative, all of one shape.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from ..._base.errors import UsageError
from ..._base.input_files import read_object

MOST = float(1 << 53)  # up to here float64 represents every whole number


def columns(**given: Any) -> tuple[np.ndarray, ...]:
    """Each named number or array as float64, broadcast to one shape; UsageError names the faulty one.

    >>> [column.tolist() for column in columns(new=[1, 2], cached=3)]
    [[1.0, 2.0], [3.0, 3.0]]
    """
    checked = [column(name, values) for name, values in given.items()]
    shape: tuple[int, ...] | None = None
    with suppress(ValueError):
        shape = np.broadcast_shapes(*(values.shape for values in checked))
    if shape is None:
        raise UsageError(f"{', '.join(given)}: columns of different lengths. Give each one row per request.")
    return tuple(np.broadcast_to(values, shape) for values in checked)


def column(name: str, values: Any, *, endless: bool = False) -> np.ndarray:
    """A number or an array as float64, from 0 to 2**53; infinite values are valid only with `endless`."""
    array: np.ndarray | None = None
    with suppress(TypeError, ValueError):  # lists of different lengths
        array = np.asarray(values)
    if array is None or array.dtype.kind not in "iuf":
        raise UsageError(f"{name}: not a number or an array of numbers.")
    wide = array.astype(np.float64)
    fine = (wide >= 0) & ((wide <= MOST) | (endless & np.isinf(wide)))
    if not fine.all():
        raise UsageError(f"{name}: negative, not finite or beyond 2**53 in {np.count_nonzero(~fine):,} places.")
    return wide


def number(name: str, value: Any, least: float, greatest: float) -> None:
    """Raise UsageError unless the value is a number within the bounds, inclusive."""
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not is_number or not least <= value <= greatest:  # nan is not within any bounds
        raise UsageError(f"{name} must be a number from {least:g} to {greatest:g}.")


FIGURES: dict[str, Any] = orjson.loads(Path(__file__).with_name("gpus.json").read_bytes())


ALL_REDUCES = 2  # of a layer: after attention, after the MLP
ACTIVATION_BYTES = 2  # of a value that GPUs exchange: bf16


@dataclass(frozen=True)
class Link:
    """What connects the GPUs of one instance; UsageError if a figure is not valid.

    >>> round(Link(35e9, 20e-6).all_reduce_s(1 << 20, gpus=2) * 1e6)
    50
    """

    bytes_per_s: float = 24.7e9  # that an all-reduce reaches on each GPU, the bus bandwidth of nccl-tests
    latency_s: float = 20e-6  # of an all-reduce

    def __post_init__(self) -> None:
        number("a link's bytes_per_s", self.bytes_per_s, 1, 1e30)
        number("a link's latency_s", self.latency_s, 0, 3600)

    def all_reduce_s(self, size: float, gpus: int) -> float:
        """Seconds of an all-reduce of `size` bytes by a ring of GPUs: each sends 2 (n - 1) / n of them."""
        return self.latency_s + 2 * (gpus - 1) / gpus * size / self.bytes_per_s if gpus > 1 else 0.0


LINKS = {name: Link(row["bytes_per_s"], row["latency_s"]) for name, row in FIGURES["links"].items()}
PCIE = Link()  # PCIe 4.0 with 16 lanes and peer access


def link_of(name: object) -> Link:
    """A link by its name; UsageError if there is none.

    >>> link_of("pcie-5").bytes_per_s
    35000000000.0
    """
    link = LINKS.get(name) if isinstance(name, str) else None
    if link is None:
        raise UsageError(f"link must be one of {', '.join(LINKS)}.")
    return link


@dataclass(frozen=True)
class Gpu:
    """One GPU, by its data sheet; UsageError if a figure is not valid."""

    name: str
    flops: float  # dense BF16 FLOP a second
    bandwidth: float  # bytes a second between HBM and the chip
    memory: float  # bytes that the driver reports to programs, else those of the data sheet
    price_per_hour: float  # USD
    matmul_share: float = 0.8  # of `flops` that BF16 products reach; the default is the median of the table
    bandwidth_share: float = 0.9  # of `bandwidth` that streaming reaches
    fp8_flops: float | None = None  # dense FP8 FLOP a second; None: it computes FP8 weights in BF16
    link: Link = PCIE  # to the other GPUs of an instance

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise UsageError("A GPU's name must be a text.")
        for field, greatest in (("flops", 1e30), ("bandwidth", 1e30), ("memory", 1e18)):
            number(f"a GPU's {field}", getattr(self, field), 1, greatest)
        if self.fp8_flops is not None:
            number("a GPU's fp8_flops", self.fp8_flops, 1, 1e30)
        number("a GPU's price_per_hour", self.price_per_hour, 0, 1e9)
        for field in ("matmul_share", "bandwidth_share"):
            number(f"a GPU's {field}", getattr(self, field), 1e-6, 1)
        if not isinstance(self.link, Link):
            raise UsageError(f"a GPU's link must be a Link, or in a file one of {', '.join(LINKS)}.")


def _row(name: str, row: dict[str, Any]) -> Gpu:
    figures = {key: value for key, value in row.items() if key not in ("label", "link", "sources")}
    return Gpu(name, **figures, link=LINKS[row["link"]])


GPUS = {name: _row(name, row) for name, row in FIGURES["gpus"].items()}
KEYS = [field.name for field in fields(Gpu)]
REQUIRED = [field.name for field in fields(Gpu) if field.default is MISSING]
HINT = f"Try {', '.join(GPUS)}, or a JSON file with {', '.join(REQUIRED)}."


def gpu(name_or_path: str | Path) -> Gpu:
    """A row of GPUS by its name, or the GPU of a JSON file; UsageError for anything else, with the names that are near.

    >>> gpu("H100").flops
    989400000000000.0
    >>> gpu("4090")
    Traceback (most recent call last):
    kvtrace._base.errors.UsageError: 4090: No such file or directory. Did you mean rtx-4090? Try h100, h200, ...
    """
    if not isinstance(name_or_path, (str, Path)):
        raise UsageError(f"A GPU is a name or a file. {HINT}")
    if str(name_or_path).lower() in GPUS:
        return GPUS[str(name_or_path).lower()]
    near = near_names(str(name_or_path))
    meant = f"Did you mean {' or '.join(near)}? " if near else ""
    described = read_object(name_or_path, UsageError, meant + HINT)
    missing = [key for key in REQUIRED if key not in described]
    if missing:
        raise UsageError(f"{name_or_path}: lacks {', '.join(missing)}. {HINT}")
    if not described.keys() <= set(KEYS):
        raise UsageError(f"{name_or_path}: has unknown keys. {HINT}")
    wrong = None
    try:
        return Gpu(**described | ({"link": link_of(described["link"])} if "link" in described else {}))
    except UsageError as error:
        wrong = str(error)
    raise UsageError(f"{name_or_path}: {wrong}")


def near_names(name: str) -> list[str]:
    """Up to three names of GPUS that are like a wrong one: they contain it, are within it, or are spelt alike.

    >>> near_names("NVIDIA RTX PRO 6000 Server"), near_names("H100SXM"), near_names("b9000")
    (['rtx-pro-6000-server', 'rtx-pro-6000'], ['h100'], [])
    """
    flat = _letters(name)
    if len(flat) < 3:
        return []
    inside = [row for row in GPUS if _letters(row) in flat or flat in _letters(row)]
    inside.sort(key=lambda row: (abs(len(_letters(row)) - len(flat)), row))
    return inside[:3] or get_close_matches(name.lower(), GPUS, n=3, cutoff=0.7)


def _letters(name: str) -> str:
    """Letters and digits alone.

    >>> _letters("RTX-4090")
    'rtx4090'
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())
