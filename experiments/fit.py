"""A straight line through points by least squares, and how much of their spread it explains."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np


@dataclass(frozen=True)
class Fit:
    """y = intercept + slope * x, and R^2; R^2 is 1 where all y are equal."""

    slope: float
    intercept: float
    r2: float

    @classmethod
    def of(cls, x, y) -> Fit:
        """The line through two points or more; a flat one through fewer.

        >>> Fit.of([0, 1, 2], [1, 3, 5]).to_dict()
        {'slope': 2.0, 'intercept': 1.0, 'r2': 1.0}
        """
        x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
        apart, spread = x - x.mean(), y - y.mean()
        slope = float(apart @ spread / (apart @ apart)) if apart.any() else 0.0
        left = spread - slope * apart
        total = float(spread @ spread)
        return cls(slope, float(y.mean() - slope * x.mean()), 1 - float(left @ left) / total if total else 1.0)

    def to_dict(self) -> dict[str, float]:
        """`slope`, `intercept` and `r2`."""
        return asdict(self)
