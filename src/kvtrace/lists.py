"""Lists of numbers as people write them on a command line: quantiles, and factors to fold by."""

from __future__ import annotations

from .errors import UsageError


def quantiles(text: str | None) -> list[float]:
    """The quantiles of a comma-separated list, each from 0 to 1; UsageError where one is not.

    >>> quantiles("0.9, 0.99")
    [0.9, 0.99]
    """
    found = [_number(part, float) for part in _parts(text)]
    if not all(value is not None and 0 <= value <= 1 for value in found):
        raise UsageError(f"{text!r} holds something else than quantiles. Try 0.9,0.99.")
    return list(dict.fromkeys(found))


def factors(text: str | None) -> list[int]:
    """The factors of a comma-separated list, whole and at least 1; UsageError where one is not.

    >>> factors("1,2,4")
    [1, 2, 4]
    """
    found = [_number(part, int) for part in _parts(text)]
    if not all(value is not None and value >= 1 for value in found):
        raise UsageError(f"{text!r} holds something else than factors to fold by. Try 1,2,4.")
    return list(dict.fromkeys(found))


def _parts(text):
    return [] if text is None else text.split(",")


def _number(text, kind):
    try:
        return kind(text)
    except ValueError:
        return None
