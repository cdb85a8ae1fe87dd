"""The ASGI app of `/metrics` and `/healthz`, which a Prometheus server scrapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .asgi import App, Receive, Scope, Send

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
