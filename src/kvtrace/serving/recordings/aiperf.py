"""AIPerf's profile_export.jsonl: a row per request with `metadata` (times in ns) and `metrics` (value and unit)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...trace.trace import Trace
from .recording import Recording, RequestTimes, recording_of
from .rows import NAN, column, number_of, read_rows, whole

SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}


def matches(path: Path) -> bool:
    """Whether the first row has this form."""
    row = read_rows(path)[0] if path.is_file() else {}
    return isinstance(row.get("metadata"), dict) and isinstance(row.get("metrics"), dict)


def read(path: Path, trace: Trace | None = None) -> Recording:
    """The recording of the profiling phase."""
    rows = [row for row in read_rows(path) if (row.get("metadata") or {}).get("benchmark_phase") != "warmup"]
    starts = column(rows, lambda row: (row.get("metadata") or {}).get("request_start_ns"), "request_start_ns", path)
    arrival = (starts - np.nanmin(starts)) * 1e-9
    failed = np.array([bool(row.get("error") or (row.get("metadata") or {}).get("was_cancelled")) for row in rows])

    def metric(name: str) -> np.ndarray:
        return column(rows, lambda row: _metric(row, name), name, path)

    first = np.where(failed, NAN, arrival + metric("time_to_first_token"))
    ended = np.where(failed, NAN, arrival + metric("request_latency"))
    outputs = whole(metric("output_sequence_length"))
    times = RequestTimes(arrival, first, ended, whole(metric("input_sequence_length")), outputs)
    return recording_of(times, name=str(path), trace=trace, format="aiperf")


def _metric(row: Mapping[str, Any], name: str) -> float:
    """A metric of a row; a time in seconds."""
    metric = (row.get("metrics") or {}).get(name)
    if not isinstance(metric, Mapping):
        return NAN
    unit = metric.get("unit")
    return number_of(metric.get("value")) * (SECONDS.get(unit, 1.0) if isinstance(unit, str) else 1.0)
