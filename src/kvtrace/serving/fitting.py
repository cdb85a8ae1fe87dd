"""Bounded robust least squares through a simulation, whose residuals jump where a step takes other requests.

Because of the jumps, a derivative is the difference over a step of 10 % of a term; a simplex search ends the fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._base.errors import UsageError

STEP = 0.1  # of the logarithm of a term, for derivatives
BOUND = 3.0  # a term is between exp(-3) and exp(3) times its start
OUTLIER = 0.05  # a residual beyond it counts linearly, not squared
SPREAD = 0.4  # of the logarithms of the other starts
ROUNDS = 30  # of least squares, at most
POLISH = 200  # simulations of the simplex search

Residuals = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Fit:
    """The logarithms of the terms, relative to their starts, and the loss that they reach."""

    x: np.ndarray
    loss: float


def scipy_optimize() -> Any:
    """The module scipy.optimize; UsageError if the extra is not installed."""
    try:
        from scipy import optimize
    except ImportError:
        optimize = None
    if optimize is None:
        raise UsageError("Calibration needs SciPy. Install it with: pip install 'kvtrace[calibrate]'")
    return optimize


def fit(residuals: Residuals, size: int, *, starts: int = 3, at: np.ndarray | None = None, seed: int = 0) -> Fit:
    """The terms with the smallest robust loss.

    Args:
        residuals: From the logarithms of the terms to the relative errors.
        size: The number of terms.
        starts: Starting points: the first is `at`, the others are random.
        at: The first start; zeros by default.
        seed: Of the random starts.

    >>> target = np.array([0.5, -0.25])
    >>> fit(lambda x: x - target, 2, starts=1).x.round(2).tolist()
    [0.5, -0.25]
    """
    optimize = scipy_optimize()
    random = np.random.default_rng(seed)
    first = np.zeros(size) if at is None else at
    points = [first, *(np.clip(first + random.normal(0, SPREAD, size), -BOUND, BOUND) for _ in range(starts - 1))]
    fits = [
        optimize.least_squares(
            residuals, np.clip(point, -0.99 * BOUND, 0.99 * BOUND), jac=lambda x: _jacobian(residuals, x),
            bounds=(-BOUND, BOUND), loss="soft_l1", f_scale=OUTLIER, max_nfev=ROUNDS,
        )
        for point in points
    ]  # fmt: skip
    best = min(fits, key=lambda one: one.cost)
    return _polished(optimize, residuals, best.x)


def robust_loss(values: np.ndarray) -> float:
    """Squares of small residuals, and the size of large ones (soft L1)."""
    return float(OUTLIER**2 * (np.sqrt(1 + (values / OUTLIER) ** 2) - 1).sum())


def _jacobian(residuals: Residuals, x: np.ndarray) -> np.ndarray:
    """Central differences over a step that is wider than the jumps."""
    steps = STEP * np.eye(len(x))
    return np.column_stack([(residuals(x + step) - residuals(x - step)) / (2 * STEP) for step in steps])


def _polished(optimize: Any, residuals: Residuals, x: np.ndarray) -> Fit:
    """The best point of a simplex search around x."""
    signs = np.where(np.arange(len(x)) % 2, -1.0, 1.0)
    simplex = np.vstack([x, x + STEP * np.diag(signs)])
    options = {"initial_simplex": simplex, "maxfev": POLISH, "xatol": 1e-4, "fatol": 1e-7}
    done = optimize.minimize(lambda at: robust_loss(residuals(at)), x, method="Nelder-Mead", options=options,
                             bounds=[(-BOUND, BOUND)] * len(x))  # fmt: skip
    return Fit(done.x, float(done.fun))
