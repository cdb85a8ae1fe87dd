"""Arrival times for logs without times: `rate=2/s,think=30s,seed=1`.

Conversations start as a Poisson process of the given rate, in the log's order. Each turn follows the previous one after
an exponentially distributed think time of the given mean. The sidecar records the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._base.errors import RowError, UsageError
from ..._base.units import milliseconds

HINT = "Write rate=N/s, and optionally think=TIME and seed=N. Example: rate=2/s,think=30s."


@dataclass(frozen=True)
class ArrivalModel:
    """A rate of conversations, a mean think time between turns, and a seed."""

    rate: float  # conversations a second
    think_ms: float = 30_000.0
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> ArrivalModel:
        """Parse a model; UsageError if the text is not valid.

        >>> ArrivalModel.parse("rate=2/s,think=10s")
        ArrivalModel(rate=2.0, think_ms=10000.0, seed=0)
        """
        settings = dict(part.strip().partition("=")[::2] for part in text.split(","))
        if not settings.keys() <= {"rate", "think", "seed"} or "rate" not in settings:
            raise UsageError(f"--arrivals {text!r} is not a valid arrival model. {HINT}")
        try:
            rate, seed = float(settings["rate"].removesuffix("/s")), int(settings.get("seed", 0))
        except ValueError:
            rate, seed = 0.0, 0
        if not 0 < rate < np.inf or seed < 0:
            raise UsageError(f"--arrivals {text!r}: rate must be above 0, and seed a whole number from 0. {HINT}")
        return cls(rate, milliseconds(settings["think"]) if "think" in settings else 30_000.0, seed)

    def describe(self) -> dict[str, Any]:
        """The model as the sidecar records it."""
        return {"model": "poisson", "conversations_per_s": self.rate, "mean_think_ms": self.think_ms, "seed": self.seed}

    def times_ns(self, times_ns: np.ndarray, conversation: np.ndarray) -> np.ndarray:
        """Request -> time in ns from 0; RowError if some requests have times and others do not.

        Args:
            times_ns: request -> its logged time, negative = none. If all are known, they are returned unchanged.
            conversation: request -> its conversation, -1 = a conversation of one request. Turns are in order.

        >>> ArrivalModel(1.0, 1000.0).times_ns(np.array([-1, -1]), np.array([0, 0])).argsort()
        array([0, 1])
        """
        missing = times_ns < 0
        if not missing.any():
            return times_ns
        if not missing.all():
            hint = "Leave out --arrivals, or remove the requests without times."
            raise RowError("some requests have times and others have none.", hint=hint)
        rng = np.random.default_rng(self.seed)
        is_single = conversation < 0
        number = np.where(is_single, conversation.max(initial=-1) + 1 + np.cumsum(is_single), conversation)
        _, first, number = np.unique(number, return_index=True, return_inverse=True)
        start_s = np.empty(len(first))  # conversation -> its start
        start_s[np.argsort(first)] = np.cumsum(rng.exponential(1 / self.rate, len(first)))
        order = np.argsort(number, kind="stable")  # by conversation, then by turn
        is_first = np.isin(np.arange(len(number)), first)
        think_s = np.where(is_first, 0.0, rng.exponential(self.think_ms / 1e3, len(number)))
        elapsed_s = np.cumsum(think_s[order])
        starts = np.searchsorted(number[order], np.arange(len(first)))
        elapsed_s -= (elapsed_s[starts])[number[order]]  # since the start of the request's own conversation
        times = np.empty(len(number))
        times[order] = start_s[number[order]] + elapsed_s
        return np.round(times * 1e9).astype(np.int64)
