"""Arrival times for logs without times: `rate=2/s,think=30s,seed=1`, and for requests with a delay in place of a time.

Conversations start as a Poisson process of the given rate, in the log's order. Each turn follows the previous one after
an exponentially distributed think time of the given mean, or after its logged delay. The sidecar records the model.
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

    def times_ns(
        self, times_ns: np.ndarray, conversation: np.ndarray, delay_ns: np.ndarray | None = None
    ) -> np.ndarray:
        """Request -> time in ns from 0; RowError if some requests have times and others do not.

        Args:
            times_ns: request -> its logged time, negative = none. If all are known, they are returned unchanged.
            conversation: request -> its conversation, -1 = a conversation of one request. Turns are in order.
            delay_ns: request -> its logged delay after the turn before it, negative = none: a think time is drawn.

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
        think_s = rng.exponential(self.think_ms / 1e3, len(number))
        if delay_ns is not None:
            think_s = np.where(delay_ns >= 0, delay_ns / 1e9, think_s)
        think_s = np.where(is_first, 0.0, think_s)
        elapsed_s = np.cumsum(think_s[order])
        starts = np.searchsorted(number[order], np.arange(len(first)))
        elapsed_s -= (elapsed_s[starts])[number[order]]  # since the start of the request's own conversation
        times = np.empty(len(number))
        times[order] = start_s[number[order]] + elapsed_s
        return np.round(times * 1e9).astype(np.int64)


def times_after_delays(
    times_ns: np.ndarray, conversation: np.ndarray, delay_ns: np.ndarray, service_ns: np.ndarray
) -> np.ndarray:
    """Request -> time in ns, where it has a delay after the turn before it and that turn has a time; others unchanged.

    A delay counts from the end of the turn before it, or from its start where the log did not measure that turn.

    Args:
        times_ns: request -> its logged time, negative = none.
        conversation: request -> its conversation, negative = a conversation of one request. Turns are in order.
        delay_ns: request -> its delay, negative = none.
        service_ns: request -> the time that it took, negative = unknown.

    >>> one = np.array([0, 0]), np.array([-1, 5]), np.array([3, -1])
    >>> times_after_delays(np.array([10, -1]), *one).tolist()
    [10, 18]
    """
    times = times_ns.copy()
    end_of: dict[int, int] = {}  # conversation -> the end of its last turn
    rows = zip(times.tolist(), conversation.tolist(), delay_ns.tolist(), service_ns.tolist(), strict=True)
    for i, (time, session, delay, service) in enumerate(rows):
        if time < 0 <= delay and session in end_of:
            times[i] = time = end_of[session] + delay
        if time >= 0 and session >= 0:
            end_of[session] = time + max(service, 0)
    return times


def require_starts(times_ns: np.ndarray) -> None:
    """RowError if a conversation whose requests have delays has no time of its start."""
    if (times_ns < 0).any():
        hint = "To make up the times at which conversations start, use --arrivals rate=1/s."
        raise RowError("the first request of a conversation has no time.", hint=hint)
