"""ASGI apps behind real sockets on loopback: a server in a thread, for as long as a test needs it."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import contextmanager

import uvicorn

UVICORN = {  # as capture/live.py has them, but with logs: tests search them
    "http": "httptools", "loop": "uvloop", "ws": "none", "lifespan": "on", "access_log": False, "log_config": None,
    "server_header": False, "date_header": False, "timeout_graceful_shutdown": 3,
}  # fmt: skip


@contextmanager
def serving(app, **options):
    """Run the app in a thread; gives its URL."""
    server = uvicorn.Server(uvicorn.Config(app, **(UVICORN | options)))
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
