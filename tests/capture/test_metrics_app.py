"""The ASGI app of /metrics and /healthz: status codes, formats, and requests that are not well formed."""

import asyncio
import gzip

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from kvtrace.capture.metrics import metrics_app

OPENMETRICS = b"application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


@pytest.fixture
def registry():
    registry = CollectorRegistry()
    Gauge("small", "A number.", registry=registry).set(7)
    return registry


def ask(app, path="/metrics", method="GET", headers=(), query=b""):
    """The status, the headers and the body of one request."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": [*headers], "query_string": query}
    asyncio.run(app(scope, receive, send))
    start, body = sent
    return start["status"], {name.lower(): value for name, value in start["headers"]}, body["body"]


def test_metrics_are_prometheus_text_by_default(registry):
    status, headers, body = ask(metrics_app(registry))
    assert status == 200 and headers[b"content-type"].startswith(b"text/plain; version=0.0.4")
    assert [family.name for family in text_string_to_metric_families(body.decode())] == ["small"]


def test_a_server_that_accepts_openmetrics_gets_it(registry):
    status, headers, body = ask(metrics_app(registry), headers=[(b"accept", OPENMETRICS)])
    assert status == 200 and headers[b"content-type"].startswith(b"application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    assert [family.name for family in openmetrics.text_string_to_metric_families(body.decode())] == ["small"]


def test_a_server_that_accepts_gzip_gets_it(registry):
    _, headers, body = ask(metrics_app(registry), headers=[(b"accept-encoding", b"gzip")])
    assert headers[b"content-encoding"] == b"gzip" and b"small 7.0" in gzip.decompress(body)


def test_health_is_200_or_503_with_the_problem(registry):
    assert ask(metrics_app(registry), "/healthz")[::2] == (200, b"ok\n")
    assert ask(metrics_app(registry, lambda: "the digester ended"), "/healthz")[::2] == (503, b"the digester ended\n")


@pytest.mark.parametrize("path", ["/", "/metrics/", "/metrics/../secret-7731", "/healthz2", ""])
def test_other_paths_are_404_and_are_not_repeated(registry, path):
    status, _, body = ask(metrics_app(registry), path)
    assert status == 404 and b"7731" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "BREW"])
@pytest.mark.parametrize("path", ["/metrics", "/healthz"])
def test_other_methods_are_405(registry, method, path):
    status, headers, _ = ask(metrics_app(registry), path, method)
    assert status == 405 and headers[b"allow"] == b"GET, HEAD"


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ([(b"accept", b"\xff\xfe")], b""),
        ([(b"\xff", b"x"), (b"accept-encoding", b"\xc3")], b""),
        ([(b"accept", b"application/openmetrics-text;version=")], b""),
        ([(b"accept", b";;,,;version=x")], b"name[]=%ff%fe"),
        ([], b"name[]=\xff"),
        ([], b"name[]=no_such_metric"),
    ],
)
def test_headers_and_queries_of_any_bytes_are_answered(registry, headers, query):
    assert ask(metrics_app(registry), headers=headers, query=query)[0] == 200


def test_the_server_can_start_and_end_it(registry):
    events, sent = iter(["lifespan.startup", "lifespan.shutdown"]), []

    async def receive():
        return {"type": next(events)}

    async def send(message):
        sent.append(message["type"])

    asyncio.run(metrics_app(registry)({"type": "lifespan"}, receive, send))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_websockets_are_refused(registry):
    with pytest.raises(NotImplementedError):
        asyncio.run(metrics_app(registry)({"type": "websocket"}, None, None))
