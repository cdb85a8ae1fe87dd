"""The mean and the quantiles of times."""

from __future__ import annotations

import math
from typing import TypedDict

import numpy as np


class Quantiles(TypedDict):
    """The mean and three quantiles of a time in seconds; NaN, in JSON null, without a value."""

    mean: float
    p50: float
    p90: float
    p99: float


def served_only(values) -> np.ndarray:
    return values[~np.isnan(values)]


def quantiles_of(values: np.ndarray) -> Quantiles:
    """Mean and quantiles; NaN, which is not known, if there are no values."""
    if not len(values):
        return {"mean": math.nan, "p50": math.nan, "p90": math.nan, "p99": math.nan}
    p50, p90, p99 = (float(np.quantile(values, quantile)) for quantile in (0.5, 0.9, 0.99))
    return {"mean": float(values.mean()), "p50": p50, "p90": p90, "p99": p99}
