"""One request and its answer as the proxy saw them: the paths of its API, limits, copies in memory, and their payload.

Calls that generate text are known by the paths of their APIs; each kind has its own source and log reader. Copies are
bounded each, and all copies together.

A payload is one line of JSON (times, sizes, codings), the bytes of the request's body, and the bytes of the answer's.
No header is part of it, except the values of those that the user names as session and user.

All requests share the queue, the connections to the upstream (a pool of aiohttp's, without its redirects, cookies,
headers or decompression), limits and counts.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import orjson

from ..._base.errors import RowError, UsageError
from ..source import Put

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes and times that the proxy accepts. Bodies of calls that generate no text are neither kept nor limited."""

    max_body: int = 64 * MIB  # bytes of a request that generates text; a larger one is refused (413)
    max_answer: int = 32 * MIB  # bytes of an answer that are kept; the rest passes through
    max_held: int = 512 * MIB  # bytes of all copies of requests under way; copies beyond are dropped
    client_s: float = 30.0  # a client may send or take nothing for this long (408; an answer is broken off)
    connect_s: float = 10.0  # to connect to the upstream (504)
    upstream_s: float = 600.0  # the upstream may send nothing for this long (504; an answer is broken off)
    idle_s: float = 4.0  # an idle connection to the upstream is kept; vLLM's and SGLang's servers close it after 5 s


OPENAI, RESPONSES, ANTHROPIC = "proxy-openai", "proxy-responses", "proxy-anthropic"

# the end of a path -> name of the source; prefixes (/v1, /openai/deployments/NAME) are the server's own
ENDINGS = {
    "/chat/completions": OPENAI,
    "/completions": OPENAI,
    "/responses": RESPONSES,
    "/messages": ANTHROPIC,
}


def source_of(method: str, path: str) -> str | None:
    """The name of the source that records this call; None if the call generates no text.

    >>> source_of("POST", "/v1/chat/completions"), source_of("POST", "/v1/messages/count_tokens")
    ('proxy-openai', None)
    """
    if method != "POST":
        return None
    path = path.rstrip("/")
    name = next((name for ending, name in ENDINGS.items() if path.endswith(ending)), None)
    return None if name == ANTHROPIC and "/threads/" in path else name  # OpenAI's Assistants add messages to threads


MAX_ARRIVALS = 64  # pieces of an answer whose time is kept: the first token is in one of the first


@dataclass(frozen=True, slots=True, repr=False)
class Exchange:
    """A request and its answer, as bytes. It holds text, so its repr shows nothing of it."""

    request: bytes  # the body, in its content coding
    answer: bytes  # likewise, as far as it came and was kept
    arrived_ns: int  # since 1970: the request's headers were there
    ended_ns: int  # the last byte of the answer was there
    complete: bool  # all bytes of the answer are here
    streamed: bool  # the answer is a stream of events
    arrivals: list[tuple[int, int]] = field(default_factory=list)  # (bytes of the answer so far, time in ns)
    request_coding: str = ""  # the values of Content-Encoding
    answer_coding: str = ""
    session: str | None = None
    user: str | None = None

    def packed(self) -> bytes:
        """The exchange as a payload.

        >>> exchange = Exchange(b"{}", b"[]", arrived_ns=1, ended_ns=2, complete=True, streamed=False)
        >>> Exchange.unpacked(exchange.packed()) == exchange
        True
        """
        head = {name: getattr(self, name) for name in _HEAD}
        return b"".join((orjson.dumps(head | {"size": len(self.request)}), b"\n", self.request, self.answer))

    @classmethod
    def unpacked(cls, payload: bytes) -> Exchange:
        """The exchange of a payload; RowError if the payload is damaged."""
        head, newline, bodies = payload.partition(b"\n")
        try:
            values = orjson.loads(head)
            size = values.pop("size")
            arrivals = [(offset, time_ns) for offset, time_ns in values.pop("arrivals")]
            exchange = cls(request=bodies[:size], answer=bodies[size:], arrivals=arrivals, **values)
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError):
            exchange = None
        if exchange is None or not newline:
            raise RowError("the payload of the proxy is damaged.")
        return exchange


_HEAD = (
    "arrived_ns", "ended_ns", "complete", "streamed", "arrivals", "request_coding", "answer_coding", "session", "user",
)  # fmt: skip


@dataclass(slots=True)
class Memory:
    """The bytes of all copies that are not in the queue yet."""

    held: int = 0


class Copy:
    """One copy. Its repr shows nothing of it.

    >>> copy = Copy(Limits(max_answer=4), Memory(), arrived_ns=5)
    >>> copy.add_request(b"{}"), copy.add_answer(b"Yes"), copy.add_answer(b" and no")
    (None, None, None)
    >>> exchange = copy.exchange(complete=True, streamed=True)
    >>> exchange.answer, exchange.complete
    (b'Yes ', False)
    """

    __slots__ = (
        "_answer", "_arrivals", "_held", "_limits", "_memory", "_request", "arrived_ns", "full",
        "is_dropped",
    )  # fmt: skip

    def __init__(self, limits: Limits, memory: Memory, arrived_ns: int) -> None:
        self.arrived_ns = arrived_ns
        self.full = False  # the answer is longer than its limit: what came after is not kept
        self.is_dropped = False  # all copies together are larger than their limit: nothing of this one is kept
        self._limits, self._memory, self._held = limits, memory, 0
        self._request, self._answer = bytearray(), bytearray()  # a list of pieces takes forty times tiny ones
        self._arrivals: list[tuple[int, int]] = []

    def add_request(self, piece: bytes) -> None:
        """Keep a piece of the request's body."""
        if not self.is_dropped and self._has_room(len(piece)):
            self._request += piece

    def add_answer(self, piece: bytes) -> None:
        """Keep a piece of the answer's body, and when it came."""
        if self.full or self.is_dropped:
            return
        room = self._limits.max_answer - len(self._answer)
        if len(piece) > room:
            self.full = True
            piece = piece[:room]
        if self._has_room(len(piece)):
            self._answer += piece
            if len(self._arrivals) < MAX_ARRIVALS:
                self._arrivals.append((len(self._answer), time.time_ns()))

    def _has_room(self, size):
        if self._memory.held + size > self._limits.max_held:
            self.release()
            self.is_dropped = True
            return False
        self._memory.held += size
        self._held += size
        return True

    def exchange(
        self,
        *,
        complete: bool,
        streamed: bool,
        request_coding: str = "",
        answer_coding: str = "",
        session: str | None = None,
        user: str | None = None,
    ) -> Exchange:
        """The request and the answer, which ends now."""
        return Exchange(
            request=bytes(self._request), answer=bytes(self._answer), arrived_ns=self.arrived_ns,
            ended_ns=time.time_ns(), complete=complete and not self.full, streamed=streamed,
            arrivals=self._arrivals if streamed else [], request_coding=request_coding, answer_coding=answer_coding,
            session=session, user=user,
        )  # fmt: skip

    def release(self) -> None:
        """Forget the copy; its bytes no longer count."""
        self._memory.held -= self._held
        self._held = 0
        self._request, self._answer = bytearray(), bytearray()


# of one connection, not of the message (RFC 9110, 7.6.1)
HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te",
     b"trailer", b"transfer-encoding", b"upgrade")
)  # fmt: skip
AUTOMATIC = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")  # headers that aiohttp would add
MAX_HEADER = 1 << 16  # bytes

MAX_INFORMATIONAL = 16  # responses before an answer; with more, the answer is not valid

Headers = list[tuple[bytes, bytes]]
OnInformational = Callable[[int, Headers], None]
_ON_INFORMATIONAL: ContextVar[OnInformational] = ContextVar("on_informational")  # of the request of this task


class Upstream:
    """The server behind the proxy."""

    def __init__(self, url: str, limits: Limits) -> None:
        self.base, self._limits = base_of(url), limits
        self._session: Any = None

    async def ask(
        self,
        method: str,
        target: str,
        headers: Headers,
        body: bytes | AsyncIterator[bytes] | None,
        on_informational: OnInformational,
    ) -> Any:
        """Send a request; the answer as aiohttp's ClientResponse, as soon as its headers are there.

        `on_informational` receives the status and headers of each response (103 Early Hints) that comes before.

        Raises:
            TimeoutError: The upstream cannot be reached, or does not answer, in time.
            aiohttp.ClientError, OSError, ValueError: It cannot be reached, or its answer is not HTTP.
        """
        session = self._session or self.open()
        fields = [(name.decode("latin-1"), value.decode("utf-8", "surrogateescape")) for name, value in headers]
        url = self._url(self.base + target, encoded=True)
        _ON_INFORMATIONAL.set(on_informational)
        return await session.request(method, url, data=body, headers=self._headers(fields), allow_redirects=False)

    def open(self) -> Any:
        """Open the pool, in the event loop that will use it; the first request opens it otherwise."""
        import aiohttp
        from multidict import CIMultiDict
        from yarl import URL

        class Response(aiohttp.ClientResponse):
            """aiohttp reads informational responses and forgets them; this one reports them."""

            async def start(self, connection):
                protocol: Any = connection.protocol
                protocol.read = _reported(protocol.read)
                try:
                    return await super().start(connection)
                finally:
                    del protocol.read

        self._url, self._headers = URL, CIMultiDict
        limits = self._limits
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=limits.idle_s),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.connect_s, sock_read=limits.upstream_s),
            cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False, skip_auto_headers=AUTOMATIC,
            max_line_size=MAX_HEADER, max_field_size=MAX_HEADER, response_class=Response,
        )  # fmt: skip
        return self._session

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()


def _reported(read):
    """`read` of a connection to the upstream; informational responses are reported."""
    count, on_informational = 0, _ON_INFORMATIONAL.get()

    async def reading():
        nonlocal count
        message, payload = await read()
        if 100 <= message.code < 200:
            count += 1
            if count > MAX_INFORMATIONAL:
                raise ConnectionError
            if message.code > 101:  # 100 and 101 concern the connection to the upstream alone
                on_informational(message.code, forwarded(message.raw_headers))
        return message, payload

    return reading


def base_of(url: str) -> str:
    """The URL without a slash at its end; UsageError if it is not that of a server.

    >>> base_of("https://gateway.example/llm/")
    'https://gateway.example/llm'
    """
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise UsageError("--upstream is not the URL of a server. Example: --upstream http://127.0.0.1:8000.")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError("--upstream has a name, a password, a query or a fragment. Leave it out.")
    return url.rstrip("/")


def forwarded(headers: Headers, without: frozenset[bytes] = frozenset()) -> Headers:
    """The headers of a message that go on to the other side, in their order.

    >>> forwarded([(b"connection", b"close, x-a"), (b"x-a", b"1"), (b"X-B", b"2")])
    [(b'X-B', b'2')]
    """
    left_out = HOP_BY_HOP | without
    for name, value in headers:
        if name.lower() == b"connection":
            left_out |= {option.strip().lower() for option in value.split(b",")}
    return [(name, value) for name, value in headers if name.lower() not in left_out]


@dataclass
class ProxyCounts:
    """What became of the requests."""

    requests: int = 0  # all that came
    recorded: int = 0  # their copies are in the queue
    dropped: int = 0  # answered, but their copies found no room in the queue or in memory
    refused: int = 0  # by the proxy itself: too large, too slow or malformed
    failed: int = 0  # the upstream was unreachable, too slow, or broke its answer off
    left: int = 0  # the client left before the end of the answer
    errors: int = 0  # the upstream answered with an error
    other: int = 0  # no generation of text, such as a list of models: passed on, and not recorded


@dataclass(frozen=True)
class ProxySetup:
    """The settings and the shared state of a proxy."""

    put: Put
    upstream: Upstream
    limits: Limits
    on_uncopied: Callable[[int], None]  # counts requests whose copies found no memory
    session_header: bytes = b""  # its value is the key of a session
    user_header: bytes = b""
    counts: ProxyCounts = field(default_factory=ProxyCounts)
    memory: Memory = field(default_factory=Memory)
