"""What every scheduler says of itself: its limits, the demand that it needs, and how to build an instance.

Users write a scheduler's options as `watermark=0.01,async_scheduling=off`, and the tiers of an instance as
`hbm=5000,dram=50000@25GB`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np

from ..._base import units
from ..._base.errors import UsageError
from ..._base.units import size_bytes
from ...cache.demand import BlockDemand
from ...cache.simulation import Setting
from ...cache.tiered import parse_tiers
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

    @abstractmethod
    def instance(self, engine: Any, requests: Any, cost: dict[str, float], *, prefetch: bool) -> Any:
        """The compiled instance with this cache."""

    def ranks(self, engines: Sequence[Any], requests: Any, cost: dict[str, float], *, log: bool = False) -> list[Any]:
        """The compiled instances with these caches, which begin and end their steps together. With `log` they record
        them. UsageError if the engine has no such ranks.
        """
        raise UsageError(f"The scheduler {self.name} has no ranks in lockstep. Use --engine vllm or sglang.")


SWITCH = {"on": True, "yes": True, "true": True, "off": False, "no": False, "false": False}


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
    defaults = {field.name: getattr(scheduler, field.name) for field in fields(scheduler)}  # type: ignore[arg-type]
    options = {name: value for name, value in defaults.items() if value is None or isinstance(value, (int, float, str))}
    if not options:
        raise UsageError(f"The scheduler {scheduler.name} has no options. Leave out --scheduler, or try --engine vllm.")
    chosen: dict[str, Any] = {}
    for pair in text.split(","):
        name, _, value = (part.strip() for part in pair.partition("="))
        if name not in options or not value:
            raise UsageError(
                f"{pair.strip()!r} is not an option of {scheduler.name}'s scheduler. Write NAME=VALUE with one of "
                f"{', '.join(options)}."
            )
        chosen[name] = _value(name, value, options[name])
    return replace(scheduler, **chosen)  # type: ignore[type-var]


def _value(name: str, text: str, default: Any) -> Any:
    """The value of an option, of the type of its default. The scheduler checks its range."""
    if isinstance(default, bool):
        if text.lower() not in SWITCH:
            raise UsageError(f"{name} is on or off, not {text!r}.")
        return SWITCH[text.lower()]
    if default is None or isinstance(default, int):  # None: a number that is chosen elsewhere
        return units.count(text)
    if isinstance(default, float):
        return units.share(text) if "%" in text else units.decimal(text)
    return text


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
