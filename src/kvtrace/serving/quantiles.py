"""The mean and the quantiles of times."""

from __future__ import annotations

from typing import TypedDict

import numpy as np


class Quantiles(TypedDict):
    """The mean and three quantiles of a time in seconds."""

    mean: float
    p50: float
    p90: float
    p99: float


def served_only(values) -> np.ndarray:
    return values[~np.isnan(values)]


def quantiles_of(values: np.ndarray) -> Quantiles:
    """Mean and quantiles; zeros if there are no values."""
    if not len(values):
        return {"mean": 0.0, "p50": 0.0, "p90": 0.0, "p99": 0.0}
    p50, p90, p99 = (float(np.quantile(values, quantile)) for quantile in (0.5, 0.9, 0.99))
    return {"mean": float(values.mean()), "p50": p50, "p90": p90, "p99": p99}
