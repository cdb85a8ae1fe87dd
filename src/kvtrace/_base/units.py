"""Amounts as people write them: durations, sizes, shares and counts, and lists of them, with one parser for each.

Every option uses these parsers, so `90s`, `2 min`, `40 GB`, `25%` and `1,000` have one meaning everywhere.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from .errors import UsageError

MAX_BLOCKS = 1 << 48  # of a capacity: larger than any cache, small enough for exact sums


def quantiles(text: str | None) -> list[float]:
    """The quantiles of a comma-separated list, each from 0 to 1; UsageError if one is not valid.

    >>> quantiles("0.9, 99%")
    [0.9, 0.99]
    """
    try:
        values = [share(word) for word in _words(text)]
    except UsageError:
        raise UsageError(f"{text!r} is not a list of quantiles. Example: 0.5,0.9,0.99.") from None
    return list(dict.fromkeys(values))


def factors(text: str | None) -> list[int]:
    """The factors of a comma-separated list, integers of at least 1; UsageError if one is not valid.

    >>> factors("1,2,4")
    [1, 2, 4]
    """
    values = [_number(word, int) for word in _words(text)]
    if not all(value is not None and value >= 1 for value in values):
        raise UsageError(f"{text!r} is not a list of fold factors. Example: 1,2,4.")
    return list(dict.fromkeys(values))


def _words(text):
    return [] if text is None else text.split(",")


def _number(text, kind):
    try:
        return kind(text)
    except ValueError:
        return None


def names(text: object) -> list[Any]:
    """The names of a comma-separated list, or of a list, each once; UsageError if there is none. Else the one object.

    >>> names("lru, fifo,lru"), names(["lru", dict]), names(dict)
    (['lru', 'fifo'], ['lru', <class 'dict'>], [<class 'dict'>])
    """
    if not isinstance(text, str):
        return [text] if isinstance(text, type) or not isinstance(text, Iterable) else list(dict.fromkeys(text))
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UsageError(f"{text!r} is not a list of names. Example: lru,fifo.")
    return list(dict.fromkeys(words))


def require_lists(**values: object) -> None:
    """Raise UsageError for an argument that is one value or one word where a list belongs.

    >>> require_lists(capacities=1000)
    Traceback (most recent call last):
    kvtrace._base.errors.UsageError: capacities must be a list. Try capacities=[1000].
    """
    for name, value in values.items():
        if isinstance(value, str) or not isinstance(value, Iterable):
            shown = value.__name__ if isinstance(value, type) else repr(value)
            raise UsageError(f"{name} must be a list. Try {name}=[{shown}].")


def leading_rows(text: str, timestamp) -> int:
    """The number of leading requests in an amount: a number (1000), a share (10%) or a time (10m).

    >>> import numpy as np
    >>> [leading_rows(text, np.arange(4) * 1000.0) for text in ("3", "50%", "1s")]
    [3, 2, 1]
    """
    if not text.lstrip().startswith("-"):
        with contextlib.suppress(UsageError):
            return min(count(text), len(timestamp))
    try:
        is_share = text.rstrip().endswith("%")
        return round(len(timestamp) * share(text)) if is_share else int(timestamp.searchsorted(milliseconds(text)))
    except UsageError:
        raise UsageError(f"{text!r} is not a part of a trace. Examples: 1000 (requests), 10%, 10m.") from None


NS_PER_MS = 1_000_000
MS = {"ms": 1.0, "s": 1000.0, "m": 60_000.0, "h": 3_600_000.0, "d": 86_400_000.0}  # unit -> milliseconds
UNIT_NAMES = {  # other names of the units
    "ms": ("msec", "msecs", "millisecond", "milliseconds"),
    "s": ("sec", "secs", "second", "seconds"),
    "m": ("min", "mins", "minute", "minutes"),
    "h": ("hr", "hrs", "hour", "hours"),
    "d": ("day", "days"),
}
UNITS = {name: unit for unit, names in UNIT_NAMES.items() for name in (unit, *names)}
BYTES = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
         "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}  # fmt: skip
GIB = 1 << 30  # bytes
COUNTS = {"": 1, "k": 10**3, "m": 10**6}  # suffix of a count -> its factor
NUMBER = r"(?:\d{1,3}(?:[,_]\d{3})+|\d{1,18})(?:\.\d{1,18})?"  # 1000, 1,000, 1_000 or 1.5


def number(text: str) -> float:
    """The value of a number that matches NUMBER.

    >>> number("20,208"), number("1_000.5")
    (20208.0, 1000.5)
    """
    return float(_digits(text))


def milliseconds(text: str) -> float:
    """A duration in milliseconds; UsageError if it is not valid or has no unit.

    >>> milliseconds("1.5h"), milliseconds("250ms"), milliseconds("2 min"), milliseconds("1h 30m")
    (5400000.0, 250.0, 120000.0, 5400000.0)
    """
    part = rf"\s*({NUMBER})\s*([a-zA-Z]+)\s*"
    parts = re.findall(part, text)
    if not re.fullmatch(f"(?:{part})+", text) or any(unit.lower() not in UNITS for _, unit in parts):
        raise UsageError(f"{text!r} is not a duration. Examples: 30s, 10m, 1.5h, 250ms.")
    return sum(number(value) * MS[UNITS[unit.lower()]] for value, unit in parts)


def decimal(text: str) -> float:
    """A number, also with separators of thousands; UsageError if it is not valid.

    >>> decimal("1,000.5"), decimal("-2"), decimal("1e-3")
    (1000.5, -2.0, 0.001)
    """
    plain = text.strip()
    try:
        return number(plain) if re.fullmatch(NUMBER, plain) else float(plain)
    except ValueError:
        raise UsageError(f"{text!r} is not a number. Examples: 2, 0.5.") from None


def in_milliseconds(text: str) -> float:
    """A duration in milliseconds, where a number without a unit is milliseconds, too.

    >>> in_milliseconds("30"), in_milliseconds("30 ms"), in_milliseconds("0.03s")
    (30.0, 30.0, 30.0)
    """
    try:
        return decimal(text)
    except UsageError:
        return milliseconds(text)


def share(text: str) -> float:
    """A share of a whole, from 0 to 1; UsageError if it is not valid.

    >>> share("25%"), share("0.25"), share("2.5 %")
    (0.25, 0.25, 0.025)
    """
    plain = text.strip()
    try:
        value = decimal(plain.removesuffix("%")) / (100 if plain.endswith("%") else 1)
    except UsageError:
        value = -1.0
    if not 0 <= value <= 1:
        raise UsageError(f"{text!r} is not a share from 0 to 1. Examples: 25%, 0.25.")
    return value


def size_bytes(text: str, what: str = "size") -> int:
    """A size in bytes; UsageError if it is not valid. KB, MB, GB and TB count thousands; KiB, MiB, GiB and TiB 1,024s.

    >>> size_bytes("800MB"), size_bytes("1.5 GiB"), size_bytes("40 gb")
    (800000000, 1610612736, 40000000000)
    """
    match = re.fullmatch(rf"\s*({NUMBER})\s*([a-zA-Z]+)\s*", text)
    if match and match[2].lower() in ("k", "m", "g", "t", "ki", "mi", "gi", "ti"):
        raise UsageError(f"{text!r} {two_sizes(match[1], match[2])}")
    if not match or match[2].lower() not in BYTES:
        raise UsageError(f"{text!r} is not a {what}. Examples: 2GB, 800MB, 1.5GiB.")
    return int(number(match[1]) * BYTES[match[2].lower()])


def two_sizes(value: str, unit: str) -> str:
    """The two meanings of a size that lacks its B, as the end of a sentence.

    >>> two_sizes("40", "g")
    'could be 40GB or 40GiB. Write one of them.'
    """
    prefix = unit[0].upper()
    return f"could be {value}{prefix}B or {value}{prefix}iB. Write one of them."


def count(text: str) -> int:
    """A whole number, also with separators of thousands; UsageError if it is not valid.

    >>> count("20,208"), count("20_208"), count("20208")
    (20208, 20208, 20208)
    """
    match = re.fullmatch(r"\s*([+-]?)(\d{1,3}(?:[,_]\d{3})+|\d{1,100})\s*", text)
    if not match:
        raise UsageError(f"{text!r} is not a whole number. Examples: 8, 1000, 1,000.")
    return int(match[1] + _digits(match[2]))


@dataclass(frozen=True)
class Multiple:
    """A multiple of a number that is not known yet, such as the requests of a trace."""

    factor: float

    def of(self, whole: int) -> int:
        """The multiple of a number, rounded.

        >>> Multiple(0.5).of(96)
        48
        """
        return round(self.factor * whole)


def requests(text: str, what: str = "requests") -> int | Multiple:
    """A number of requests or sessions, also in thousands or millions, or a multiple; UsageError if it is not valid.

    >>> requests("1,000"), requests("10k"), requests("1.5M"), requests("3x")
    (1000, 10000, 1500000, Multiple(factor=3.0))
    """
    match = re.fullmatch(rf"\s*({NUMBER})\s*([kKmMxX]?)\s*", text)
    suffix = match[2].lower() if match else ""
    if match and suffix == "x":
        return Multiple(number(match[1]))
    amount = Decimal(_digits(match[1])) * COUNTS[suffix] if match else None
    if amount is None or amount != int(amount):
        raise UsageError(f"{text!r} is not a number of {what}. Examples: 1000, 10k, 1.5M, 3x (3 times as many).")
    return int(amount)


def short(value: float) -> str:
    """A number as an axis label.

    >>> [short(value) for value in (0.05, 20, 1500, 2e6, 3e9)]
    ['0.05', '20', '1.5k', '2M', '3G']
    """
    for suffix, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"


DURATIONS = (("days", 172_800, 86_400), ("h", 3600, 3600), ("min", 60, 60))  # unit, its least duration, its seconds


def duration(seconds: float) -> str:
    """A duration in one unit, with three digits, as `milliseconds` reads it.

    >>> [duration(seconds) for seconds in (0.25, 42, 90, 6448, 90_000, 360_000)]
    ['0.25 s', '42 s', '1.5 min', '1.79 h', '25 h', '4.17 days']
    """
    for unit, least, size in DURATIONS:
        if abs(seconds) >= least:
            return f"{seconds / size:,.3g} {unit}" if abs(seconds) < 1000 * size else f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.3g} s"


def memory_size(gib: float) -> str:
    """A size of memory.

    >>> memory_size(0.04), memory_size(54.2), memory_size(1964.7)
    ('0.04 GiB', '54 GiB', '1.9 TiB')
    """
    return f"{gib / 1024:,.2g} TiB" if gib >= 1000 else f"{gib:,.0f} GiB" if gib >= 10 else f"{gib:.2g} GiB"


def _digits(text: str) -> str:
    """A number without separators of thousands."""
    return text.replace(",", "").replace("_", "")
