"""GPUs: peak arithmetic, bandwidth, memory, link and price, each a row of GPUS or a JSON file with the same keys.

Peaks are the vendors' public data-sheet figures, without sparsity, and shares are public measurements; prices are
assumptions: an hour's rent on demand. gpus.json has the figures and their sources.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..._base.errors import UsageError
from ..._base.input_files import read_object
from .columns import number
from .gpu_figures import FIGURES
from .links import LINKS, PCIE, Link, link_of


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
