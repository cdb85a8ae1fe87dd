"""The sources of a live service, running: HTTP servers, followed files and sockets of events, which fill one queue.

The HTTP servers are ASGI applications, each on a port of its own, in one thread with one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from .._base.errors import StoppedError, UsageError
from .._base.workers import place_of
from .asgi import App, Message, Receive, Scope, Send
from .connections import ACCEPT_AT_ONCE, Connections, HttpLimits, free_descriptors, protocol
from .intake import Ledger
from .proxy.exchange import ProxyCounts
from .supervisor import Part, Supervisor

BACKLOG = 1024
CLOSE_S = 5  # how long open connections may take to finish when the service ends
START_S = 30  # how long servers may take to start
TICK_S = 0.1  # from one look at the servers to the next
STEADY_S = 1.0  # a server that was started again works after so long


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
    descriptors: int = 1  # file descriptors of a connection: the proxy has one more, to the upstream


class Servers:
    """Runs listeners while its block runs. A server that fails is started again at its address.

    Args:
        listeners: The servers.
        on_fault: Receives the place of an unexpected exception of an application, without content.
        supervisor: Runs the thread, and each server in it.
        limits: What clients may do.
        clock: Seconds, for the limits of time.

    Raises:
        UsageError: an address is in use, or not of this machine, or the limit of open files is too low.
        StoppedError: the servers did not start.
    """

    def __init__(
        self,
        listeners: list[HttpListener],
        on_fault: Callable[[str], None],
        supervisor: Supervisor | None = None,
        *,
        limits: HttpLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._listeners, self._on_fault = listeners, on_fault
        self.limits, self._clock = limits or HttpLimits(), clock
        supervisor = supervisor or Supervisor()
        self._part = supervisor.part("http") if listeners else None
        self._parts = {listener.name: supervisor.part(listener.name) for listener in listeners}
        self._sockets: dict[str, socket.socket] = {}  # name of the server -> where it listens
        self._servers: dict[str, Any] = {}  # those that run
        self._begun_s: dict[str, float] = {}
        self._ready, self._stopping = threading.Event(), threading.Event()

    def __enter__(self) -> Self:
        try:
            self._descriptors = free_descriptors(self.limits) if self._listeners else 0
            for listener in self._listeners:
                self._sockets[listener.name] = _bound(listener)
            self.addresses = {name: Address(*bound.getsockname()[:2]) for name, bound in self._sockets.items()}
            if self._part is not None:
                self._part.start(self._run, self._stopping.is_set)
                if not self._ready.wait(START_S):
                    self.__exit__(None, None, None)
                    raise StoppedError(f"the servers did not start within {START_S} s. Try again.")
        except BaseException:
            for bound in self._sockets.values():
                bound.close()
            raise
        return self

    def __exit__(self, _kind: type | None, _error: BaseException | None, _traceback: TracebackType | None) -> None:
        self._stopping.set()
        if self._part is not None:
            self._part.join(2 * CLOSE_S)

    def _run(self) -> None:
        for name in ("uvicorn", "uvicorn.error", "asyncio", "aiohttp"):  # their tracebacks could show content
            logging.getLogger(name).disabled = True
        _require_descriptors(LOOP_DESCRIPTORS)
        self._connections = Connections(self.limits, self._descriptors, clock=self._clock)  # of this event loop
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for listener in self._listeners:
                work = self._parts[listener.name].attend(partial(self._serve_one, listener), self._stopping.is_set)
                tasks.create_task(work)
            while not self._stopping.is_set():
                self._look()
                await asyncio.sleep(TICK_S if self._ready.is_set() else TICK_S / 10)
            for server in self._servers.values():
                server.should_exit = True

    def _look(self) -> None:
        """The loop runs; so do the servers in it that have started."""
        if self._part is not None:
            self._part.works()
        started = [name for name, server in self._servers.items() if server.started]
        for name in started:
            part, config = self._parts[name], self._servers[name].config
            if config.backlog != BACKLOG:  # the servers' own is what they accept at once
                config.backlog = BACKLOG
                self._sockets[name].listen(BACKLOG)
            if not part.in_a_row or time.monotonic() - self._begun_s[name] > STEADY_S:
                part.works()
        if len(started) == len(self._listeners):
            self._ready.set()

    def _server(self, listener: HttpListener) -> Any:
        import uvicorn

        http: Any = partial(protocol(), self._connections, listener.descriptors)
        config = uvicorn.Config(
            guarded_app(listener.app, self._on_fault), log_config=None, access_log=False, lifespan="auto",
            timeout_graceful_shutdown=CLOSE_S, server_header=False, date_header=False, ws="none", http=http,
            timeout_keep_alive=math.ceil(self.limits.idle_s), proxy_headers=False, backlog=ACCEPT_AT_ONCE,
            h11_max_incomplete_event_size=self.limits.head, callback_notify=self._sweep, timeout_notify=0,
        )  # fmt: skip
        return uvicorn.Server(config)

    async def _serve_one(self, listener: HttpListener) -> None:
        """Serve at the listener's address, which stays the same."""
        if self._stopping.is_set():
            return
        name = listener.name
        if (bound := self._sockets[name]).fileno() < 0:  # an earlier server at this address has failed
            bound = self._sockets[name] = _bound(replace(listener, address=self.addresses[name]))
        server = self._servers[name] = self._server(listener)
        self._begun_s[name] = time.monotonic()
        try:
            await server.serve(sockets=[bound])
        except BaseException:
            del self._servers[name]  # nobody looks at its closed socket
            with suppress(Exception):
                await server.shutdown(sockets=[bound])  # it ends its connections
            raise
        finally:
            self._servers.pop(name, None)
            bound.close()

    async def _sweep(self) -> None:
        try:
            self._connections.sweep()
        except Exception as error:
            self._on_fault(place_of(error))


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


LOOP_DESCRIPTORS = 16  # more than an event loop takes


def _require_descriptors(count: int) -> None:
    """OSError if the process has not so many descriptors left: uvloop aborts it if it finds none for a loop."""
    with ExitStack() as handles:
        for _ in range(count):
            handles.callback(os.close, os.open(os.devnull, os.O_RDONLY))


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

    def put(self, source: str, payload: bytes, requests: int = 1, *, moved: dict[int, int] | None = None) -> bool:
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
        ledger: Keeps the positions in followed files; None = in memory.
        metrics: The application of --metrics.
        on_message: Receives sentences for an operator, without content.
        supervisor: Runs the threads; the default is one of its own.

    Raises:
        UsageError: an option is not valid, or an address is in use.
    """

    def __init__(
        self,
        options: LiveOptions,
        queue: PayloadQueue,
        *,
        ledger: Ledger | None = None,
        metrics: App | None = None,
        on_message: Callable[[str], None],
        supervisor: Supervisor | None = None,
    ):
        options.require_source()
        options.require_libraries()
        self._options, self._queue, self._ledger, self._say = options, queue, ledger, on_message
        self._stop = threading.Event()
        self._supervisor = supervisor or Supervisor(on_message)
        self._parts: list[Part] = []
        self._servers = Servers(list(self._listeners(metrics)), self._on_fault, self._supervisor)

    def __enter__(self) -> Self:
        followers = self._followers()
        self._servers.__enter__()
        for path in self._options.follow:
            if not os.access(path, os.R_OK):
                self._say(
                    f"--follow {path}: the file is missing or cannot be read. It is followed once it can be read."
                )
        for name, work in followers:
            part = self._supervisor.part(name)
            part.start(partial(work, on_round=part.works), self._stop.is_set)
            self._parts.append(part)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._servers.__exit__(*exception)
        self._stop.set()
        for part in self._parts:
            part.join()

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
            yield HttpListener("proxy", proxy, options.proxy, descriptors=2)
        if options.metrics is not None and metrics is not None:
            yield HttpListener("metrics", metrics, options.metrics)

    def _followers(self) -> list[tuple[str, Callable[..., Any]]]:
        from .sources.follow import Follower

        work: list[tuple[str, Callable[..., Any]]] = []
        for path in self._options.follow:
            follower = Follower(
                path, self._queue.put, self._queue.has_room, ledger=self._ledger, from_start=self._options.from_start
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

    def _on_fault(self, place: str) -> None:
        self._supervisor.say_once(f"internal error: {place}. Please report it; the message contains no content.")


def _is_installed(name: str) -> bool:
    """Whether a module can be found; nothing but its parents is imported."""
    from importlib.util import find_spec

    try:
        return find_spec(name) is not None
    except ImportError:  # a parent is missing
        return False
