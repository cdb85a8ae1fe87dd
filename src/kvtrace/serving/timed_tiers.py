"""The tiers of an instance as people write them for a simulation in time: `hbm=5000,dram=50000@25GB`."""

from __future__ import annotations

from collections.abc import Callable

from .._base.errors import UsageError
from .._base.units import size_bytes
from ..cache.tiered import parse_tiers
from .schedulers.base import Tier

EXAMPLE = "Try hbm=5000,dram=50000@25GB: the first tier, then others with their bytes per second."


def parse_timed_tiers(text: str, parse: Callable[[str], int], block_bytes: float) -> tuple[int, list[Tier]]:
    """Parse tiers, the fastest first; each but the first one has a rate in bytes per second.

    Args:
        text: NAME=CAPACITY and then NAME=CAPACITY@RATE, separated by commas.
        parse: Turns the text of a capacity into blocks.
        block_bytes: The bytes of a block.

    Returns:
        The blocks of the first tier, and the tiers below it.

    Raises:
        UsageError: The text does not name tiers in this form.

    >>> parse_timed_tiers("hbm=10,dram=200@4GB/s", int, 2e6)
    (10, [Tier(name='dram', capacity=200, fetch_seconds=0.0005, store_seconds=None, policy='lru')])
    """

    def capacity_and_rate(amount: str) -> tuple[int, int | None]:
        capacity, at, rate = amount.partition("@")
        return parse(capacity.strip()), size_bytes(rate.strip().removesuffix("/s")) if at else None

    (_, (first, no_rate)), *lower = parse_tiers(text, capacity_and_rate).items()
    if no_rate is not None or not lower:
        raise UsageError(f"With --gpu, --tiers names a tier without a rate and tiers below it. {EXAMPLE}")
    tiers = []
    for name, (capacity, rate) in lower:
        if not rate:
            raise UsageError(f"With --gpu, tier {name} needs a rate. {EXAMPLE}")
        tiers.append(Tier(name, capacity, block_bytes / rate))
    return first, tiers
