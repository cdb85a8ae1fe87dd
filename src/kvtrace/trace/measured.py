"""Optional columns of one measured number for each request: one row a column, with its value for "unknown".

`service_ms` tells how long a request ran: sessions are replayed with it, and releases make it coarser. The columns of
MEASURED tell what a service delivered: its cache hits and its times. They stay in the house: a release drops them
unless they are asked for by name.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

MAX_TIME = 2.0**53  # ms: a float64 holds each whole millisecond up to it, an int64 its microseconds


class Number(NamedTuple):
    """An optional column of one number for each request."""

    name: str
    dtype: type
    unknown: float  # the value of a request without a number
    meaning: str
    rule: str  # the name of its invariant in `check`
    fault: str  # the message for a number that breaks it

    @property
    def unit(self) -> str:
        """Tokens or ms."""
        return "tokens" if self.dtype is np.int64 else "ms"

    def is_known(self, values: np.ndarray) -> np.ndarray:
        """Request -> whether its number is known.

        >>> MEASURED["cached_tokens"].is_known(np.array([16, -1]))
        array([ True, False])
        >>> MEASURED["ttft_ms"].is_known(np.array([np.nan, 2.5]))
        array([False,  True])
        """
        return values != self.unknown if self.unknown == self.unknown else ~np.isnan(values)

    def is_wrong(self, values: np.ndarray, input_length: np.ndarray) -> np.ndarray:
        """Request -> whether its number breaks the invariant: tokens are tokens of the prompt, times are durations.

        >>> MEASURED["cached_tokens"].is_wrong(np.array([5, 6, -1, -2]), np.array([5, 5, 5, 5]))
        array([False,  True, False,  True])
        """
        most = input_length if self.dtype is np.int64 else MAX_TIME
        return self.is_known(values) & ~((values >= 0) & (values <= most))


def _time(name: str, meaning: str) -> Number:
    return Number(name, np.float64, np.nan, meaning, name, f"{name} is negative or longer than 2^53 ms.")


SERVICE = Number(
    "service_ms", np.float64, np.nan, "measured ms from the start of a request to its end",
    "service times", "the service time is negative or longer than 2^53 ms.",
)  # fmt: skip
MEASURED: dict[str, Number] = {
    row.name: row
    for row in (
        Number(
            "cached_tokens", np.int64, -1, "prompt tokens that the service took from its cache",
            "cached_tokens", "cached_tokens is not from 0 to input_length.",
        ),
        _time("ttft_ms", "measured ms from the arrival of a request to its first token"),
        _time("e2e_ms", "measured ms from the arrival of a request to its last token"),
        _time("queue_ms", "measured ms that a request waited before the service started it"),
    )
}  # fmt: skip
NUMBERS: dict[str, Number] = {SERVICE.name: SERVICE, **MEASURED}


def numbers_of(columns: object) -> dict[str, np.ndarray]:
    """The columns of NUMBERS that Columns have, by name.

    >>> from kvtrace.trace.building import toy
    >>> numbers_of(toy("0"))
    {}
    """
    values = {name: getattr(columns, name) for name in NUMBERS}
    return {name: numbers for name, numbers in values.items() if numbers is not None}


def measured_of(columns: object) -> dict[str, np.ndarray]:
    """The columns of MEASURED that Columns have, by name.

    >>> from kvtrace.trace.building import toy
    >>> measured_of(toy("0"))
    {}
    """
    return {name: values for name, values in numbers_of(columns).items() if name in MEASURED}
