"""The digester as the service sees it: a child process that is started again if it dies."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from .._base.errors import InputError, KvtraceError, UsageError
from .channel import ServiceEnd
from .intake import Mark, Payload

START_S = 120.0  # a tokenizer from a hub may be loaded
ERRORS = {error.status: error for error in (UsageError, InputError)}


class DigesterProcess:
    """A running digester.

    Args:
        settings: The first message: encoding options and the sink.
        on_report: Called from a thread with each report.
        keep: Open files that the digester keeps open as well, such as the lock of a folder.

    Raises:
        KvtraceError: The digester refused the settings; the error is its own.
    """

    def __init__(
        self, settings: dict[str, Any], on_report: Callable[[dict[str, Any]], None], keep: tuple[int, ...] = ()
    ):
        ours, theirs = socket.socketpair()
        code = f"from kvtrace.capture.digester import run; run({theirs.fileno()})"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", code], pass_fds=(theirs.fileno(), *keep), stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self._channel, self._on_report = ServiceEnd(ours), on_report
        self._first: dict[str, Any] | None = None
        self._started = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True, name="reports")
        self._reader.start()
        try:
            self._channel.send(Mark(settings))
            self._require_start()
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether its process runs."""
        return self._process.poll() is None

    def send(self, item: Payload | Mark) -> None:
        """Send a payload or a message; waits until the digester has room. OSError if it has died."""
        self._channel.send(item)

    def end(self, timeout_s: float | None = None) -> None:
        """Let the digester finish what it received, and wait until it has ended."""
        self._channel.close()
        try:
            self._process.wait(timeout_s)
            self._reader.join(timeout_s)
        except subprocess.TimeoutExpired:
            pass
        self.kill()

    def kill(self) -> None:
        """End the process at once."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._reader.join()  # no report of it comes later
        self._channel.abandon()

    def _read(self) -> None:
        for report in self._channel.reports():
            if not self._started.is_set():
                self._first = report
                self._started.set()
            else:
                self._on_report(report)
        self._started.set()

    def _require_start(self) -> None:
        self._started.wait(START_S)
        first = self._first or {"error": "the digester process did not start."}
        if "error" in first:
            raise ERRORS.get(first.get("status", 1), KvtraceError)(first["error"])
