"""The Prometheus registry, and the ASGI app of `/metrics` and `/healthz` that a Prometheus server scrapes.

At each scrape, the rows of `metric_table` read the latest values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .._base.errors import UsageError
from .asgi import App, Receive, Scope, Send
from .metric_table import BUILD, SERVICE, WATCH, Metric, ServiceCounts, SnapshotDict

NO_LIBRARY = "metrics need prometheus_client. Try `pip install 'kvtrace[live]'`."


@dataclass(frozen=True)
class Reading:
    """What the metrics show: the latest snapshot of the gauge, and the counts of the service. None = there is none."""

    snapshot: SnapshotDict | None = None
    counts: ServiceCounts | None = None


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

    def _forget(self, snapshot: SnapshotDict | None) -> None:
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


METHODS = ("GET", "HEAD")
PLAIN = b"text/plain; charset=utf-8"


def no_problem() -> str | None:
    """None: a service without checks of its own is healthy while it answers."""
    return None


def metrics_app(registry: Any, problem: Callable[[], str | None] = no_problem) -> App:
    """Make the ASGI app.

    `GET /metrics` is the exposition of the registry, in the format that the request accepts (Prometheus' text or
    OpenMetrics). `GET /healthz` is 200, or 503 with the problem. Other paths are 404, other methods 405.

    Args:
        registry: A CollectorRegistry of prometheus_client, such as `metrics.registry_of` makes.
        problem: Returns why the service is not healthy, in words that may be published, or None.

    >>> from asyncio import run
    >>> from prometheus_client import CollectorRegistry
    >>> app, sent = metrics_app(CollectorRegistry()), []
    >>> async def receive():
    ...     return {"type": "http.request", "body": b""}
    >>> async def send(message):
    ...     sent.append(message)
    >>> run(app({"type": "http", "method": "GET", "path": "/healthz", "headers": []}, receive, send))
    >>> [message.get("status", message.get("body")) for message in sent]
    [200, b'ok\\n']
    """
    from prometheus_client import make_asgi_app

    exposition = make_asgi_app(registry)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] != "http":
            raise NotImplementedError("only HTTP")  # ASGI: a server then refuses the connection
        elif scope["path"] not in ("/metrics", "/healthz"):
            await _answer(send, 404, "Not found. Use /metrics or /healthz.")
        elif scope["method"] not in METHODS:
            await _answer(send, 405, "Use GET.", (b"allow", ", ".join(METHODS).encode()))
        elif scope["path"] == "/metrics":
            await exposition(_plain_scope(scope), receive, send)
        else:
            message = problem()
            await _answer(send, 503 if message else 200, message or "ok")

    return app


def _plain_scope(scope: Scope) -> Scope:
    """The scope without bytes that prometheus_client fails on: it decodes headers and query as UTF-8."""
    headers = [(name, value) for name, value in scope["headers"] if value.isascii() and name.isascii()]
    query = scope.get("query_string", b"")
    return {**scope, "headers": headers, "query_string": query if query.isascii() else b""}


async def _answer(send: Send, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
    body = f"{text}\n".encode()
    fixed = [(b"content-type", PLAIN), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
    await send({"type": "http.response.body", "body": body})


async def _live(receive: Receive, send: Send) -> None:
    """Answer the server's start and end; the app has nothing to open or close."""
    while True:
        event = (await receive())["type"].removeprefix("lifespan.")
        await send({"type": f"lifespan.{event}.complete"})
        if event == "shutdown":
            return
