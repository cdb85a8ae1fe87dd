"""HTTP servers of a live service: ASGI applications, each on a port of its own, in one thread with one event loop."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from .._base.errors import UsageError
from .._base.workers import place_of
from .asgi import App, Message, Receive, Scope, Send

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
class Listener:
    """One server: what it is for, its application, and its address."""

    name: str
    app: App
    address: Address


class Servers:
    """Runs listeners while its block runs.

    Raises:
        UsageError: an address is in use, or not of this machine.
    """

    def __init__(self, listeners: list[Listener], on_fault: Callable[[str], None]):
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


def _bound(listener: Listener) -> socket.socket:
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
