"""Groups of requests: those of each window of time, and those of each session."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._base.errors import UsageError


class RowGroups(NamedTuple):
    """Rows in groups; the rows of a group stand side by side in `order`."""

    order: np.ndarray  # the rows, int64
    starts: np.ndarray  # group -> the place of its first row in `order`
    labels: np.ndarray  # group -> the start of its window in ms, or its session


def time_windows(timestamp: np.ndarray, window_ms: float, example: str = "--over-time 60s") -> RowGroups:
    """The windows of `window_ms` milliseconds that have requests.

    Args:
        timestamp: Request -> ms, never falling.
        window_ms: Length of a window.
        example: A valid window, for the error.

    Raises:
        UsageError: The window is not longer than 0 ms.

    >>> windows = time_windows(np.array([0.0, 60.0, 120.0]), 100)
    >>> windows.starts.tolist(), windows.labels.tolist()
    ([0, 2], [0.0, 100.0])
    """
    if not window_ms > 0:
        raise UsageError(f"A window must be longer than 0 ms. Try {example}.")
    number = timestamp // window_ms  # of the window, as a float: short windows exceed int64
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    return RowGroups(np.arange(len(timestamp)), starts, number[starts] * window_ms)


def session_groups(session: np.ndarray | None, requests: int) -> RowGroups:
    """The requests of each session, in order of its number; all requests are session -1 if a trace has no sessions.

    >>> groups = session_groups(np.array([1, -1, 1]), 3)
    >>> groups.order.tolist(), groups.starts.tolist(), groups.labels.tolist()
    ([1, 0, 2], [0, 1], [-1, 1])
    """
    numbers = np.full(requests, -1) if session is None else session
    order = np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-2))
    return RowGroups(order, starts, numbers[order][starts])
