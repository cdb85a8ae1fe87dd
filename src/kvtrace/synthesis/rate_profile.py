"""A rate profile: the requests per second at each time of a day, or of any period, from a CSV or JSON lines file.

A profile is a step function: a rate holds until the next time, and the last one until the end of the period. ServeGen
(Xiang et al., 2025) scales clients to such a function; here the bursts of a model remain, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._base.errors import InputError, UsageError
from .._base.files import name_of
from .._base.timed_rows import MAX_TIME_S, number_of, seconds_of, timed_rows
from .._base.units import milliseconds
from .arrival_processes import Flow

DAY_S = 86_400.0
MAX_RATE = 1e9  # requests per second
COLUMNS = ("rate", "relative")  # names of the second column


@dataclass(frozen=True)
class RateProfile:
    """Rates over a period, which is repeated.

    Raises:
        InputError: A time or a rate is not valid, or all rates are 0.

    >>> profile = RateProfile((0.0, 28800.0), (2.0, 10.0))  # 10 requests/s from 8:00
    >>> profile.mean_rate
    7.333333333333333
    """

    times_s: Sequence[float]  # at which each rate begins, rising from 0
    rates: Sequence[float]  # requests per second, or multiples of the rate of the models
    period_s: float = DAY_S
    relative: bool = False  # rates are multiples: their mean becomes the rate of the models

    def __post_init__(self) -> None:
        for name in ("times_s", "rates"):  # hashable, and JSON as it is
            object.__setattr__(self, name, tuple(float(value) for value in getattr(self, name)))
        times = np.array([*self.times_s, self.period_s])
        if not self.times_s or len(self.times_s) != len(self.rates):
            raise InputError("a rate profile needs a rate for each time, and at least one.")
        if not (times[0] == 0 and (np.diff(times) > 0).all() and times[-1] <= MAX_TIME_S):
            raise InputError("the times of a rate profile must begin at 0, rise, and end before its period.")
        if not all(0 <= rate <= MAX_RATE for rate in self.rates):
            raise InputError(f"the rates of a profile must be from 0 to {MAX_RATE:,.0f}.")
        if not any(self.rates):
            raise InputError("all rates of the profile are 0. At least one must be above 0.")

    @property
    def mean_rate(self) -> float:
        """The mean of the rates over the period."""
        return float(np.average(self.rates, weights=np.diff([*self.times_s, self.period_s])))

    def flow(self, model_rate: float) -> Flow:
        """The expected requests over time; a relative profile has the mean `model_rate`, in requests per ms."""
        time_ms = np.array([*self.times_s, self.period_s]) * 1000
        count = np.concatenate([[0.0], np.cumsum(np.diff(time_ms) / 1000 * self.rates)])
        return Flow(time_ms, count * (model_rate * 1000 / self.mean_rate if self.relative else 1.0))

    def to_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return {"times_s": list(self.times_s), "rates": list(self.rates), "period_s": self.period_s,
                "relative": self.relative}  # fmt: skip


def read_rates(path: str | Path, *, period: str | float | None = None) -> RateProfile:
    """Read a rate profile.

    Args:
        path: CSV with the columns `time` and `rate` (requests per second) or `relative` (multiples of the rate of the
            models), or JSON lines with these keys. Times are seconds, durations (`90m`) or times of day (`08:30`).
        period: Seconds, or a duration with a unit, after which the profile is repeated. Default: a day; of longer
            profiles, their last time and the step before it.

    Raises:
        InputError: The file is not a rate profile; the message names the line.
        UsageError: The period is not a duration.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "day.csv").write_text("time,rate\\n00:00,2\\n08:00,10\\n20:00,2\\n")
    ...     read_rates(os.path.join(folder, "day.csv")).rates
    (2.0, 10.0, 2.0)
    """
    name, unit = name_of(path), None
    times: list[float] = []
    rates: list[float] = []
    for line, row in timed_rows(path, name, "a rate profile", "time,rate or time,relative"):
        where = f"{name}:{line}"
        keys = [key for key in COLUMNS if row.get(key) not in (None, "")]
        if row.get("time") in (None, "") or len(keys) != 1:
            raise InputError(f"{where}: a rate profile needs the columns time and rate, or time and relative.")
        if unit not in (None, keys[0]):
            raise InputError(f"{where}: some rows have a rate and others a relative rate. Use one of them.")
        unit = keys[0]
        times.append(seconds_of(row["time"], where))
        rates.append(_rate(row[unit], where))
        if len(times) > 1 and times[-1] <= times[-2]:
            raise InputError(f"{where}: the time is not after the one before it. Sort the rows by time.")
    if not times:
        raise InputError(f"{name}: the file has no rates. Example: time,rate in its first line, then 08:00,12.5.")
    return _profile(name, times, rates, None if period is None else _period(period), unit == "relative")


def _profile(name, times, rates, period_s, relative):
    if times[0] > 0:  # midnight has the last rate of the day before
        times, rates = [0.0, *times], [rates[-1], *rates]
    if period_s is None:
        last_step = times[-1] - times[-2] if len(times) > 1 else DAY_S
        period_s = DAY_S if times[-1] < DAY_S else times[-1] + last_step
    if times[-1] >= period_s:
        raise InputError(
            f"{name}: the last time, {times[-1]:,g} s, is not before the end of the period, {period_s:,g} s."
        )
    try:
        return RateProfile(times, rates, period_s, relative)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def _rate(value, where):
    rate = number_of(value)
    if rate is None or not 0 <= rate <= MAX_RATE:
        raise InputError(f"{where}: the rate is not valid. It must be a number of at least 0.")
    return rate


def _period(period):
    seconds = number_of(period)
    seconds = milliseconds(str(period)) / 1000 if seconds is None else seconds
    if not 0 < seconds <= MAX_TIME_S:
        raise UsageError(f"the period is {period}; it must be above 0.")
    return seconds
