"""What every scheduler says of itself: its limits, the demand that it needs, and how to build an instance.

Users write a scheduler's options as `watermark=0.01,async_scheduling=off`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from ..._base.errors import UsageError
from ..._base.options import changed_by_text, stated_options
from ...cache.demand import BlockDemand
from ...cache.simulation import Setting
from ...cache.tiers import Tier as Tier
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


class Scheduler(ABC):
    """A scheduler and its options."""

    name: ClassVar[str]
    version: ClassVar[str]  # of the engine whose steps it takes; empty if it is nobody's
    most_lower_tiers: ClassVar[int | None] = 0  # of an instance alone; None: any number
    copies_to_tiers: ClassVar[bool] = False  # a lower tier also holds the blocks above it
    tier_fields: ClassVar[frozenset[str]] = frozenset()  # the fields of a Tier that it models, of cache.tiers.OPTIONAL
    has_front: ClassVar[bool] = True  # requests pass an API server first, if the cost has times for it
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

    def engines(
        self, setting: Setting, demand: BlockDemand, tiers: Sequence[Tier], instances: int, per_host: int
    ) -> list[Any]:
        """The compiled caches of several instances, `per_host` of them on each host; here they share no tier."""
        return [self.engine(setting, demand, tiers) for _ in range(instances)]

    @abstractmethod
    def instance(self, engine: Any, requests: Any, cost: dict[str, float], *, prefetch: bool) -> Any:
        """The compiled instance with this cache."""

    def workers(self, engines: Sequence[Any], requests: Any, cost: dict[str, float], *, prefetch: bool) -> list[Any]:
        """The compiled instances with these caches, which step by themselves."""
        return [self.instance(engine, requests, cost, prefetch=prefetch) for engine in engines]

    def worker(self, engine: Any, requests: Any, cost: dict[str, float], *, log: bool = False) -> Any:
        """The compiled instance of a worker that only computes prompts, or only outputs. With `log` it records them."""
        raise UsageError(f"The scheduler {self.name} has no workers of one kind. Use --engine vllm or sglang.")

    def receive(self, workers: Sequence[Any]) -> None:  # noqa: B027 - most need nothing
        """Give compiled decode workers what only they need."""

    def ranks(self, engines: Sequence[Any], requests: Any, cost: dict[str, float], *, log: bool = False) -> list[Any]:
        """The compiled instances with these caches, which begin and end their steps together. With `log` they record
        them. UsageError if the engine has no such ranks.
        """
        raise UsageError(f"The scheduler {self.name} has no ranks in lockstep. Use --engine vllm or sglang.")


def with_options(scheduler: Scheduler, text: str) -> Scheduler:
    """The scheduler with options in their own names.

    Args:
        scheduler: The scheduler with the values of all other options.
        text: NAME=VALUE pairs, separated by commas. Switches are on or off.

    Raises:
        UsageError: A name or a value is not one of the scheduler's.

    >>> from kvtrace.serving.schedulers.vllm import VllmScheduler
    >>> with_options(VllmScheduler(), "max_num_seqs=64, async_scheduling=off").async_scheduling
    False
    """
    if not stated_options(scheduler):
        raise UsageError(f"The scheduler {scheduler.name} has no options. Leave out --scheduler, or try --engine vllm.")
    return changed_by_text(scheduler, text, f"{scheduler.name}'s scheduler")
