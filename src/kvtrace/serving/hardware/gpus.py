"""GPUs: peak arithmetic, memory bandwidth, memory and price, each a row of GPUS or a JSON file with the same keys.

Peaks are the vendors' public data-sheet figures, without sparsity, and shares are public measurements; prices are
assumptions: an hour's rent on demand. gpu_table.py has the figures.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from pathlib import Path

from ..._base.errors import UsageError
from .columns import number
from .described import read_object
from .gpu_table import GPU_FIGURES


@dataclass(frozen=True)
class Gpu:
    """One GPU, by its data sheet; UsageError if a figure is not valid."""

    name: str
    flops: float  # dense BF16 FLOP a second
    bandwidth: float  # bytes a second between HBM and the chip
    memory: float  # bytes of HBM
    price_per_hour: float  # USD
    matmul_share: float = 0.8  # of `flops` that BF16 products reach; the default is the median of the table
    bandwidth_share: float = 0.9  # of `bandwidth` that streaming reaches

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise UsageError("A GPU's name must be a text.")
        for field, greatest in (("flops", 1e30), ("bandwidth", 1e30), ("memory", 1e18)):
            number(f"a GPU's {field}", getattr(self, field), 1, greatest)
        number("a GPU's price_per_hour", self.price_per_hour, 0, 1e9)
        for field in ("matmul_share", "bandwidth_share"):
            number(f"a GPU's {field}", getattr(self, field), 1e-6, 1)


GPUS = {name: Gpu(name, **figures) for name, figures in GPU_FIGURES.items()}
KEYS = [field.name for field in fields(Gpu)]
REQUIRED = [field.name for field in fields(Gpu) if field.default is MISSING]
HINT = f"Try {', '.join(GPUS)}, or a JSON file with {', '.join(REQUIRED)}."


def gpu(name_or_path: str | Path) -> Gpu:
    """A row of GPUS by its name, or the GPU of a JSON file; UsageError for anything else.

    >>> gpu("H100").memory
    80000000000.0
    """
    if not isinstance(name_or_path, (str, Path)):
        raise UsageError(f"A GPU is a name or a file. {HINT}")
    if str(name_or_path).lower() in GPUS:
        return GPUS[str(name_or_path).lower()]
    described = read_object(name_or_path, UsageError, HINT)
    missing = [key for key in REQUIRED if key not in described]
    if missing:
        raise UsageError(f"{name_or_path}: lacks {', '.join(missing)}. {HINT}")
    if not described.keys() <= set(KEYS):
        raise UsageError(f"{name_or_path}: has unknown keys. {HINT}")
    wrong = None
    try:
        return Gpu(**described)
    except UsageError as error:
        wrong = str(error)
    raise UsageError(f"{name_or_path}: {wrong}")
