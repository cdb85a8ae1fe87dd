"""The table `conversation` of experiments/gap.md: `kvtrace tune` on Mooncake's conversation trace."""

from __future__ import annotations

import kvtrace
from experiments.hints.tables import table
from kvtrace.report import capacity_tables
from kvtrace.trace.trace import Trace

CAPACITY = 10_000


def tuned_table(trace: Trace, capacity: int = CAPACITY) -> str:
    """What `kvtrace tune TRACE --capacity 10000` prints, as Markdown.

    >>> print(tuned_table(kvtrace.toy(*["0 1", "2", "3", "0 1"] * 9, gap_ms=1000), 3).splitlines()[0])
    | setting | pool | gap closed | block hit rate | token hit rate | settings tried |
    """
    (shown,) = capacity_tables.tune_tables(kvtrace.cache.tune(trace, capacity))
    rows = [[f"`{setting}`", *cells] for setting, *cells in shown.rows]
    return table([column.name for column in shown.columns], rows)
