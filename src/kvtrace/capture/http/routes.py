"""An ASGI application of a few paths that take POST requests, and answer each with a status and a short body."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ..asgi import App
from .bodies import Budget, Refusal, decompressed, read_body

MAX_BODY = 64 << 20  # bytes, before and after decompression
TIMEOUT_S = 30.0
RETRY_AFTER_S = 5
BODIES_IN_FLIGHT = 4  # as many bodies of the largest size may be in memory at a time, and as many decompressed


@dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


class Route(Protocol):
    """What one path does with the bodies that it gets."""

    @property
    def content_types(self) -> tuple[str, ...]:
        """The content types that it takes."""
        ...

    def take(self, body: bytes, content_type: str) -> Answer:
        """The answer to a body; Refusal if it is not valid."""
        ...

    def refuse(self, refusal: Refusal, content_type: str) -> Answer:
        """The answer to a request that was refused."""
        ...


def routed(routes: Mapping[str, Route], *, max_body: int = MAX_BODY, timeout_s: float = TIMEOUT_S) -> App:
    """The ASGI application of these paths.

    Args:
        routes: Path -> what it does.
        max_body: The largest body, in bytes, before and after decompression.
        timeout_s: Seconds in which a body must come.

    Statuses: 404, 405, 408, 413 and 415 for requests that no route sees, 503 while too many bodies are in memory.
    """
    budget, turns = Budget(BODIES_IN_FLIGHT * max_body), asyncio.Semaphore(BODIES_IN_FLIGHT)

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            await _send(send, await _answer(scope, receive))
        else:
            await send({"type": "websocket.close", "code": 1003})

    async def _answer(scope, receive) -> Answer:
        route = routes.get(scope["path"])
        if route is None:
            return plain(404, "Not found.")
        if scope["method"] != "POST":
            return plain(405, "Use POST.", allow="POST")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type not in route.content_types:
            return plain(415, f"Use one of these content types: {', '.join(route.content_types)}.")
        try:
            with budget.share() as take:
                length = headers.get("content-length")
                body = await read_body(receive, length, take, max_body=max_body, timeout_s=timeout_s)
                async with turns:  # decompressed bodies are not in the budget
                    body = await decompressed(body, headers.get("content-encoding", ""), max_body=max_body)
                    return route.take(body, content_type)
        except Refusal as refusal:
            return route.refuse(refusal, content_type)

    return app


def plain(status: int, reason: str, **headers: str) -> Answer:
    """An answer of one sentence."""
    return Answer(status, reason.encode(), "text/plain; charset=utf-8", headers)


def retry_later(status: int = 503) -> Refusal:
    """The refusal of a request that may come again."""
    return Refusal(status, "The queue is full. Try again later.")


def with_retry(answer: Answer) -> Answer:
    """The answer, with Retry-After if the client may try again."""
    if answer.status not in (429, 503):
        return answer
    return Answer(answer.status, answer.body, answer.content_type, {"retry-after": str(RETRY_AFTER_S)})


async def _lifespan(receive, send):
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _send(send, answer: Answer):
    answer = with_retry(answer)
    headers = {"content-type": answer.content_type, "content-length": str(len(answer.body)), **answer.headers}
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": pairs})
    await send({"type": "http.response.body", "body": answer.body})
