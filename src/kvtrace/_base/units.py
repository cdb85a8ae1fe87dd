"""Units as people write them: durations (`500ms`, `30s`, `10m`, `1.5h`) and sizes (`2GB`, `1.5GiB`)."""

from __future__ import annotations

import re

from .errors import UsageError

NS_PER_MS = 1_000_000
MS = {"ms": 1.0, "s": 1000.0, "m": 60_000.0, "h": 3_600_000.0, "d": 86_400_000.0}  # unit -> milliseconds
BYTES = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
         "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}  # fmt: skip


def milliseconds(text: str) -> float:
    """A duration in milliseconds; UsageError if it has no unit.

    >>> milliseconds("1.5h"), milliseconds("250ms")
    (5400000.0, 250.0)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*", text)
    if not match:
        raise UsageError(f"{text!r} is not a duration. Examples: 30s, 10m, 1.5h, 250ms.")
    return float(match[1]) * MS[match[2]]
