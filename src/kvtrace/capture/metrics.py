"""The Prometheus metrics of `kvtrace record` and `kvtrace watch`, and the ASGI app of `/metrics` and `/healthz`.

A metric is one row: name, meaning, labels and values; each scrape reads the latest ones. A label has one of a few fixed
words (a reason, a cause, a factor), never anything of a request. A value that is not known has no sample: a ratio
before the first request, bytes without a model, delivered hits without cached tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .._base.errors import UsageError
from .asgi import App, Message, Receive, Scope, Send

SnapshotDict = Mapping[str, Any]  # what Snapshot.to_dict() returns: the digester, another process, sends it as JSON
ServiceCounts = Mapping[str, Any]  # the fields of RecorderCounts, or what Watcher.counts() returns
Samples = Iterable[tuple[tuple[str, ...], float | None]]  # values of the labels, and the value; None = not known
PER = ("token", "block", "request")  # label `per` of {per}_hit_rate
SPANS = ("window", "decayed")


@dataclass(frozen=True)
class Metric:
    """One metric: its name without `_total`, its kind, its meaning, its labels, and its samples."""

    name: str
    kind: Literal["counter", "gauge"]
    meaning: str
    samples: Callable[[Any], Samples]  # of a snapshot (WATCH) or of the counts of a service (SERVICE)
    labels: tuple[str, ...] = ()

    @property
    def sample_name(self) -> str:
        """The name of its samples, as queries use it."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _total(key: str) -> Callable[[SnapshotDict], Samples]:
    """A count since the start."""
    return lambda snapshot: [((), snapshot["since_start"][key])]


def _value(key: str) -> Callable[[Mapping[str, Any]], Samples]:
    """One value, which may be missing."""
    return lambda values: [((), values.get(key))]


def _bytes(snapshot: SnapshotDict, blocks: float | None) -> float | None:
    """Bytes of KV cache that a number of blocks takes; None without a model."""
    per_token = snapshot["kv_bytes_per_token"]
    return None if blocks is None or per_token is None else blocks * snapshot["block_size"] * per_token


def _delivered(key: str) -> Callable[[SnapshotDict], Samples]:
    """A count of the requests that state their cached tokens, since the start."""
    return lambda snapshot: [((), (snapshot["since_start"]["delivered"] or {}).get(key))]


def _delivered_ratio(key: str) -> Callable[[SnapshotDict], Samples]:
    """Tokens of one kind / prompt tokens, of the requests that state their cached tokens."""

    def samples(snapshot: SnapshotDict) -> Samples:
        for span in SPANS:
            delivered = snapshot[span]["delivered"]
            if delivered and delivered["prompt_tokens"]:
                yield (span,), delivered[key] / delivered["prompt_tokens"]

    return samples


def _possible(snapshot: SnapshotDict) -> Samples:
    for span in SPANS:
        for per in PER:
            yield (span, per), snapshot[span]["possible"][f"{per}_hit_rate"]


def _curve(snapshot: SnapshotDict) -> Samples:
    for span in SPANS:
        traffic = snapshot[span]
        for point in traffic["curve"]:
            for per in PER:
                labels = (span, per, traffic["curve_of"], f"{point['factor']:g}")
                yield labels, point[f"{per}_hit_rate"]


def _causes(snapshot: SnapshotDict) -> Samples:
    traffic = snapshot["since_start"]
    return [((traffic["causes_of"], cause), tokens) for cause, tokens in traffic["causes"].items()]


def _needed(snapshot: SnapshotDict) -> Iterator[tuple[tuple[str, str], float | None]]:
    for span in SPANS:
        yield (span, "0.9"), snapshot[span]["blocks_for_90_percent"]


def _stores(snapshot: SnapshotDict) -> Samples:
    return [((event,), count) for event, count in (snapshot["stores"] or {}).items()]


def _received(counts: ServiceCounts) -> Samples:
    return [((), counts["accepted"] + counts["dropped"])]


def _digested(counts: ServiceCounts) -> Samples:
    """A Recorder calls them digested, and a Watcher requests."""
    return [((), counts.get("digested", counts.get("requests")))]


def _dropped(counts: ServiceCounts) -> Samples:
    uncopied = counts.get("uncopied", 0)
    return [(("queue_full",), counts["dropped"] - uncopied), (("proxy_memory",), uncopied)]


def _proxied(counts: ServiceCounts) -> Samples:
    """The fields of ProxyCounts, but for the sum; none without a proxy."""
    proxy = counts.get("proxy") or {}
    names = ("recorded", "dropped", "refused", "failed", "left", "errors", "other") if proxy.get("requests") else ()
    return [(("client_left" if name == "left" else name,), proxy[name]) for name in names]


def _of_parts(key: str) -> Callable[[ServiceCounts], Samples]:
    """A value of each part of the service."""
    return lambda counts: [((part,), value) for part, value in counts.get(key, {}).items()]


def _rejected(counts: ServiceCounts) -> Samples:
    return [(("payload",), counts.get("malformed")), (("row",), counts.get("rejected"))]


BUILD = (
    Metric(
        "kvtrace_build_info", "gauge",
        "Always 1, with the version of kvtrace.", lambda version: [((version,), 1)], ("version",),
    ),
)  # fmt: skip
WATCH = (
    Metric(
        "kvtrace_watched_requests", "counter",
        "Requests in the estimate.", _total("requests"),
    ),
    Metric(
        "kvtrace_watched_prompt_tokens", "counter",
        "Prompt tokens of the requests in the estimate.", _total("prompt_tokens"),
    ),
    Metric(
        "kvtrace_watched_blocks", "counter",
        "Prompt blocks of the requests in the estimate.", _total("blocks"),
    ),
    Metric(
        "kvtrace_possible_hit_ratio", "gauge",
        "Hit rate of a cache that never evicts. No amount of memory gives more.", _possible, ("span", "per"),
    ),
    Metric(
        "kvtrace_capacity_hit_ratio", "gauge",
        "Estimated hit rate of an LRU cache at a multiple (factor) of today's capacity, or of the working set.",
        _curve, ("span", "per", "of", "factor"),
    ),
    Metric(
        "kvtrace_delivered_hit_ratio", "gauge",
        "Token hit rate that the service states: cached tokens / prompt tokens, of the requests that state both.",
        _delivered_ratio("cached_tokens"), ("span",),
    ),
    Metric(
        "kvtrace_deliverable_hit_ratio", "gauge",
        "Token hit rate that a cache that never evicts would have delivered to the same requests.",
        _delivered_ratio("possible_tokens"), ("span",),
    ),
    Metric(
        "kvtrace_delivered_tokens", "counter",
        "Cached tokens that the service stated.", _delivered("cached_tokens"),
    ),
    Metric(
        "kvtrace_delivered_prompt_tokens", "counter",
        "Prompt tokens of the requests that state their cached tokens.", _delivered("prompt_tokens"),
    ),
    Metric(
        "kvtrace_cause_tokens", "counter",
        "Prompt tokens by cause. Hits are those that the service delivered, or those of an LRU cache (of).",
        _causes, ("of", "cause"),
    ),
    Metric(
        "kvtrace_capacity_blocks", "gauge",
        "Capacity of today's cache, as --capacity states it.", _value("capacity_blocks"),
    ),
    Metric(
        "kvtrace_capacity_bytes", "gauge",
        "The same in bytes of KV cache.", lambda snapshot: [((), _bytes(snapshot, snapshot["capacity_blocks"]))],
    ),
    Metric(
        "kvtrace_needed_capacity_blocks", "gauge",
        "Smallest LRU cache that reaches a share of the possible hit tokens.", _needed, ("span", "share"),
    ),
    Metric(
        "kvtrace_needed_capacity_bytes", "gauge",
        "The same in bytes of KV cache.",
        lambda snapshot: [(labels, _bytes(snapshot, blocks)) for labels, blocks in _needed(snapshot)],
        ("span", "share"),
    ),
    Metric(
        "kvtrace_working_set_blocks", "gauge",
        "Distinct blocks in the window.", lambda snapshot: [((), snapshot["window"]["working_set_blocks"])],
    ),
    Metric(
        "kvtrace_working_set_bytes", "gauge",
        "The same in bytes of KV cache.",
        lambda snapshot: [((), _bytes(snapshot, snapshot["window"]["working_set_blocks"]))],
    ),
    Metric(
        "kvtrace_engine_blocks", "counter",
        "Blocks in the KV events of engines. stored_again: after an eviction; a larger cache would have kept them.",
        _stores, ("event",),
    ),
    Metric(
        "kvtrace_window_seconds", "gauge", "Length of the window of span=window.", _value("window_s"),
    ),
    Metric(
        "kvtrace_half_life_seconds", "gauge",
        "Time after which a request counts half in span=decayed.", _value("half_life_s"),
    ),
    Metric(
        "kvtrace_block_size_tokens", "gauge", "Tokens of a block.", _value("block_size"),
    ),
    Metric(
        "kvtrace_sample_ratio", "gauge",
        "Share of the blocks that the estimate samples beyond its exact part.",
        lambda snapshot: [((), snapshot["precision"]["sample"])],
    ),
    Metric(
        "kvtrace_exact_up_to_blocks", "gauge",
        "Hit rates of caches up to this size are exact. No sample: all are.",
        lambda snapshot: [((), snapshot["precision"]["exact_up_to_blocks"])],
    ),
    Metric(
        "kvtrace_estimator_memory_bytes", "gauge", "Memory of the tables of the estimate.", _value("memory_bytes"),
    ),
)  # fmt: skip
SERVICE = (
    Metric(
        "kvtrace_received_requests", "counter",
        "Requests that arrived, the dropped ones too. Refused ones count when they come again.", _received,
    ),
    Metric(
        "kvtrace_dropped_requests", "counter",
        "Requests that the service did not take, by reason. They are missing in the trace and in the estimate.",
        _dropped, ("reason",),
    ),
    Metric(
        "kvtrace_refused_requests", "counter",
        "Requests that a full queue refused with 503, and that their clients send again (OTLP). Each time counts.",
        _value("refused"),
    ),
    Metric(
        "kvtrace_proxy_requests", "counter",
        "Requests to the proxy, of any kind.", lambda counts: [((), (counts.get("proxy") or {}).get("requests"))],
    ),
    Metric(
        "kvtrace_proxy_outcomes", "counter",
        "What became of requests to the proxy. One that its client left may be recorded, too.",
        _proxied, ("outcome",),
    ),
    Metric(
        "kvtrace_digested_requests", "counter",
        "Requests that are in the trace or in the estimate.", _digested,
    ),
    Metric(
        "kvtrace_digested_prompt_tokens", "counter", "Prompt tokens of these requests.", _value("tokens"),
    ),
    Metric(
        "kvtrace_rejected_requests", "counter",
        "Requests that could not be read, because the payload or the row is not valid (of).", _rejected, ("of",),
    ),
    Metric(
        "kvtrace_left_out_requests", "counter",
        "Rows that are not requests, and requests without a prompt.", _value("left_out"),
    ),
    Metric(
        "kvtrace_lost_requests", "counter",
        "Requests that were received and not digested when a process died.", _value("lost"),
    ),
    Metric(
        "kvtrace_queue_payloads", "gauge", "Payloads that wait for the digester.", _value("waiting"),
    ),
    Metric(
        "kvtrace_queue_bytes", "gauge", "Bytes of the payloads that wait for the digester.", _value("waiting_bytes"),
    ),
    Metric(
        "kvtrace_queue_limit_bytes", "gauge",
        "Bytes that may wait. Beyond that, requests are dropped.", _value("waiting_limit_bytes"),
    ),
    Metric(
        "kvtrace_digester_restarts", "counter",
        "Times that the digester died and was started again.", _value("restarts"),
    ),
    Metric(
        "kvtrace_sealed_windows", "counter", "Windows whose trace was written.", _value("sealed"),
    ),
    Metric(
        "kvtrace_failed_windows", "counter",
        "Windows whose trace was not written: the audit refused it, or no attempt succeeded before the service ended.",
        _value("failed"),
    ),
    Metric(
        "kvtrace_last_seal_timestamp_seconds", "gauge",
        "Time of the last seal, in seconds since 1970.", _value("last_sealed_s"),
    ),
    Metric(
        "kvtrace_failing", "gauge",
        "1 while a part of the service fails, hangs or has ended. It is tried again.", _of_parts("failing"), ("part",),
    ),
    Metric(
        "kvtrace_failures", "counter", "Failures of a part of the service.", _of_parts("failures"), ("part",),
    ),
)  # fmt: skip
METRICS = (*BUILD, *WATCH, *SERVICE)


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
            await exposition(_plain_scope(scope), _no_body, send)
        else:
            message = problem()
            await _answer(send, 503 if message else 200, message or "ok")

    return app


def _plain_scope(scope: Scope) -> Scope:
    """The scope without bytes that prometheus_client fails on: it decodes headers and query as UTF-8."""
    headers = [(name, value) for name, value in scope["headers"] if value.isascii() and name.isascii()]
    query = scope.get("query_string", b"")
    return {**scope, "headers": headers, "query_string": query if query.isascii() else b""}


async def _no_body() -> Message:
    """The body of a request for metrics, which is not waited for."""
    return {"type": "http.request", "body": b"", "more_body": False}


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
