"""GPUs: peak arithmetic, memory bandwidth, memory and price, each a row of GPUS or a JSON file with the same keys.

Peaks are NVIDIA's public data-sheet figures, without sparsity; prices are assumptions: an hour's rent on demand.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from ..._base.errors import UsageError
from .columns import number
from .described import read_object


@dataclass(frozen=True)
class Gpu:
    """One GPU, by its data sheet; UsageError if a figure is not valid."""

    name: str
    flops: float  # dense BF16 FLOP a second
    bandwidth: float  # bytes a second between HBM and the chip
    memory: float  # bytes of HBM
    price_per_hour: float  # USD

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise UsageError("A GPU's name must be a text.")
        for field, greatest in (("flops", 1e30), ("bandwidth", 1e30), ("memory", 1e18)):
            number(f"a GPU's {field}", getattr(self, field), 1, greatest)
        number("a GPU's price_per_hour", self.price_per_hour, 0, 1e9)


# with sparsity BF16 is twice this: 1,978.9 TFLOP/s on the data sheets of the H100 and the H200, 624 on the A100's
GPUS = {
    "h100": Gpu("h100", flops=989.4e12, bandwidth=3.35e12, memory=80e9, price_per_hour=3.00),  # SXM, HBM3
    "h200": Gpu("h200", flops=989.4e12, bandwidth=4.8e12, memory=141e9, price_per_hour=3.80),  # SXM, HBM3e
    "a100": Gpu("a100", flops=312e12, bandwidth=2.039e12, memory=80e9, price_per_hour=1.80),  # SXM, 80 GB, HBM2e
}
KEYS = [field.name for field in fields(Gpu)]
HINT = f"Try {', '.join(GPUS)}, or a JSON file with {', '.join(KEYS)}."


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
    missing = [key for key in KEYS if key not in described]
    if missing:
        raise UsageError(f"{name_or_path}: lacks {', '.join(missing)}. {HINT}")
    if len(described) > len(KEYS):
        raise UsageError(f"{name_or_path}: has unknown keys. {HINT}")
    wrong = None
    try:
        return Gpu(**described)
    except UsageError as error:
        wrong = str(error)
    raise UsageError(f"{name_or_path}: {wrong}")
