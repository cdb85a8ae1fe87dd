"""Parse lists and amounts on a command line: quantiles, factors, names, the start of a trace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from .errors import UsageError
from .units import count, milliseconds, share


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


def names(text: str) -> list[str]:
    """The names of a comma-separated list, each once; UsageError if there is none.

    >>> names("lru, fifo,lru")
    ['lru', 'fifo']
    """
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
