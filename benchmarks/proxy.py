"""The recording proxy: milliseconds that it adds to the first token, and its CPU time a request.

A stub model server answers each request at once, and then with a chunk every 20 ms, 20 in all. Server, proxy and
clients are three processes of one machine; the queue's payloads are taken and thrown away. Beside the proxy runs a
relay of bytes in the same event loop's library: what it takes, any proxy takes.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from .measuring import Line
from .proxy_load import Load, Model, Relay, ask_at

RATES, SECONDS = (200, 500), 10  # requests a second, and how long
QUANTILES = (0.5, 0.9, 0.99)
WHAT = ("first token p50", "first token p90", "first token p99", "processor time")
SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Measured:
    """What one load was like."""

    load: Load
    cpu_s: float  # of the server
    dropped: int

    def figures(self) -> list[float]:
        """Seconds to the first token by QUANTILES, and processor seconds a request."""
        return [*np.quantile(self.load.first_s, QUANTILES), self.cpu_s / len(self.load.first_s)]


def serve_model(pipe) -> None:
    """A process: the stub model server, until something comes through the pipe."""
    import uvloop

    async def run():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Model, "127.0.0.1", 0, backlog=4096)
        pipe.send(server.sockets[0].getsockname()[1])
        await loop.run_in_executor(None, pipe.recv)

    uvloop.run(run())


def serve_relay(pipe, port: int) -> None:
    """A process: the relay; each message through the pipe is answered with its CPU time."""
    import uvloop

    async def run():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Relay(port), "127.0.0.1", 0, backlog=4096)
        pipe.send(server.sockets[0].getsockname()[1])
        while await loop.run_in_executor(None, pipe.recv):
            pipe.send((time.process_time(), 0, []))

    uvloop.run(run())


def serve_proxy(pipe, upstream: str) -> None:
    """A process: the proxy with its queue; each message through the pipe is answered with its CPU time and counts."""
    from kvtrace.capture.intake import Intake
    from kvtrace.capture.live import Address, HttpListener, Servers
    from kvtrace.capture.proxy.app import proxy_app

    intake = Intake()
    app = proxy_app(intake.put, upstream)
    threading.Thread(target=drain, args=(intake,), daemon=True).start()
    faults: list[str] = []
    with Servers([HttpListener("proxy", app, Address("127.0.0.1", 0))], faults.append) as servers:
        pipe.send(servers.addresses["proxy"].port)
        while pipe.recv():
            pipe.send((time.process_time(), app.counts.dropped, faults))


def drain(intake) -> None:
    """Take what comes, as the sender to the digester does."""
    while True:
        intake.take(1)


@contextmanager
def process(target, *arguments):
    """A process with a pipe; gives the pipe and what it sends first."""
    ours, theirs = SPAWN.Pipe()
    worker = SPAWN.Process(target=target, args=(theirs, *arguments), daemon=True)
    worker.start()
    try:
        yield ours, ours.recv()
    finally:
        ours.send(None)
        worker.join(10)


def measured(port: int, proxy, rate: float, seconds: float, seed: int) -> Measured:
    """The load at a port; `proxy` is the pipe of the proxy or relay, or None without one."""
    import uvloop

    before = counts_of(proxy)
    load = uvloop.run(ask_at(port, rate, seconds, seed))
    time.sleep(0.2)
    after = counts_of(proxy)
    return Measured(load, *(late - early for early, late in zip(before, after, strict=True)))


def counts_of(proxy) -> tuple[float, int]:
    """CPU seconds and dropped requests so far."""
    if proxy is None:
        return 0.0, 0
    proxy.send(1)
    cpu_s, dropped, faults = proxy.recv()
    assert not faults, faults
    return cpu_s, dropped


def lines(folder: str, share: float) -> Iterator[Line]:
    """The first token beside that without the proxy, and the processor time a request beside the relay's."""
    with (
        process(serve_model) as (_, model),
        process(serve_relay, model) as (relay_pipe, relay),
        process(serve_proxy, f"http://127.0.0.1:{model}") as (proxy_pipe, proxy),
    ):
        for rate in RATES:
            direct, theirs, ours = (
                measured(*server, rate, max(0.5, SECONDS * share), 1)
                for server in ((model, None), (relay, relay_pipe), (proxy, proxy_pipe))
            )
            if lost := ours.load.failed + ours.dropped:
                raise ValueError(f"{lost} requests failed or were not recorded at {rate}/s")
            for place, what in enumerate(WHAT):
                before, relayed, proxied = (one.figures()[place] for one in (direct, theirs, ours))
                name, rival = ("a relay's", relayed) if what == "processor time" else ("without it", before)
                yield Line(f"proxy, {rate}/s, {what} / {name}", "ms", proxied, rival)
