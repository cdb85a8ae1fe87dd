"""The times that a service measured: to the first token, to the last one, and in its queue."""

from __future__ import annotations

from collections.abc import Sequence

from .._base.tables import TextTable
from ..trace.columns import MEASURED, measured_of
from ..trace.trace import Trace
from .distribution import Distribution
from .tables import distribution_table, scaled

LABELS = {"ttft_ms": "Time to first token (s)", "e2e_ms": "End to end (s)", "queue_ms": "In the queue (s)"}


def measured_times(trace: Trace, quantiles: Sequence[float] = ()) -> dict[str, Distribution]:
    """Column -> the distribution of its known values, in ms, for the measured times that a trace has.

    >>> import numpy as np
    >>> from kvtrace.trace.building import toy
    >>> from kvtrace.trace.columns import replace_columns
    >>> columns = replace_columns(toy("0", "1", "2"), ttft_ms=[20.0, np.nan, 40.0])
    >>> times = measured_times(Trace.from_columns(columns, block_size=1))
    >>> times["ttft_ms"].count, times["ttft_ms"].mean
    (2, 30.0)
    """
    known = {name: values[MEASURED[name].is_known(values)] for name, values in measured_of(trace).items()}
    return {name: Distribution.of(values, quantiles) for name, values in known.items() if name in LABELS}


def measured_table(times: dict[str, Distribution], requests: int) -> TextTable:
    """The table of measured times, in seconds; a caption states the requests without one."""
    table = distribution_table("Measured times", {LABELS[name]: scaled(times[name], 1000) for name in times})
    missing = {name: requests - values.count for name, values in times.items() if values.count < requests}
    table.caption = ", ".join(f"{name} is unknown for {count:,} requests" for name, count in missing.items())
    return table
