"""What every scheduler says of itself: its limits, the demand that it needs, and how to build an instance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from ..._base.errors import UsageError
from ...cache.demand import BlockDemand
from ...cache.simulation import Setting
from ...trace.trace import Trace


@dataclass(frozen=True)
class BatchLimits:
    """The limits of a batch: tokens per step, and requests at once."""

    step_tokens: int = 8192
    requests: int = 256

    def __post_init__(self) -> None:
        for name, size in (("step-tokens", self.step_tokens), ("max-requests", self.requests)):
            if size < 1:
                raise UsageError(f"--{name} must be at least 1.")


@dataclass(frozen=True)
class Tier:
    """A tier below the first one: its capacity in blocks, and the time to fetch a block from it or to store one in it.

    Engines that write blocks to the tier as they compute them (vllm) use `store_seconds` and the order of eviction.
    """

    name: str
    capacity: int
    fetch_seconds: float  # seconds per block: bytes of a block / bandwidth
    store_seconds: float | None = None  # seconds per block in the other direction; None: as fetch_seconds
    policy: str = "lru"  # of vLLM's tier: lru or arc


class Scheduler(ABC):
    """A scheduler and its options."""

    name: ClassVar[str]
    version: ClassVar[str]  # of the engine whose steps it takes; empty if it is nobody's
    most_lower_tiers: ClassVar[int | None] = 0  # that its instances can have; None: any number
    copies_to_tiers: ClassVar[bool] = False  # a lower tier also holds the blocks above it
    layouts: ClassVar[bool] = False  # its caches can hold a CacheLayout of several groups

    @property
    @abstractmethod
    def limits(self) -> BatchLimits:
        """Its tokens per step and requests at once."""

    @abstractmethod
    def limited(self, limits: BatchLimits) -> Self:
        """The scheduler with other limits, and its other options."""

    @abstractmethod
    def setting_of(self, setting: Setting) -> Setting:
        """The setting of its caches. UsageError for a cache that it does not support."""

    def lengths(self, trace: Trace) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of each prompt and of each output."""
        return trace.input_length, trace.output_length

    def needs(self, demand: BlockDemand, setting: Setting) -> np.ndarray:
        """The smallest capacity in blocks at which each request is served; with less it is rejected."""
        return demand.max_blocks

    @abstractmethod
    def engine(self, setting: Setting, demand: BlockDemand, tiers: Sequence[Tier]) -> Any:
        """The compiled cache of one instance."""

    @abstractmethod
    def instance(self, engine: Any, requests: Any, cost: dict[str, float], *, prefetch: bool) -> Any:
        """The compiled instance with this cache."""
