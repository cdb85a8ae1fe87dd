"""Schedules: which requests are active at the same time in a simulation."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass

import numpy as np

from .._base.errors import UsageError
from .._base.units import in_milliseconds
from ..trace.trace import Trace
from ..trace.unknown import OUTPUTS, require_known


@dataclass(frozen=True)
class Schedule:
    """When requests end.

    serial: each request ends before the next one arrives.
    concurrency: `value` requests are active at once; the oldest one ends before the next one arrives.
    open-loop: a request ends `value` milliseconds per output token after its arrival.
    """

    kind: str
    value: float = 1

    def __str__(self) -> str:
        return self.kind if self.kind == "serial" else f"{self.kind}:{self.value:g}"

    def ends(self, trace: Trace) -> np.ndarray | None:
        """The end of each request in ms, if the schedule is open-loop.

        >>> from kvtrace.trace.building import toy
        >>> parse_schedule("open-loop:30").ends(toy("0", "1", gap_ms=100)).tolist()
        [30.0, 130.0]
        """
        if self.kind != "open-loop":
            return None
        require_known(trace, trace.meta, "the end of each request (--schedule open-loop)", OUTPUTS)
        return trace.timestamp + self.value * trace.output_length


SERIAL = Schedule("serial")


def parse_schedule(text: str) -> Schedule:
    """Parse `serial`, `concurrency:N` or `open-loop:MS`; UsageError for any other text.

    >>> parse_schedule("concurrency:8")
    Schedule(kind='concurrency', value=8)
    >>> parse_schedule("open-loop:30ms")
    Schedule(kind='open-loop', value=30.0)
    """
    if text == "serial":
        return SERIAL
    if match := re.fullmatch(r"concurrency:([1-9]\d{0,8})", text):
        return Schedule("concurrency", int(match[1]))
    if text.startswith("open-loop:"):
        with contextlib.suppress(UsageError):
            per_token_ms = in_milliseconds(text.removeprefix("open-loop:"))
            if 0 <= per_token_ms < 1e9:
                return Schedule("open-loop", per_token_ms)
    raise UsageError(
        f"{text!r} is not a schedule. Try serial, concurrency:8 (requests) or open-loop:30 (ms per output token)."
    )
