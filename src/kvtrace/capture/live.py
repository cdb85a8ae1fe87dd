"""The sources of a live service, running: HTTP servers, followed files and sockets of events, which fill one queue.

The HTTP servers are ASGI applications, each on a port of its own, in one thread with one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from .._base.errors import UsageError
from .._base.workers import place_of
from .asgi import App, Message, Receive, Scope, Send
from .proxy.exchange import ProxyCounts

BACKLOG = 1024
KEEP_ALIVE_S = 75  # an idle connection is kept; a request fails where the server closes one that a client still uses
CLOSE_S = 5  # how long open connections may take to finish when the service ends


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, *, host: str = "127.0.0.1") -> Address:
    """An address of the form PORT, :PORT or HOST:PORT; UsageError if it is not one.

    >>> str(parse_address("4318")), str(parse_address("0.0.0.0:80")), str(parse_address("[::1]:80"))
    ('127.0.0.1:4318', '0.0.0.0:80', '[::1]:80')
    """
    match = re.fullmatch(r"(?:(?:\[([0-9a-fA-F:.]+)\]|([^:\s\[\]/]*)):)?(\d{1,5})", text.strip())
    if match is None or int(match[3]) > 65535:
        raise UsageError(f"{text!r} is not an address. Examples: 4318, 127.0.0.1:4318, 0.0.0.0:4318.")
    return Address(match[1] or match[2] or host, int(match[3]))


@dataclass(frozen=True)
class HttpListener:
    """One server: what it is for, its application, and its address."""

    name: str
    app: App
    address: Address


class Servers:
    """Runs listeners while its block runs.

    Raises:
        UsageError: an address is in use, or not of this machine.
    """

    def __init__(self, listeners: list[HttpListener], on_fault: Callable[[str], None]):
        """`on_fault` receives the place of an unexpected exception of an application, without content."""
        self._listeners, self._on_fault = listeners, on_fault
        self._sockets: list[socket.socket] = []
        self._servers: list[Any] = []

    def __enter__(self) -> Self:
        try:
            for listener in self._listeners:
                self._sockets.append(_bound(listener))
        except BaseException:
            for bound in self._sockets:
                bound.close()
            raise
        self.addresses = {
            listener.name: Address(*bound.getsockname()[:2])
            for listener, bound in zip(self._listeners, self._sockets, strict=True)
        }
        if self._listeners:
            ready = threading.Event()
            self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True, name="http")
            self._thread.start()
            ready.wait()
        return self

    def __exit__(self, _kind: type | None, _error: BaseException | None, _traceback: TracebackType | None) -> None:
        for server in self._servers:
            server.should_exit = True
        if self._listeners:
            self._thread.join(2 * CLOSE_S)

    def _run(self, ready: threading.Event) -> None:
        import uvicorn

        for name in ("uvicorn", "uvicorn.error", "asyncio", "aiohttp"):  # their tracebacks could show content
            logging.getLogger(name).disabled = True
        for listener in self._listeners:
            config = uvicorn.Config(
                guarded_app(listener.app, self._on_fault), log_config=None, access_log=False, lifespan="auto",
                timeout_graceful_shutdown=CLOSE_S, server_header=False, date_header=False, ws="none",
                timeout_keep_alive=KEEP_ALIVE_S, proxy_headers=False,
            )  # fmt: skip
            self._servers.append(uvicorn.Server(config))
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(self._serve(ready))

    async def _serve(self, ready: threading.Event) -> None:
        work = [
            asyncio.create_task(server.serve(sockets=[bound]))
            for server, bound in zip(self._servers, self._sockets, strict=True)
        ]
        while not all(server.started for server in self._servers) and not any(task.done() for task in work):
            await asyncio.sleep(0.01)
        ready.set()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*work)


def guarded_app(app: App, on_fault: Callable[[str], None]) -> App:
    """The application; an unexpected exception of it becomes an answer 500, and its place is reported."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = has_begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await app(scope, receive, watched)
        except Exception as error:
            on_fault(place_of(error))
            if not has_begun:
                await send({"type": "http.response.start", "status": 500, "headers": [(b"content-length", b"0")]})
                await send({"type": "http.response.body", "body": b""})

    return guarded


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's event loop where it is installed; else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _bound(listener: HttpListener) -> socket.socket:
    address = listener.address
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        bound = socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)
        # connections inherit it; asyncio does not set it for them, and each first token would wait 40 ms (Nagle)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return bound
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or "not an address of this machine"
        reason = reason.partition(" (while ")[0]  # create_server adds the address
        raise UsageError(f"--{listener.name}: cannot listen at {address} ({reason}). Choose another address.") from None


LIBRARIES = {  # option -> modules of the extra `live` that it needs
    "otlp": ("uvicorn", "opentelemetry.proto", "google.protobuf"),
    "proxy": ("uvicorn", "aiohttp"),
    "kv_events": ("zmq", "msgspec"),
    "metrics": ("uvicorn", "prometheus_client"),
}


class PayloadQueue(Protocol):
    """What takes payloads: a Recorder or a Watcher."""

    def put(self, source: str, payload: bytes, requests: int = 1) -> bool:
        """Put a payload into the queue; False if there is no room."""
        ...

    def has_room(self, size: int) -> bool:
        """Whether the queue has room for a payload of so many bytes."""
        ...

    def note_uncopied(self, requests: int) -> None:
        """Count requests as dropped whose copies found no memory before they came to the queue."""
        ...

    @property
    def proxy(self) -> ProxyCounts:
        """What became of the requests to the proxy."""
        ...


@dataclass(frozen=True, kw_only=True)
class LiveOptions:
    """Which sources run, and where."""

    otlp: Address | None = None  # OTLP/HTTP and LiteLLM's generic_api callback
    proxy: Address | None = None
    upstream: str | None = None  # URL of the server behind the proxy
    session_header: str | None = None  # of requests to the proxy: its value is the key of a session
    user_header: str | None = None
    follow: tuple[Path, ...] = ()
    from_start: bool = False  # read what followed files hold already
    kv_events: tuple[str, ...] = ()  # addresses of publishers, each with an optional address of its replay socket
    metrics: Address | None = None

    def require_source(self) -> None:
        """UsageError if no source is named, or if options lack each other."""
        if not (self.otlp or self.proxy or self.follow or self.kv_events):
            raise UsageError("no source is named. Use --otlp, --proxy, --follow or --kv-events.")
        if (self.proxy is None) != (self.upstream is None):
            raise UsageError("--proxy and --upstream require each other.")
        if self.proxy is None and (self.session_header or self.user_header):
            raise UsageError("--session-header and --user-header require --proxy.")
        if self.from_start and not self.follow:
            raise UsageError("--from-start requires --follow.")

    def require_libraries(self) -> None:
        """UsageError if a library that these sources need is not installed. To be called before anything is made."""
        for option, names in LIBRARIES.items():
            for name in names if getattr(self, option) else ():
                if not _is_installed(name):
                    raise UsageError(
                        f"--{option.replace('_', '-')} needs {name}, which is not installed. "
                        "Run `pip install 'kvtrace[live]'`."
                    )

    def require_startable(self) -> None:
        """UsageError if a source is not valid, or an address is in use. To be called before anything is made."""
        from .proxy.app import header_name
        from .proxy.exchange import base_of
        from .sources.follow import require_no_folder
        from .sources.kv_events import require_address

        for path in self.follow:
            require_no_folder(path)
        for endpoint in self.kv_events:
            for address in filter(None, endpoint.split(",", 1)):
                require_address(address)
        if self.upstream is not None:
            base_of(self.upstream)
            header_name("--session-header", self.session_header)
            header_name("--user-header", self.user_header)
        for name in ("otlp", "proxy", "metrics"):
            if (listen := getattr(self, name)) is not None:
                _bound(HttpListener(name, _no_app, listen)).close()


async def _no_app(_scope: Scope, _receive: Receive, _send: Send) -> None:
    """The application of a socket that is only tried."""


class Live:
    """Runs the sources while its block runs.

    Args:
        options: Which sources.
        queue: Takes what they receive.
        state: Folder where followed files keep their positions; None = they keep none.
        metrics: The application of --metrics.
        on_message: Receives sentences for an operator, without content.

    Raises:
        UsageError: an option is not valid, or an address is in use.
    """

    def __init__(
        self,
        options: LiveOptions,
        queue: PayloadQueue,
        *,
        state: Path | None = None,
        metrics: App | None = None,
        on_message: Callable[[str], None],
    ):
        options.require_source()
        options.require_libraries()
        self._options, self._queue, self._state, self._say = options, queue, state, on_message
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._servers = Servers(list(self._listeners(metrics)), self._on_fault)

    def __enter__(self) -> Self:
        followers = self._followers()
        self._servers.__enter__()
        for path in self._options.follow:
            if not os.access(path, os.R_OK):
                self._say(
                    f"--follow {path}: the file is missing or cannot be read. It is followed once it can be read."
                )
        for name, work in followers:
            thread = threading.Thread(target=self._guarded, args=(work,), daemon=True, name=name)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._servers.__exit__(*exception)
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def addresses(self) -> dict[str, Address]:
        """Name of each server -> where it listens."""
        return self._servers.addresses

    def _listeners(self, metrics: App | None):
        options = self._options
        if options.otlp is not None:
            from .sources.otlp import otlp_app

            yield HttpListener("otlp", otlp_app(self._queue.put), options.otlp)
        if options.proxy is not None and options.upstream is not None:
            from .proxy.app import proxy_app

            proxy = proxy_app(
                self._queue.put, options.upstream, session_header=options.session_header,
                user_header=options.user_header, counts=self._queue.proxy, on_uncopied=self._queue.note_uncopied,
            )  # fmt: skip
            yield HttpListener("proxy", proxy, options.proxy)
        if options.metrics is not None and metrics is not None:
            yield HttpListener("metrics", metrics, options.metrics)

    def _followers(self) -> list[tuple[str, Callable[[], Any]]]:
        from .sources.follow import Follower

        work: list[tuple[str, Callable[[], Any]]] = []
        for path in self._options.follow:
            follower = Follower(
                path, self._queue.put, self._queue.has_room, state=self._state, from_start=self._options.from_start
            )  # fmt: skip
            work.append(("follow", partial(follower.run, self._stop)))
        for number, endpoint in enumerate(self._options.kv_events):
            from .sources.kv_events import follow_events, require_address

            address, _, replay = endpoint.partition(",")
            for socket_address in filter(None, (address, replay)):
                require_address(socket_address)
            follow = partial(follow_events, publisher=number, replay=replay or None)
            work.append(("kv-events", partial(follow, address, self._queue.put, self._stop)))
        return work

    def _guarded(self, work: Callable[[], Any]) -> None:
        try:
            work()
        except Exception as error:
            self._on_fault(place_of(error))

    def _on_fault(self, place: str) -> None:
        self._say(f"internal error: {place}. Please report it; the message contains no content.")


def _is_installed(name: str) -> bool:
    """Whether a module can be found; nothing but its parents is imported."""
    from importlib.util import find_spec

    try:
        return find_spec(name) is not None
    except ImportError:  # a parent is missing
        return False
