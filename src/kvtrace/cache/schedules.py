"""Who is live when in a simulation: `c1`, `window:8` or `timed:30`."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from .._base.errors import UsageError
from ..trace.trace import Trace


@dataclass(frozen=True)
class Schedule:
    """c1: each request ends before the next comes. window: so many are live at once. timed: ms a generated token."""

    kind: str
    value: float = 1

    def __str__(self) -> str:
        return self.kind if self.kind == "c1" else f"{self.kind}:{self.value:g}"

    def ends(self, trace: Trace) -> np.ndarray | None:
        """When each request ends, in ms, where the schedule says so.

        >>> from kvtrace.trace.building import toy
        >>> parse_schedule("timed:30").ends(toy("0", "1", gap_ms=100)).tolist()
        [30.0, 130.0]
        """
        return trace.timestamp + self.value * trace.output_length if self.kind == "timed" else None


ONE = Schedule("c1")


def parse_schedule(text: str) -> Schedule:
    """The schedule that a text names; UsageError where it names none.

    >>> parse_schedule("window:8")
    Schedule(kind='window', value=8)
    """
    if text == "c1":
        return ONE
    if found := re.fullmatch(r"window:([1-9]\d{0,8})", text):
        return Schedule("window", int(found[1]))
    if found := re.fullmatch(r"timed:(\d{1,9}(?:\.\d{1,9})?)", text):
        return Schedule("timed", float(found[1]))
    raise UsageError(
        f"{text!r} is no schedule. Try c1, window:8 (so many live at once) or timed:30 (ms a generated token)."
    )
