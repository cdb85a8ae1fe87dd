"""The sources of a live service, running: HTTP servers, followed files and sockets of events, which fill one queue."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

from .._base.errors import UsageError
from .._base.workers import place_of
from .asgi import App
from .proxy.setup import ProxyCounts
from .servers import Address, Listener, Servers

LIBRARIES = {  # option -> modules of the extra `live` that it needs
    "otlp": ("uvicorn", "opentelemetry.proto", "google.protobuf"),
    "proxy": ("uvicorn", "aiohttp"),
    "kv_events": ("zmq", "msgspec"),
    "metrics": ("uvicorn", "prometheus_client"),
}


class Queue(Protocol):
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
        queue: Queue,
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

            yield Listener("otlp", otlp_app(self._queue.put), options.otlp)
        if options.proxy is not None and options.upstream is not None:
            from .proxy.app import proxy_app

            proxy = proxy_app(
                self._queue.put, options.upstream, session_header=options.session_header,
                user_header=options.user_header, counts=self._queue.proxy, on_uncopied=self._queue.note_uncopied,
            )  # fmt: skip
            yield Listener("proxy", proxy, options.proxy)
        if options.metrics is not None and metrics is not None:
            yield Listener("metrics", metrics, options.metrics)

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
            for one in filter(None, (address, replay)):
                require_address(one)
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
