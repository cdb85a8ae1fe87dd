"""The CSV of the Azure LLM inference traces (ISCA'24), which inference-perf reads: a date and two token counts.

Dates start at EPOCH, an arbitrary day: a trace has no recording date.
"""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from ..._base.errors import InputError
from ...trace.trace import Trace
from .lengths import SIDECAR, adapt, check_name, rows_of, write_table

__all__ = ["EPOCH", "SIDECAR", "adapt", "check_name", "usage", "write"]

EPOCH = datetime(2000, 1, 1)
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


def write(stream: BinaryIO, trace: Trace, *, first_id: int = 0, name: str = "") -> None:
    """Write the table as CSV; times have seven decimals, as in the published files."""
    write_table(stream, HEADER, rows_of(trace), lambda time, isl, osl: f"{_date(time)},{isl},{osl}\n")


def usage(_trace: Trace, path: str | Path) -> list[str]:
    """The settings of inference-perf for the file."""
    trace = f"trace: {{file: {_yaml(path)}, format: AzurePublicDataset}}"
    return [f"load: {{type: trace_replay, {trace}}}", f"data: {{type: random, {trace}}}"]


def _yaml(path) -> str:
    """A path as a value in YAML's flow style.

    >>> print(_yaml("my logs/day 1.csv"), _yaml("a, b.csv"))
    my logs/day 1.csv "a, b.csv"
    """
    return str(path) if re.fullmatch(r"[A-Za-z0-9_./][\w./ -]*", str(path), re.ASCII) else json.dumps(str(path))


def _date(time_ms: float) -> str:
    """A time as a date of 2000, to the microsecond.

    >>> _date(61_114.25)
    '2000-01-01 00:01:01.1142500'
    """
    try:
        return f"{(EPOCH + timedelta(milliseconds=time_ms)).isoformat(' ', 'microseconds')}0"
    except OverflowError:
        raise InputError(f"a time of {time_ms / 1000:,.0f} s is past the year 9999, the last in a date.") from None
