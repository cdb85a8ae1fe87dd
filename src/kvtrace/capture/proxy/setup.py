"""What all requests through a proxy share: the queue, the connections to the upstream, limits and counts.

The connections are a pool of aiohttp's, without its redirects, cookies, headers or decompression.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from ..._base.errors import UsageError
from ..source import Put
from .exchange import Limits, Memory

# of one connection, not of the message (RFC 9110, 7.6.1)
HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te",
     b"trailer", b"transfer-encoding", b"upgrade")
)  # fmt: skip
AUTOMATIC = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")  # headers that aiohttp would add
MAX_HEADER = 1 << 16  # bytes

Headers = list[tuple[bytes, bytes]]


class Upstream:
    """The server behind the proxy."""

    def __init__(self, url: str, limits: Limits) -> None:
        self.base, self._limits = base_of(url), limits
        self._session: Any = None

    async def ask(self, method: str, target: str, headers: Headers, body: bytes | AsyncIterator[bytes] | None) -> Any:
        """Send a request; the answer as aiohttp's ClientResponse, as soon as its headers are there.

        Raises:
            TimeoutError: The upstream cannot be reached, or does not answer, in time.
            aiohttp.ClientError, OSError, ValueError: It cannot be reached, or its answer is not HTTP.
        """
        session = self._session or self.open()
        fields = [(name.decode("latin-1"), value.decode("utf-8", "surrogateescape")) for name, value in headers]
        url = self._url(self.base + target, encoded=True)
        return await session.request(method, url, data=body, headers=self._headers(fields), allow_redirects=False)

    def open(self) -> Any:
        """Open the pool, in the event loop that will use it; the first request opens it otherwise."""
        import aiohttp
        from multidict import CIMultiDict
        from yarl import URL

        self._url, self._headers = URL, CIMultiDict
        limits = self._limits
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=limits.idle_s),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.connect_s, sock_read=limits.upstream_s),
            cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False, skip_auto_headers=AUTOMATIC,
            max_line_size=MAX_HEADER, max_field_size=MAX_HEADER,
        )  # fmt: skip
        return self._session

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()


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
