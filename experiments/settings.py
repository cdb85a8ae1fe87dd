"""Settings of an experiment: its cache and its batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvtrace._base.errors import UsageError


@dataclass(frozen=True)
class Serving:
    """The cache and the batch; slots are enough for the live requests and `idle` blocks, so that only `idle` binds.

    >>> Serving(batch=2, block_size=4, idle=100).slots(15)
    108
    """

    block_size: int = 4  # the report's example: a prompt of three full blocks and a partial one
    idle: int = 4096  # the report's K: blocks of finished requests that are kept
    batch: int = 16  # live requests
    policy: str = "lru"
    hashing: str = "hierarchical"

    def __post_init__(self):
        for name, minimum in (("block_size", 1), ("idle", 0), ("batch", 1)):
            if getattr(self, name) < minimum:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be at least {minimum}.")

    def slots(self, longest: int) -> int:
        """Slots for requests of at most so many tokens, output included."""
        return self.batch * -(-longest // self.block_size) + self.idle

    def cache(self, longest: int, **callbacks) -> Any:
        """An empty PrefixCache for such requests."""
        from kvtrace.cache.live.prefix_cache import PrefixCache

        return PrefixCache(
            self.slots(longest), self.block_size, idle=self.idle, policy=self.policy, hashing=self.hashing, **callbacks
        )


@dataclass(frozen=True)
class Progress:
    """How far an experiment has come, for its `progress` callback."""

    done: int
    total: int
    doing: str = field(default="", compare=False)
