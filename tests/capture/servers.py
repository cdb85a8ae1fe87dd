"""ASGI apps behind real sockets on loopback: a server in a thread, for as long as a test needs it."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import contextmanager, suppress
from functools import partial

import uvicorn

from kvtrace.capture.connections import Connections, HttpLimits, protocol

UVICORN = {  # as capture/live.py has them, but with logs: tests search them
    "loop": "uvloop", "ws": "none", "lifespan": "on", "access_log": False, "log_config": None,
    "server_header": False, "date_header": False, "timeout_graceful_shutdown": 3,
}  # fmt: skip


@contextmanager
def serving(app, **options):
    """Run the app in a thread; gives its URL."""
    http = partial(protocol(), Connections(HttpLimits(), 1 << 16), 1)
    server = uvicorn.Server(uvicorn.Config(app, **(UVICORN | {"http": http} | options)))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        loops = {"uvloop": "uvloop", "asyncio": "asyncio"}
        make = __import__(loops[server.config.loop]).new_event_loop

        def run():
            with asyncio.Runner(loop_factory=make) as runner:
                runner.run(server.serve(sockets=[listener]))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            thread.join(0.005)
        assert server.started
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)
            assert not thread.is_alive()


def closed_port():
    """A port of loopback where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class scripted:
    """A server that answers each connection with these bytes, and closes it, or waits until the other side does."""

    def __init__(self, answer, waits=False):
        self.answer, self.waits = answer, waits

    def __enter__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()
        return self.listener.getsockname()[1]

    def serve(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):  # the client may have had enough
                connection.recv(1 << 16)
                connection.sendall(self.answer)
                if self.waits:
                    connection.recv(1)

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(5)
