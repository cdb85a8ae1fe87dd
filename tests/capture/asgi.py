"""Calls of an ASGI application without a server."""

import asyncio
from dataclasses import dataclass


@dataclass
class Answer:
    """What the application sent."""

    status: int
    headers: dict
    body: bytes


def post(
    app, path, body=b"", content_type="application/x-protobuf", *, method="POST", chunks=None, wait_s=0, **headers
):
    """The answer to a request whose body comes in these chunks, with a pause before each."""
    sent = {"content-type": content_type} | {name.replace("_", "-"): value for name, value in headers.items()}
    chunks = [body] if chunks is None else list(chunks)
    scope = {"type": "http", "method": method, "path": path, "query_string": b""}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in sent.items() if value is not None]
    messages = []

    async def receive():
        await asyncio.sleep(wait_s)
        chunk = chunks.pop(0) if chunks else None
        if chunk is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": chunk, "more_body": bool(chunks)}

    async def send(message):
        messages.append(message)

    asyncio.run(app(scope, receive, send))
    start, *bodies = messages
    names = {name.decode(): value.decode() for name, value in start["headers"]}
    answer = Answer(start["status"], names, b"".join(message["body"] for message in bodies))
    assert names["content-length"] == str(len(answer.body))
    return answer


class Queue:
    """A queue that takes payloads until it is full."""

    def __init__(self, room=1000):
        self.room, self.items = room, []

    def __call__(self, source, payload, requests, *, moved=None):
        if len(self.items) >= self.room:
            return False
        self.items.append((source, payload, requests))
        return True

    put = __call__
