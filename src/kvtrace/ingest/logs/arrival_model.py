"""When requests arrive that a log gives no time: a stated model, `rate=2/s,think=30s,seed=1`.

Conversations begin as a Poisson process of the given rate, in the log's order; each turn follows the one before it
after an exponential time with the given mean. The trace's sidecar says which model its times come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._base.errors import RowError, UsageError
from ..._base.units import milliseconds

HINT = "It is rate=N/s, with think=TIME and seed=N if need be, as in rate=2/s,think=30s."


@dataclass(frozen=True)
class ArrivalModel:
    """Conversations a second, mean time between turns, and a seed."""

    rate: float  # conversations a second
    think_ms: float = 30_000.0
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> ArrivalModel:
        """The model that a text states; UsageError where it states none.

        >>> ArrivalModel.parse("rate=2/s,think=10s")
        ArrivalModel(rate=2.0, think_ms=10000.0, seed=0)
        """
        given = dict(part.strip().partition("=")[::2] for part in text.split(","))
        if not given.keys() <= {"rate", "think", "seed"} or "rate" not in given:
            raise UsageError(f"the arrival model {text!r} is not understood. {HINT}")
        try:
            rate, seed = float(given["rate"].removesuffix("/s")), int(given.get("seed", 0))
        except ValueError:
            rate, seed = 0.0, 0
        if not 0 < rate < np.inf or seed < 0:
            raise UsageError(f"the arrival model {text!r} has no rate above 0, or no whole seed. {HINT}")
        return cls(rate, milliseconds(given["think"]) if "think" in given else 30_000.0, seed)

    def describe(self) -> dict[str, Any]:
        """What a sidecar says of made-up times."""
        return {"model": "poisson", "conversations_per_s": self.rate, "mean_think_ms": self.think_ms, "seed": self.seed}

    def times_ns(self, times_ns: np.ndarray, conversation: np.ndarray) -> np.ndarray:
        """A time of each request, in ns from 0; RowError where some have a time of their own and others have none.

        `conversation` is -1 for a request that is one by itself; a conversation's requests are in the order of turns.

        >>> ArrivalModel(1.0, 1000.0).times_ns(np.array([-1, -1]), np.array([0, 0])).argsort()
        array([0, 1])
        """
        missing = times_ns < 0
        if not missing.any():
            return times_ns
        if not missing.all():
            hint = "Leave --arrivals out, or those rows."
            raise RowError("some requests have times and others have none.", hint=hint)
        rng = np.random.default_rng(self.seed)
        alone = conversation < 0
        number = np.where(alone, conversation.max(initial=-1) + 1 + np.cumsum(alone), conversation)
        _, first, number = np.unique(number, return_index=True, return_inverse=True)
        begun = np.empty(len(first))  # conversation -> s
        begun[np.argsort(first)] = np.cumsum(rng.exponential(1 / self.rate, len(first)))
        order = np.argsort(number, kind="stable")
        wait = np.where(np.isin(np.arange(len(number)), first), 0.0, rng.exponential(self.think_ms / 1e3, len(number)))
        waited = np.cumsum(wait[order])  # within its conversation once what went before is taken off
        starts = np.searchsorted(number[order], np.arange(len(first)))
        waited -= (waited[starts])[number[order]]
        times = np.empty(len(number))
        times[order] = begun[number[order]] + waited
        return np.round(times * 1e9).astype(np.int64)
