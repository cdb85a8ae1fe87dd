"""Errors of simulated times that were measured, and the interval of a time to first token that they imply.

An error is simulated / measured - 1. With the roofline alone they are those of the recordings in
docs/serving/models.md; with calibrated costs, those of the requests that the calibration held out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

QUANTILES = {"p50": 0.5, "p90": 0.9}  # statistics of TTFT that have errors, beside the mean


@dataclass(frozen=True)
class TimeErrors:
    """The relative errors of TTFT by statistic, and what they rest on."""

    errors: Mapping[str, Sequence[float]]  # "mean", "p50", "p90" -> an error for each recording
    basis: str

    def statistic(self, quantile: float) -> str:
        """The statistic that is nearest to a quantile; the mean if no quantile has errors.

        >>> UNFITTED.statistic(0.95), UNFITTED.statistic(0.6)
        ('p90', 'p50')
        """
        known = [name for name in QUANTILES if self.errors.get(name)]
        return min(known, key=lambda name: abs(QUANTILES[name] - quantile), default="mean")

    def largest(self, quantile: float) -> float:
        """The largest error in size at a quantile; 0 without errors.

        >>> UNFITTED.largest(0.9)
        0.206
        """
        return max((abs(error) for error in self.errors.get(self.statistic(quantile), ())), default=0.0)


UNFITTED = TimeErrors(
    {"mean": (-0.015, -0.183, 0.034), "p50": (-0.046, -0.223, 0.033), "p90": (-0.024, -0.206, 0.034)},
    "vLLM 0.19.0 on an RTX PRO 6000, with the figures of the Server and the Workstation Edition, and on an RTX 4090; "
    "Llama-3.1-8B, 300 requests; nothing fitted",
)


def held_out_errors(errors: Mapping[str, float], basis: str) -> TimeErrors:
    """The errors of a calibration on the requests that it held out.

    Args:
        errors: `Costs.errors`: such as ttft_s_p90 -> relative error.
        basis: What was measured, for people.

    >>> held_out_errors({"ttft_s_mean": -0.01, "ttft_s_p90": 0.02, "e2e_s_mean": 0.5}, "a recording").largest(0.9)
    0.02
    """
    known = {name: errors[f"ttft_s_{name}"] for name in ("mean", *QUANTILES) if f"ttft_s_{name}" in errors}
    return TimeErrors({name: (error,) for name, error in known.items()}, basis)


def time_interval(seconds: float, error: float) -> tuple[float, float]:
    """The times that a simulated time stands for, if it is wrong by up to `error` in either direction.

    >>> time_interval(1.5, 0.5)
    (1.0, 3.0)
    >>> time_interval(1.0, 1.5)
    (0.4, inf)
    """
    return seconds / (1 + error), seconds / (1 - error) if error < 1 else float("inf")


def limit_interval(limit_s: float, error: float) -> tuple[float, float]:
    """The simulated times that certainly, and that possibly, stand for a time of at most `limit_s`.

    >>> limit_interval(2.0, 0.25)
    (1.5, 2.5)
    """
    return limit_s * max(0.0, 1 - error), limit_s * (1 + error)
