"""The registry of Prometheus metrics: at each scrape, the rows of `metric_table` read the latest values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .._base.errors import UsageError
from .metric_table import BUILD, SERVICE, WATCH, Counts, Metric, Snapshot

NO_LIBRARY = "metrics need prometheus_client. Try `pip install 'kvtrace[live]'`."


@dataclass(frozen=True)
class Reading:
    """What the metrics show: the latest snapshot of the gauge, and the counts of the service. None = there is none."""

    snapshot: Snapshot | None = None
    counts: Counts | None = None


def registry_of(read: Callable[[], Reading]) -> Any:
    """A CollectorRegistry of prometheus_client with these metrics, and the CPU time and memory of this process.

    Args:
        read: Returns the latest reading; called at each scrape.

    Raises:
        UsageError: prometheus_client is not installed.

    >>> counts = {"accepted": 3, "dropped": 1, "malformed": 0, "rejected": 0}
    >>> registry_of(lambda: Reading(counts=counts)).get_sample_value("kvtrace_received_requests_total")
    4
    """
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector
    except ImportError:
        raise UsageError(NO_LIBRARY) from None
    registry = CollectorRegistry()
    registry.register(_Collector(read))  # type: ignore[arg-type]  # a registry needs collect() only
    ProcessCollector(registry=registry)
    return registry


class _Collector:
    """Gives the families of one reading at each scrape."""

    def __init__(self, read: Callable[[], Reading]):
        self._read = read
        self._started_s: float | None = None  # of the gauge
        self._largest: dict[tuple[str, ...], float] = {}  # name and labels of a counter -> its largest value

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        from .. import __version__

        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        reading = self._read()
        self._forget(reading.snapshot)
        tables: tuple[tuple[tuple[Metric, ...], Any], ...] = (
            (BUILD, __version__), (WATCH, reading.snapshot), (SERVICE, reading.counts),
        )  # fmt: skip
        for metrics, values in tables:
            for metric in metrics if values is not None else ():
                family = kinds[metric.kind](metric.name, metric.meaning, labels=metric.labels)
                for labels, value in metric.samples(values):
                    if value is not None:
                        family.add_metric(labels, self._risen(metric, labels, value))
                if family.samples:
                    yield family

    def _forget(self, snapshot: Snapshot | None) -> None:
        """Begin again with counters at 0 when the gauge has: Prometheus takes this as the restart that it is."""
        started_s = snapshot["started_s"] if snapshot else None
        if started_s != self._started_s:
            self._started_s = started_s
            self._largest.clear()

    def _risen(self, metric: Metric, labels: tuple[str, ...], value: float) -> float:
        """The value of a counter never falls, though an estimate that it counts may be corrected downwards."""
        if metric.kind == "gauge":
            return value
        key = (metric.name, *labels)
        self._largest[key] = max(value, self._largest.get(key, 0.0))
        return self._largest[key]
