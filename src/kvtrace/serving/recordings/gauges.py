"""The gauges of an engine over time: requests that run and wait, and the share of the KV cache in use.

The file timeseries.csv of LLMServingSim's benchmark has the columns t (seconds), running, waiting and kv_cache_pct.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..._base.errors import InputError
from ..._base.input_files import open_read
from .rows import MAX_BYTES

COLUMNS = ("t", "running", "waiting")
KV_COLUMN = "kv_cache_pct"
MAX_MORE = 10_000  # moments after the last one


@dataclass(frozen=True, eq=False)
class Gauges:
    """One value per moment."""

    seconds: np.ndarray  # from the first arrival
    running: np.ndarray  # requests
    waiting: np.ndarray  # requests
    kv_use: np.ndarray | None = None  # share of the blocks of the KV cache; None if it was not measured

    def until(self, end: float) -> Gauges:
        """The gauges up to a time: after the last request, they stay at 0. Unchanged if they end while requests run.

        >>> Gauges(np.array([0.0, 1.0]), np.array([1, 0]), np.array([0, 0])).until(2.5).seconds.tolist()
        [0.0, 1.0, 2.0, 3.0]
        """
        if len(self.seconds) < 2 or self.running[-1] or self.waiting[-1] or self.seconds[-1] >= end:
            return self
        gap = float(np.median(np.diff(self.seconds)))
        more = min(int(np.ceil((end - self.seconds[-1]) / gap)), MAX_MORE)
        nothing, use = np.zeros(more, dtype=np.int64), self.kv_use
        return Gauges(
            np.append(self.seconds, self.seconds[-1] + gap * np.arange(1, more + 1)),
            np.append(self.running, nothing), np.append(self.waiting, nothing),
            None if use is None else np.append(use, np.zeros(more)),
        )  # fmt: skip


def read_gauges(path: str | Path) -> Gauges:
    """Read a CSV file of gauges. A KV use of 0 while requests ran is a gauge that did not work, and is left out.

    Raises:
        InputError: A column is missing, or a value is not a number.
    """
    with open_read(path) as file:
        text = file.read(MAX_BYTES).decode("utf-8", "replace")
    rows = list(csv.DictReader(io.StringIO(text)))
    if not rows or not {*COLUMNS} <= {*rows[0]}:
        raise InputError(f"{path}: lacks one of the columns {', '.join(COLUMNS)}.")
    seconds, running, waiting = (_column(rows, name, path) for name in COLUMNS)
    if (np.diff(seconds) <= 0).any():
        raise InputError(f"{path}: the times in column t do not rise.")
    kv_use = _column(rows, KV_COLUMN, path) / 100 if KV_COLUMN in rows[0] else None
    if kv_use is not None and running.any() and not kv_use.any():
        kv_use = None
    return Gauges(seconds, running, waiting, kv_use)


def _column(rows: list[dict[str, str]], name: str, path: str | Path) -> np.ndarray:
    try:
        values = np.array([float(row[name]) for row in rows])
    except (TypeError, ValueError):
        values = np.array([-1.0])
    if not (np.isfinite(values) & (values >= 0)).all():
        raise InputError(f"{path}: column {name} has values that are not numbers from 0 on.")
    return values
