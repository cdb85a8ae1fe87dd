"""Reading a trace into columns beside a loop of orjson.loads that fills the same arrays."""

from __future__ import annotations

import statistics

from .apart import apart
from .read_write import measure, synthetic_file
from .table import Claim


def claims(folder: str, megabytes: float, rounds: int) -> list[Claim]:
    """The speed of one thread, and what a second one adds."""
    path = apart(synthetic_file, folder, megabytes)
    seconds = apart(measure, path, folder, rounds)
    taken = {name: statistics.median(runs) for name, runs in seconds.items()}
    one, two = taken["read: kvtrace, 1 thread"], taken["read: kvtrace, 2 threads"]
    return [
        Claim(f"read {megabytes:.0f} MB, 1 thread / orjson", one, taken["read: loop of orjson.loads"], "s", 1 / 4),
        Claim(f"read {megabytes:.0f} MB, 2 threads / 1 thread", two, one, "s", 1 / 1.7),
    ]
