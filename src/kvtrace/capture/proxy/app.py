"""The proxy as an ASGI app: it forwards each request as it came, streams the answer through, and keeps a copy of both.

Nothing is parsed on the way. When the answer of a call that generates text is complete, its copy goes into the queue;
the digester makes a row of it. A copy that finds no room is dropped and counted; the answer never waits for it.
"""

from __future__ import annotations

from collections.abc import Callable

from ..asgi import Receive, Scope, Send
from ..source import Put
from .forwarding import Forwarding
from .limits import Limits
from .setup import ProxyCounts, ProxySetup
from .upstream import Upstream


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
        put: Takes a copy; its source is one of `calls.ENDINGS`.
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
