"""Bounded robust least squares through a simulation, whose residuals jump where a step takes other requests.

Because of the jumps, a derivative is the difference over a step of 10 % of a term; a simplex search ends the fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._base.errors import UsageError

STEP = 0.1  # of the logarithm of a term, for derivatives
BOUND = 3.0  # a term is between exp(-3) and exp(3) times its start
OUTLIER = 0.05  # a residual beyond it counts linearly, not squared
STARTS = 6
SPREAD = 0.05  # of the logarithms of the random starts, around the last one that is given
FINALISTS = 2  # starts that are followed to the end
ROUNDS = 12  # of least squares from each start, at most
FINE = 0.03  # likewise, near the end
SIMPLEXES = ((STEP, 150), (FINE, 100))  # the size of the first simplex, and the simulations at most

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


def fit(
    residuals: Residuals,
    size: int,
    *,
    points: Sequence[np.ndarray] | None = None,
    starts: int = STARTS,
    seed: int = 0,
) -> Fit:
    """The terms with the smallest robust loss.

    Args:
        residuals: From the logarithms of the terms to the relative errors.
        size: The number of terms.
        points: Starting points; zeros by default.
        starts: The number of starting points; those beyond `points` are random, near the last of them.
        seed: Of the random starts.

    >>> target = np.array([0.5, -0.25])
    >>> fit(lambda x: x - target, 2, starts=1).x.round(2).tolist()
    [0.5, -0.25]
    """
    optimize = scipy_optimize()
    random = np.random.default_rng(seed)
    begin = [np.zeros(size)] if points is None else list(points)
    begin += [begin[-1] + random.normal(0, SPREAD, size) for _ in range(starts - len(begin))]
    fits = [_least_squares(optimize, residuals, point, STEP) for point in begin]
    best = sorted(fits, key=lambda one: one.cost)[:FINALISTS]
    return min((_polished(optimize, residuals, one.x) for one in best), key=lambda one: one.loss)


def robust_loss(values: np.ndarray) -> float:
    """Squares of small residuals, and the size of large ones (soft L1)."""
    return float(OUTLIER**2 * (np.sqrt(1 + (values / OUTLIER) ** 2) - 1).sum())


def _least_squares(optimize: Any, residuals: Residuals, point: np.ndarray, step: float) -> Any:
    return optimize.least_squares(
        residuals, np.clip(point, -0.99 * BOUND, 0.99 * BOUND), jac=lambda x: _jacobian(residuals, x, step),
        bounds=(-BOUND, BOUND), loss="soft_l1", f_scale=OUTLIER, max_nfev=ROUNDS,
    )  # fmt: skip


def _jacobian(residuals: Residuals, x: np.ndarray, step: float) -> np.ndarray:
    """Central differences over a step that is wider than the jumps."""
    steps = step * np.eye(len(x))
    return np.column_stack([(residuals(x + one) - residuals(x - one)) / (2 * step) for one in steps])


def _polished(optimize: Any, residuals: Residuals, x: np.ndarray) -> Fit:
    """The best point near x: of least squares with finer derivatives, and of simplex searches."""
    done = _least_squares(optimize, residuals, x, FINE)
    best = Fit(done.x, robust_loss(done.fun))
    for step, simulations in SIMPLEXES:
        best = _simplex(optimize, residuals, best, step, simulations)
    return best


def _simplex(optimize: Any, residuals: Residuals, begin: Fit, step: float, simulations: int) -> Fit:
    """The best point of a simplex search that begins at a fit."""
    signs = np.where(np.arange(len(begin.x)) % 2, -1.0, 1.0)
    simplex = np.clip(np.vstack([begin.x, begin.x + step * np.diag(signs)]), -BOUND, BOUND)
    options = {"initial_simplex": simplex, "maxfev": simulations, "xatol": 1e-4, "fatol": 1e-7}
    done = optimize.minimize(lambda at: robust_loss(residuals(at)), begin.x, method="Nelder-Mead", options=options,
                             bounds=[(-BOUND, BOUND)] * len(begin.x))  # fmt: skip
    return min(Fit(done.x, float(done.fun)), begin, key=lambda one: one.loss)
