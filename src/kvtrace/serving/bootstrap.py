"""The noise of a quantile of request times: a bootstrap over windows of consecutive requests.

Requests that arrive together wait together, so single requests are not independent. The bootstrap draws windows of
consecutive requests instead (a block bootstrap, after Carlstein 1986).
"""

from __future__ import annotations

import numpy as np

WINDOWS = 50  # of consecutive requests, of equal number
REPLICATES = 200
BINS = 2048  # of values; a sample of more values is rounded to these quantiles
INTERVAL = (0.05, 0.95)  # of the replicates


def quantile_interval(values: np.ndarray, quantile: float, *, seed: int = 0) -> tuple[float, float]:
    """The interval that holds 90 % of the bootstrap replicates of a quantile.

    Args:
        values: One value a request, in order of arrival.
        quantile: From 0 to 1.
        seed: Of the draws.

    Returns:
        The 5 % and the 95 % quantile of the replicates; zeros without values.

    >>> quantile_interval(np.full(100, 3.0), 0.9)
    (3.0, 3.0)
    """
    if not len(values):
        return 0.0, 0.0
    edges = np.unique(values)
    if len(edges) > BINS:
        edges = np.unique(np.quantile(values, np.linspace(0, 1, BINS), method="higher"))
    which = np.searchsorted(edges, values)  # request -> the bin whose upper edge is its value, or just above it
    windows = min(WINDOWS, len(values))
    window = np.arange(len(values)) * windows // len(values)
    counts = np.bincount(window * len(edges) + which, minlength=windows * len(edges)).reshape(windows, len(edges))
    draws = np.random.default_rng(seed).multinomial(windows, np.full(windows, 1 / windows), size=REPLICATES)
    # replicate, bin -> values up to the bin; as floats, which BLAS multiplies (whole numbers below 2**53 stay exact)
    cumulated = np.cumsum(draws.astype(np.float64) @ counts.astype(np.float64), axis=1)
    place = (cumulated >= quantile * cumulated[:, -1:]).argmax(axis=1)
    low, high = np.quantile(edges[place], INTERVAL)
    return float(low), float(high)
