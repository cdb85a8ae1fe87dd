"""A model server that streams, and clients that ask it at a rate: bare asyncio protocols, so that they take little."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field

CHUNKS, GAP_S = 20, 0.02  # of an answer, and between them
PROMPT_BYTES = 16_000
ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
    b"x-request-id: req_1\r\n\r\n"
)


def chunk_of(event: dict) -> bytes:
    """An event as a chunk of an answer."""
    text = b"data: " + json.dumps(event).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(text), text)


def event_of(delta: dict, **fields) -> dict:
    """A chunk of a chat completion."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "stub"}
    return head | {"choices": [choice]} | fields


PIECE = chunk_of(event_of({"content": " some words"}))
USAGE = {"prompt_tokens": 4_000, "completion_tokens": CHUNKS, "prompt_tokens_details": {"cached_tokens": 3_000}}
LAST = chunk_of(event_of({}, choices=[], usage=USAGE)) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class Model(asyncio.Protocol):
    """Answers each request at once, and then a chunk every GAP_S."""

    def connection_made(self, transport):
        """A client is there."""
        self.transport, self.received = transport, b""

    def data_received(self, data):
        """Wait for the whole request, and begin to answer."""
        self.received += data
        head, blank, body = self.received.partition(b"\r\n\r\n")
        if not blank:
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        if len(body) >= length:
            self.received = b""
            self.transport.write(ANSWER + PIECE)
            asyncio.get_running_loop().call_later(GAP_S, self.more, CHUNKS - 1)

    def more(self, left):
        """Send the next chunk."""
        if self.transport.is_closing():
            return
        self.transport.write(PIECE if left else LAST)
        if left:
            asyncio.get_running_loop().call_later(GAP_S, self.more, left - 1)


class Relay(asyncio.Protocol):
    """The rival: it passes bytes on and knows nothing of HTTP; what it takes is the kernel's and the event loop's."""

    def __init__(self, port: int | None, other: asyncio.Transport | None = None):
        self.port, self.other, self.waiting = port, other, []

    def connection_made(self, transport):
        """A client is there: connect to the model; or the model is."""
        self.transport = transport
        if self.port is not None:
            self.task = asyncio.ensure_future(self.connect())

    async def connect(self):
        """The connection to the model."""
        loop = asyncio.get_running_loop()
        self.other, _ = await loop.create_connection(lambda: Relay(None, self.transport), "127.0.0.1", self.port)
        self.other.writelines(self.waiting)

    def data_received(self, data):
        """Pass bytes on."""
        if self.other is None:
            self.waiting.append(data)
        else:
            self.other.write(data)

    def connection_lost(self, error):
        """Close the other side."""
        if self.other is not None:
            self.other.close()


def request_of(number: int) -> bytes:
    """A chat request; the conversation before it is long."""
    turn = {"role": "user", "content": f"{number} " + "a conversation " * (PROMPT_BYTES // 15)}
    body = json.dumps({"model": "stub", "messages": [turn], "stream": True}).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: stub\r\naccept: application/json\r\nuser-agent: load/1\r\n"
        f"authorization: Bearer sk-1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@dataclass
class Load:
    """What the clients saw."""

    first_s: list[float] = field(default_factory=list)  # from the request to the first chunk
    whole_s: list[float] = field(default_factory=list)  # to the end of the answer
    behind_s: list[float] = field(default_factory=list)  # that the clients themselves were late
    failed: int = 0


class Client(asyncio.Protocol):
    """One connection; it serves one request at a time, and goes back to the idle ones."""

    def __init__(self, load: Load, idle: list[Client]):
        self.load, self.idle, self.tail, self.first = load, idle, b"", 0.0
        self.busy = False

    def connection_made(self, transport):
        """Connected."""
        self.transport = transport

    def ask(self, request: bytes) -> None:
        """Send a request."""
        self.busy, self.first, self.tail = True, 0.0, b""
        self.start = time.perf_counter()
        self.transport.write(request)

    def data_received(self, data):
        """A piece of the answer."""
        if not self.first and b"data:" in data:
            self.first = time.perf_counter()
        self.tail = (self.tail + data)[-5:]
        if self.tail == b"0\r\n\r\n":
            self.load.first_s.append(self.first - self.start)
            self.load.whole_s.append(time.perf_counter() - self.start)
            self.busy = False
            self.idle.append(self)

    def connection_lost(self, error):
        """The server closed the connection."""
        if self.busy:
            self.load.failed += 1
        elif self in self.idle:
            self.idle.remove(self)


async def ask_at(port: int, rate: float, seconds: float, seed: int) -> Load:
    """Requests at random times (Poisson), whether the ones before are answered or not."""
    loop, draw, load = asyncio.get_running_loop(), random.Random(seed), Load()
    idle: list[Client] = []
    requests = [request_of(number) for number in range(200)]
    await asyncio.gather(*(new_client(loop, port, load, idle, None) for _ in range(round(rate * CHUNKS * GAP_S))))
    begin = at = loop.time() + 0.1
    count, tasks = 0, set()
    while at < begin + seconds:
        if (wait := at - loop.time()) > 0:
            await asyncio.sleep(wait)
        load.behind_s.append(loop.time() - at)
        if idle:
            idle.pop().ask(requests[count % 200])
        else:
            tasks.add(loop.create_task(new_client(loop, port, load, idle, requests[count % 200])))
        count, at = count + 1, at + draw.expovariate(rate)
    end = loop.time() + 10
    while len(load.whole_s) + load.failed < count and loop.time() < end:
        await asyncio.sleep(0.05)
    load.failed = count - len(load.whole_s)
    for client in idle:
        client.transport.close()
    return load


async def new_client(loop, port, load, idle, request):
    """A new connection, idle or with a request."""
    _, client = await loop.create_connection(lambda: Client(load, idle), "127.0.0.1", port)
    if request is None:
        idle.append(client)
    else:
        client.ask(request)
