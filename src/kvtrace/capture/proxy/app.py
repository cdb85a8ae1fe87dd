"""The proxy as an ASGI app: it forwards any request, streams the answer through, and copies what `exchange` names."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson

from ..asgi import Receive, Scope, Send
from ..connections import INFORMATIONAL
from ..source import Put
from .exchange import Copy, Headers, Limits, ProxyCounts, ProxySetup, Upstream, forwarded, source_of


class Proxy:
    """The ASGI app; `proxy_app` makes it."""

    def __init__(self, setup: ProxySetup) -> None:
        self.setup = setup

    @property
    def counts(self) -> ProxyCounts:
        """What became of the requests."""
        return self.setup.counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection of ASGI."""
        if scope["type"] == "http":
            await Forwarding(self.setup, scope, receive, send).run()
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})  # the server answers 403

    async def _lifespan(self, receive, send):
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.setup.upstream.open()  # imports take a while, and the first request would wait for them
            else:
                await self.setup.upstream.close()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return


def proxy_app(
    put: Put,
    upstream: str,
    *,
    limits: Limits | None = None,
    session_header: str | None = None,
    user_header: str | None = None,
    counts: ProxyCounts | None = None,
    on_uncopied: Callable[[int], None] | None = None,
) -> Proxy:
    """An ASGI app that passes requests on to a server, and puts copies of those that generate text into a queue.

    Args:
        put: Takes a copy; its source is one of `exchange.ENDINGS`.
        upstream: URL of the server, such as https://api.openai.com; paths of requests come after its path.
        limits: Sizes in bytes and times in seconds.
        session_header, user_header: Names of headers whose values become keys of sessions and users.
        counts: Counts what becomes of the requests.
        on_uncopied: Called with the number of requests whose copies found no memory.

    Raises:
        UsageError: The URL is not http or https, or a header holds a secret.

    >>> proxy_app(lambda source, payload, requests: True, "http://127.0.0.1:8000").counts.requests
    0
    """
    limits = limits or Limits()
    session, user = header_name("--session-header", session_header), header_name("--user-header", user_header)
    setup = ProxySetup(
        put, Upstream(upstream, limits), limits, on_uncopied or (lambda requests: None), session, user,
        counts or ProxyCounts(),
    )  # fmt: skip
    return Proxy(setup)


SECRET_HEADERS = frozenset((b"authorization", b"proxy-authorization", b"x-api-key", b"api-key", b"cookie"))


def header_name(option: str, name: str | None) -> bytes:
    """The name of a header as ASGI has it, b"" for None; UsageError if it is not one, or holds a secret.

    >>> header_name("--session-header", "X-Session-Id")
    b'x-session-id'
    """
    import re

    from ..._base.errors import UsageError

    if name is None:
        return b""
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", name):
        raise UsageError(f"{option} is not the name of a header. Example: {option} X-Session-Id.")
    lower = name.lower().encode()
    if lower in SECRET_HEADERS:
        raise UsageError(f"{option} names a header that holds a secret. Secrets are never recorded.")
    return lower


WHOLE = 1 << 20  # bytes of a body that aiohttp writes at once
ERRORS = {  # status -> message; none of them holds anything of the request
    400: "The request is malformed.",
    408: "The body of the request did not arrive in time.",
    413: "The body of the request is too large.",
    502: "The upstream cannot be reached, or its answer is not valid.",
    504: "The upstream did not answer in time.",
}
MAX_KEY = 1000  # bytes of a header that names a session or a user
OWN = frozenset((b"host", b"expect", b"content-length"))  # headers that the connection to the upstream sets itself


class _Refused(Exception):
    """The proxy refuses the request, with the status in `Forwarding.refused`."""


class Forwarding:
    """One request and its answer. `run` forwards it."""

    def __init__(self, proxy: ProxySetup, scope: Scope, receive: Receive, send: Send) -> None:
        arrived_ns = time.time_ns()
        self.proxy, self.scope, self.receive, self.send = proxy, scope, receive, send
        self.source = source_of(scope["method"], scope["path"])
        self.copy = Copy(proxy.limits, proxy.memory, arrived_ns) if self.source else None
        self.fields: dict[bytes, bytes] = dict(scope["headers"])  # of a header that comes twice, the last one
        self.body_size = 0  # bytes of the request's body so far
        self.status = 0  # of the upstream's answer; 0 = it has not begun
        self.answer_fields: dict[bytes, bytes] = {}
        self.sends, self.is_sending = 0, False  # pieces of the answer
        self.refused = 0  # the status with which the proxy refuses the request
        self.has_left = False  # the client has left, or takes nothing
        self.has_ended = False  # the client has the whole answer
        self.is_over = False
        self.watcher: asyncio.Future[Any] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[Any] | None = None

    async def run(self) -> None:
        """Forward the request. A failure becomes a status or breaks the answer off; nothing is raised or logged."""
        self.task = asyncio.current_task()
        self.proxy.counts.requests += 1
        response, failure = None, 0
        try:
            response = await self._asked()
            await self._pass_on(response)
            self.has_ended = True
        except asyncio.CancelledError:
            if not self.has_left:
                raise  # the server stops
            if self.task is not None:
                self.task.uncancel()
        except Exception as error:  # its message may hold content
            failure = self.refused or _status_of(error)
        finally:
            self._finish(response)
        if failure and not self.has_left:
            await self._fail(failure)

    async def _asked(self):
        """The upstream's answer, with its headers."""
        scope, limits = self.scope, self.proxy.limits
        target = scope["raw_path"].decode("ascii")
        if not target.startswith("/"):  # it could name another server
            raise self._refusal(400)
        if scope["query_string"]:
            target = f"{target}?{scope['query_string'].decode('ascii')}"
        if self.copy is not None and int(self.fields.get(b"content-length", b"0")) > limits.max_body:
            raise self._refusal(413)
        headers, body = forwarded(scope["headers"], OWN), None
        piece, more = await self._piece()
        if more or len(piece) > WHOLE:
            body = self._upload(piece, more)
            headers += [(name, value) for name, value in self.fields.items() if name == b"content-length"]
        else:
            body = piece or None
            self._watch()
        return await self.proxy.upstream.ask(scope["method"], target, headers, body, self._inform)

    def _inform(self, status, headers):
        """Pass on an informational response, such as 103 Early Hints."""
        send = self.scope.get("extensions", {}).get(INFORMATIONAL)
        if send is not None and self.scope["http_version"] == "1.1":
            send(status, headers)

    async def _piece(self) -> tuple[bytes, bool]:
        """The next piece of the request's body, and whether there are more."""
        try:
            async with asyncio.timeout(self.proxy.limits.client_s):
                message = await self.receive()
        except TimeoutError:
            raise self._refusal(408) from None
        if message["type"] == "http.disconnect":
            self.has_left = True
            raise ConnectionError
        piece = message.get("body", b"")
        if self.copy is not None:
            self.body_size += len(piece)
            if self.body_size > self.proxy.limits.max_body:
                raise self._refusal(413)
            self.copy.add_request(piece)
        return piece, message.get("more_body", False)

    def _refusal(self, status):
        """The error to raise. aiohttp wraps it if it is raised during an upload, so the status is kept here."""
        self.refused = status
        return _Refused

    async def _upload(self, piece: bytes, more: bool) -> AsyncIterator[bytes]:
        """The pieces of the request's body, as they come."""
        for start in range(0, len(piece), WHOLE):
            yield piece[start : start + WHOLE]
        while more:
            piece, more = await self._piece()
            if piece:
                yield piece
        self._watch()

    def _watch(self):
        """Once the request is complete, the next message tells that the client has left."""
        self.watcher = asyncio.ensure_future(self.receive())
        self.watcher.add_done_callback(self._client_left)

    def _client_left(self, watcher):
        if not self.is_over and not watcher.cancelled():
            self._stop()

    def _stop(self):
        self.has_left = True
        if self.task is not None:
            self.task.cancel()

    def _check(self, sends):
        """Stop if the client has taken nothing since the last look."""
        if self.is_sending and self.sends == sends:
            self._stop()
        else:
            self._check_later()

    def _check_later(self):
        self.timer = asyncio.get_running_loop().call_later(self.proxy.limits.client_s, self._check, self.sends)

    async def _pass_on(self, response):
        """Send the answer to the client, in the pieces that arrive."""
        status, fields = response.status, response.raw_headers
        self.answer_fields = {name.lower(): value for name, value in fields}
        without = frozenset((b"content-length",)) if status in (204, 304) else frozenset()
        headers = forwarded(fields, without)
        self.status = status
        self._check_later()
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        content, copy, send = response.content, self.copy if 200 <= status < 300 else None, self.send
        more = True
        while more:
            piece = await content.readany()
            more = not content.at_eof()
            if copy is not None and piece:
                copy.add_answer(piece)
            self.sends += 1
            self.is_sending = True
            await send({"type": "http.response.body", "body": piece, "more_body": more})
            self.is_sending = False

    async def _fail(self, status: int):
        """Answer with an error; an answer that has begun is broken off, because the server sees no end of it."""
        counts = self.proxy.counts
        if status in (502, 504):
            counts.failed += 1
        else:
            counts.refused += 1
        if self.status:
            return
        body = orjson.dumps({"type": "error", "error": {"type": "proxy_error", "message": ERRORS[status]}})
        headers: Headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        if status == 408:
            headers.append((b"connection", b"close"))
        try:
            await self.send({"type": "http.response.start", "status": status, "headers": headers})
            await self.send({"type": "http.response.body", "body": body, "more_body": False})
        except Exception:  # the connection is gone
            counts.left += 1

    def _finish(self, response):
        """Release what the request held, and put its copy into the queue."""
        self.is_over = True
        if self.timer is not None:
            self.timer.cancel()
        if self.watcher is not None:
            self.watcher.cancel()
        if response is not None:
            (response.release if self.has_ended else response.close)()  # a closed connection ends the upstream's work
        counts = self.proxy.counts
        is_answered = self.has_ended or (self.has_left and self.status != 0)  # many clients read no body of an error
        is_other, is_error = self.copy is None, self.copy is not None and not 200 <= self.status < 300
        counts.other += is_answered and is_other
        counts.errors += is_answered and is_error
        counts.left += self.has_left and not (is_answered and (is_other or is_error))
        if self.copy is not None and 200 <= self.status < 300:
            if self.copy.is_dropped:
                self.proxy.on_uncopied(1)
            taken = not self.copy.is_dropped and self.proxy.put(self.source, self._exchange().packed(), 1)
            counts.recorded += taken
            counts.dropped += not taken
        if self.copy is not None:
            self.copy.release()

    def _exchange(self):
        request, answer = self.fields, self.answer_fields
        return self.copy.exchange(
            complete=self.has_ended,
            streamed=answer.get(b"content-type", b"").lower().startswith(b"text/event-stream"),
            request_coding=request.get(b"content-encoding", b"").decode("latin-1"),
            answer_coding=answer.get(b"content-encoding", b"").decode("latin-1"),
            session=_key(request, self.proxy.session_header),
            user=_key(request, self.proxy.user_header),
        )


def _status_of(error):
    """The status that tells the client of a failure."""
    if isinstance(error, TimeoutError):
        return 504
    return 400 if isinstance(error, ValueError) else 502


def _key(fields, name):
    value = fields.get(name, b"")
    return value.decode("latin-1") if 0 < len(value) <= MAX_KEY else None
