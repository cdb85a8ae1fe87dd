"""Lists and amounts as people write them on a command line: quantiles, factors, names, the first part of a trace."""

from __future__ import annotations

from .errors import UsageError
from .units import milliseconds


def quantiles(text: str | None) -> list[float]:
    """The quantiles of a comma-separated list, each from 0 to 1; UsageError where one is not.

    >>> quantiles("0.9, 0.99")
    [0.9, 0.99]
    """
    found = [_number(part, float) for part in _parts(text)]
    if not all(value is not None and 0 <= value <= 1 for value in found):
        raise UsageError(f"{text!r} is not a list of quantiles. Example: 0.5,0.9,0.99.")
    return list(dict.fromkeys(found))


def factors(text: str | None) -> list[int]:
    """The factors of a comma-separated list, whole and at least 1; UsageError where one is not.

    >>> factors("1,2,4")
    [1, 2, 4]
    """
    found = [_number(part, int) for part in _parts(text)]
    if not all(value is not None and value >= 1 for value in found):
        raise UsageError(f"{text!r} is not a list of whole factors of at least 1. Example: 1,2,4.")
    return list(dict.fromkeys(found))


def _parts(text):
    return [] if text is None else text.split(",")


def _number(text, kind):
    try:
        return kind(text)
    except ValueError:
        return None


def names(text: str) -> list[str]:
    """The names of a comma-separated list, each once; UsageError where there is none.

    >>> names("lru, fifo,lru")
    ['lru', 'fifo']
    """
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise UsageError(f"{text!r} is not a list of names. Example: lru,fifo.")
    return list(dict.fromkeys(found))


def leading_rows(text: str, timestamp) -> int:
    """How many of the first requests a text leaves out: so many (1000), a share (10%) or a time (10m).

    >>> import numpy as np
    >>> [leading_rows(text, np.arange(4) * 1000.0) for text in ("3", "50%", "1s")]
    [3, 2, 1]
    """
    if text.isdecimal() and len(text) <= 18:
        return min(int(text), len(timestamp))
    share = _number(text.removesuffix("%"), float) if text.endswith("%") else None
    if share is not None and 0 <= share <= 100:
        return round(len(timestamp) * share / 100)
    if text.endswith("%") or not text[:1].isdecimal():
        raise UsageError(f"{text!r} is not a part of a trace. Examples: 1000 (requests), 10%, 10m.")
    return int(timestamp.searchsorted(milliseconds(text)))
