"""Times of a raw log: detect their unit, convert them to whole nanoseconds, or model them where the log has none.

A log may hold seconds, ms, us, ns or ISO 8601, as numbers or strings, since 1970 or since its own start. `detect`
distinguishes them by size: from 2001 to 2286, an epoch time has 10 digits in seconds, 13 in ms, 16 in us and 19 in ns.
Smaller numbers count from the log's start: whole numbers in ms, fractional ones in seconds.

Without times (`rate=2/s,think=30s,seed=1`), conversations start as a Poisson process of the given rate, in the log's
order. Each turn follows the previous one after an exponentially distributed think time of the given mean, or after its
logged delay. The sidecar records the model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from ..._base.errors import RowError, UsageError, wrong_word
from ..._base.units import milliseconds

POWERS = {"s": 9, "ms": 6, "us": 3, "ns": 0}  # unit -> power of ten of its nanoseconds
CHOICES = ("auto", *POWERS, "iso")  # values of --time-unit
WORDS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}

FIRST_EPOCH_NS = 10**18  # September 2001; a smaller time counts from the log's start
NO_TIME = -1  # the time of a request without a time
END_NS = 2**63  # year 2262, the end of 64-bit nanoseconds
MAX_DISTANCE_NS = 5 * 366 * 86_400 * 10**9  # five years; the audit accepts no trace of more than ten
SPANS = {"epoch": (FIRST_EPOCH_NS, END_NS), "start": (0, FIRST_EPOCH_NS), "any": (0, END_NS)}


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of a log's times, and their origin: `epoch`, the log's `start`, or `any` if the user set the unit.

    >>> str(Unit("us", "epoch")), Unit("ms", "start").parse("27.5")
    ('epoch microseconds', 27500000)
    """

    name: str  # s, ms, us, ns or iso
    span: str = "any"  # one of SPANS

    def __str__(self) -> str:
        if self.name == "iso":
            return "ISO 8601, UTC where no zone is given"
        return {"epoch": "epoch {}", "start": "{} from the start", "any": "{}"}[self.span].format(WORDS[self.name])

    def parse(self, value: Any) -> int:
        """The time in nanoseconds: exact for whole numbers and decimal strings, to the microsecond for other floats.

        RowError, without the value, if it is negative, not a number, or of another magnitude than this unit.
        """
        ns = _from_iso(value) if self.name == "iso" else _from_number(value, POWERS[self.name])
        low, high = SPANS[self.span]
        if ns < 0:
            raise RowError("the time is negative or before 1970.")
        if self.name == "iso" and ns >= END_NS:
            raise RowError("the time is after the year 2262, the end of 64-bit nanoseconds.")
        if not low <= ns < high:
            raise RowError(f"the time does not fit the log's unit, {self}.", hint="Set --time-unit.")
        return ns


def stated(name: str) -> Unit:
    """The unit that the user set, for times of any origin; UsageError for an unknown name."""
    if name not in CHOICES[1:]:
        raise wrong_word(name, "a --time-unit", CHOICES)
    return Unit(name)


def detect(values: Iterable[Any], default: str | None = None) -> Unit | None:
    """The unit that fits most of the values, or None if none of them is a time.

    `default` is the unit of numbers that are too small to be epoch times, if the definition of the field states it.
    RowError if no unit fits more than half of the values. Values that do not fit the unit will not parse.

    >>> str(detect([1760995776640783, "1760995776650000"]))
    'epoch microseconds'
    >>> str(detect([0, 27, 30])), str(detect([0, 0.027])), str(detect([0, 27], default="s"))
    ('milliseconds from the start', 'seconds from the start', 'seconds from the start')
    """
    kinds = Counter(kind for value in values if (kind := _kind(value)))
    if kinds["fractional"]:
        kinds["fractional"] += kinds.pop("whole", 0)  # 0, 0.5, 1: one fraction shows that all are seconds
    if not kinds.total():
        return None
    kind, times = kinds.most_common(1)[0]
    if kind == "unclear" or 2 * times <= kinds.total():
        units = "no unit" if kind == "unclear" else "several units"
        raise RowError(f"the times of the first rows fit {units}.", hint=f"Set --time-unit {'|'.join(CHOICES[1:])}.")
    if kind in ("whole", "fractional"):
        return Unit(default or ("ms" if kind == "whole" else "s"), "start")
    return Unit(kind, "any" if kind == "iso" else "epoch")


def median_ns(unit: Unit, values: Iterable[Any]) -> int | None:
    """The median of the values that are times of this unit, in nanoseconds; None if none of them is.

    >>> median_ns(Unit("ms"), [3, 5, 9, None, "damaged", 10**15])
    5000000
    """
    times_ns = sorted(ns for value in values if (ns := parsed(unit, value)) is not None)
    return times_ns[(len(times_ns) - 1) // 2] if times_ns else None


def parsed(unit: Unit, value: Any) -> int | None:
    """The time in nanoseconds; None if it is not one of this unit."""
    try:
        return None if value is None else unit.parse(value)
    except RowError:
        return None


# a sign, digits, a fraction, an exponent; bounded, so that no string becomes a giant number
_DECIMAL = re.compile(r"\s*([+-]?)(\d{1,40})(?:\.(\d{0,40}))?(?:[eE]([+-]?\d{1,2}))?\s*", re.ASCII)
_ISO = re.compile(
    r"\s*(\d{4}-?\d\d-?\d\d)(?:[Tt ](\d\d:?\d\d)(?:(:?\d\d)(?:[.,](\d+))?)?)?\s*(Z|z|UTC|[+-]\d\d(?::?\d\d)?)?\s*",
    re.ASCII,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _kind(value):
    """s, ms, us, ns or iso; "whole" or "fractional" if too small for an epoch; "unclear"; None = not a time."""
    if type(value) is str:
        if not _DECIMAL.fullmatch(value):
            return "iso" if _ISO.fullmatch(value) else None
        value = float(value)
    if type(value) not in (int, float) or not 0 <= value < END_NS:
        return None
    if value * 10**9 < FIRST_EPOCH_NS:
        return "whole" if value == int(value) else "fractional"
    for name, power in POWERS.items():
        if FIRST_EPOCH_NS <= value * 10**power < 10 * FIRST_EPOCH_NS:
            return name
    return "unclear"


def _from_number(value, power):
    if type(value) is int:
        return value * 10**power
    if type(value) is float and abs(value) < END_NS:  # NaN is not
        # a float of today's seconds resolves a quarter of a microsecond: digits below that are noise
        return int(value) * 10**power if value.is_integer() else round(value * 10.0 ** (power - 3)) * 1000
    match = _DECIMAL.fullmatch(value) if type(value) is str else None
    if not match:
        raise RowError("the time is not a number, but the other times are numbers.", hint="Set --time-unit.")
    sign, whole, fraction, exponent = match.groups(default="")
    digits, shift = int(whole + fraction), power - len(fraction) + int(exponent or 0)
    ns = digits * 10**shift if shift >= 0 else (digits + 10**-shift // 2) // 10**-shift
    return -ns if sign == "-" else ns


def _from_iso(value):
    match = _ISO.fullmatch(value) if type(value) is str else None
    moment = _moment(*match.group(1, 2, 3, 5)) if match else None
    if moment is None:
        raise RowError("the time is not ISO 8601.", hint="Set --time-unit.")
    since_epoch = moment - _EPOCH
    # the fraction is added separately: datetime has no nanoseconds
    return (since_epoch.days * 86_400 + since_epoch.seconds) * 10**9 + int((match[4] or "")[:9].ljust(9, "0"))


def _moment(day, minutes, seconds, zone):
    zone = "Z" if zone in (None, "z", "UTC") else zone
    if (seconds or "").endswith("60"):
        before = _moment(day, minutes, seconds[:-2] + "59", zone)
        return _after_leap_second(before) if before else None
    try:
        return datetime.fromisoformat(f"{day}T{minutes or '00:00'}{seconds or ''}{zone}")
    except ValueError:  # a 13th month
        return None


def _after_leap_second(before):
    """The time of a leap second as POSIX counts it: that of the next second, which begins a month in UTC."""
    try:
        after = before.astimezone(UTC) + timedelta(seconds=1)
    except OverflowError:  # the years 1 and 9999
        return None
    return after if (after.day, after.hour, after.minute, after.second) == (1, 0, 0, 0) else None


HINT = "Write rate=N/s, and optionally think=TIME and seed=N. Example: rate=2/s,think=30s."


@dataclass(frozen=True)
class ArrivalModel:
    """A rate of conversations, a mean think time between turns, and a seed."""

    rate: float  # conversations a second
    think_ms: float = 30_000.0
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> ArrivalModel:
        """Parse a model; UsageError if the text is not valid.

        >>> ArrivalModel.parse("rate=2/s,think=10s")
        ArrivalModel(rate=2.0, think_ms=10000.0, seed=0)
        """
        settings = dict(part.strip().partition("=")[::2] for part in text.split(","))
        if not settings.keys() <= {"rate", "think", "seed"} or "rate" not in settings:
            raise UsageError(f"--arrivals {text!r} is not a valid arrival model. {HINT}")
        try:
            rate, seed = float(settings["rate"].removesuffix("/s")), int(settings.get("seed", 0))
        except ValueError:
            rate, seed = 0.0, 0
        if not 0 < rate < np.inf or seed < 0:
            raise UsageError(f"--arrivals {text!r}: rate must be above 0, and seed a whole number from 0. {HINT}")
        return cls(rate, milliseconds(settings["think"]) if "think" in settings else 30_000.0, seed)

    def describe(self) -> dict[str, Any]:
        """The model as the sidecar records it."""
        return {"model": "poisson", "conversations_per_s": self.rate, "mean_think_ms": self.think_ms, "seed": self.seed}

    def times_ns(
        self, times_ns: np.ndarray, conversation: np.ndarray, delay_ns: np.ndarray | None = None
    ) -> np.ndarray:
        """Request -> time in ns from 0; RowError if some requests have times and others do not.

        Args:
            times_ns: request -> its logged time, negative = none. If all are known, they are returned unchanged.
            conversation: request -> its conversation, -1 = a conversation of one request. Turns are in order.
            delay_ns: request -> its logged delay after the turn before it, negative = none: a think time is drawn.

        >>> ArrivalModel(1.0, 1000.0).times_ns(np.array([-1, -1]), np.array([0, 0])).argsort()
        array([0, 1])
        """
        missing = times_ns < 0
        if not missing.any():
            return times_ns
        if not missing.all():
            hint = "Leave out --arrivals, or remove the requests without times."
            raise RowError("some requests have times and others have none.", hint=hint)
        rng = np.random.default_rng(self.seed)
        is_single = conversation < 0
        number = np.where(is_single, conversation.max(initial=-1) + 1 + np.cumsum(is_single), conversation)
        _, first, number = np.unique(number, return_index=True, return_inverse=True)
        start_s = np.empty(len(first))  # conversation -> its start
        start_s[np.argsort(first)] = np.cumsum(rng.exponential(1 / self.rate, len(first)))
        order = np.argsort(number, kind="stable")  # by conversation, then by turn
        is_first = np.isin(np.arange(len(number)), first)
        think_s = rng.exponential(self.think_ms / 1e3, len(number))
        if delay_ns is not None:
            think_s = np.where(delay_ns >= 0, delay_ns / 1e9, think_s)
        think_s = np.where(is_first, 0.0, think_s)
        elapsed_s = np.cumsum(think_s[order])
        starts = np.searchsorted(number[order], np.arange(len(first)))
        elapsed_s -= (elapsed_s[starts])[number[order]]  # since the start of the request's own conversation
        times = np.empty(len(number))
        times[order] = start_s[number[order]] + elapsed_s
        return np.round(times * 1e9).astype(np.int64)


def times_after_delays(
    times_ns: np.ndarray, conversation: np.ndarray, delay_ns: np.ndarray, service_ns: np.ndarray
) -> np.ndarray:
    """Request -> time in ns, where it has a delay after the turn before it and that turn has a time; others unchanged.

    A delay counts from the end of the turn before it, or from its start where the log did not measure that turn.

    Args:
        times_ns: request -> its logged time, negative = none.
        conversation: request -> its conversation, negative = a conversation of one request. Turns are in order.
        delay_ns: request -> its delay, negative = none.
        service_ns: request -> the time that it took, negative = unknown.

    >>> one = np.array([0, 0]), np.array([-1, 5]), np.array([3, -1])
    >>> times_after_delays(np.array([10, -1]), *one).tolist()
    [10, 18]
    """
    times = times_ns.copy()
    end_of: dict[int, int] = {}  # conversation -> the end of its last turn
    rows = zip(times.tolist(), conversation.tolist(), delay_ns.tolist(), service_ns.tolist(), strict=True)
    for i, (time, session, delay, service) in enumerate(rows):
        if time < 0 <= delay and session in end_of:
            times[i] = time = end_of[session] + delay
        if time >= 0 and session >= 0:
            end_of[session] = time + max(service, 0)
    return times


def require_starts(times_ns: np.ndarray) -> None:
    """RowError if a conversation whose requests have delays has no time of its start."""
    if (times_ns < 0).any():
        hint = "To make up the times at which conversations start, use --arrivals rate=1/s."
        raise RowError("the first request of a conversation has no time.", hint=hint)
