"""The recording proxy: milliseconds that it adds to the first token, and its CPU time a request.

python -m benchmarks.proxy                  at 200 requests a second, and at 500
python -m benchmarks.proxy --seconds 30

A stub model server answers each request at once, and then with a chunk every 20 ms, 20 in all. Server, proxy and
clients are three processes of one machine; the queue's payloads are taken and thrown away. Beside the proxy runs a
relay of bytes in the same event loop's library: what it takes, any proxy takes.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from .apart import wait_for_quiet
from .proxy_load import Load, Model, Relay, ask_at

SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Measured:
    """What one load was like."""

    load: Load
    cpu_s: float  # of the proxy
    recorded: int
    dropped: int

    def row(self) -> str:
        """The figures in a line."""
        first = np.array(self.load.first_s) * 1e3
        behind = np.quantile(self.load.behind_s, 0.99) * 1e3
        figures = [f"{np.quantile(first, q):8.2f}" for q in (0.5, 0.9, 0.99)]
        cpu = f"{1e6 * self.cpu_s / max(1, len(first)):8,.0f}"
        return f"{len(first):8,}{self.load.failed:8}{''.join(figures)}{cpu}{self.dropped:8}{behind:10.2f}"


HEAD = f"{'':22}{'answers':>8}{'failed':>8}{'p50':>8}{'p90':>8}{'p99':>8}{'us CPU':>8}{'dropped':>8}{'late p99':>10}"


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
            pipe.send((time.process_time(), 0, 0, []))

    uvloop.run(run())


def serve_proxy(pipe, upstream: str) -> None:
    """A process: the proxy with its queue; each message through the pipe is answered with its CPU time and counts."""
    from kvtrace.capture.intake import Intake
    from kvtrace.capture.proxy.app import proxy_app
    from kvtrace.capture.servers import Address, Listener, Servers

    intake = Intake()
    app = proxy_app(intake.put, upstream)
    threading.Thread(target=drain, args=(intake,), daemon=True).start()
    faults: list[str] = []
    with Servers([Listener("proxy", app, Address("127.0.0.1", 0))], faults.append) as servers:
        pipe.send(servers.addresses["proxy"].port)
        while pipe.recv():
            pipe.send((time.process_time(), app.counts.recorded, app.counts.dropped, faults))


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
    """The load at a port; `proxy` is the pipe of the proxy, or None without one."""
    import uvloop

    before = counts_of(proxy)
    load = uvloop.run(ask_at(port, rate, seconds, seed))
    time.sleep(0.2)
    after = counts_of(proxy)
    return Measured(load, *(late - early for early, late in zip(before, after, strict=True)))


def counts_of(proxy) -> tuple[float, int, int]:
    """CPU seconds, recorded and dropped requests so far."""
    if proxy is None:
        return 0.0, 0, 0
    proxy.send(1)
    cpu_s, recorded, dropped, faults = proxy.recv()
    assert not faults, faults
    return cpu_s, recorded, dropped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=[200, 500])
    parser.add_argument("--wait", type=float, default=60, help="seconds to wait for a quiet machine")
    options = parser.parse_args()
    load = wait_for_quiet(options.wait)
    print(f"{len(os.sched_getaffinity(0))} cores, load {load:.1f} before; ms to the first token")
    print(HEAD)
    with (
        process(serve_model) as (_, model),
        process(serve_relay, model) as (relay_pipe, relay),
        process(serve_proxy, f"http://127.0.0.1:{model}") as (proxy_pipe, proxy),
    ):
        servers = {"direct": (model, None), "relay": (relay, relay_pipe), "proxy": (proxy, proxy_pipe)}
        for rate in options.rates:
            added = []
            for seed in range(options.rounds):
                seen = {name: measured(*server, rate, options.seconds, seed) for name, server in servers.items()}
                for name, one in seen.items():
                    print(f"{rate:6,.0f}/s {name:13}{one.row()}", flush=True)
                added.append([quantile(seen["proxy"], q) - quantile(seen["direct"], q) for q in (0.5, 0.9, 0.99)])
            p50, p90, p99 = np.median(added, axis=0)
            print(f"{rate:6,.0f}/s the proxy adds {p50:.2f} ms (p50), {p90:.2f} ms (p90), {p99:.2f} ms (p99)")


def quantile(one: Measured, q: float) -> float:
    """Milliseconds to the first token."""
    return float(np.quantile(one.load.first_s, q)) * 1e3


if __name__ == "__main__":
    main()
