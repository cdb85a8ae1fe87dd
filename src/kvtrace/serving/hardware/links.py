"""What connects the GPUs of an instance: the bandwidth and the latency of the all-reduces of tensor parallelism.

gpus.json has the links with their sources; each GPU there names its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..._base.errors import UsageError
from .columns import number
from .gpu_figures import FIGURES

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
    found = LINKS.get(name) if isinstance(name, str) else None
    if found is None:
        raise UsageError(f"link must be one of {', '.join(LINKS)}.")
    return found
