"""Feed the digester from the queue, in order. It is a child process, which is started again if it dies."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from .._base.errors import InputError, KvtraceError, UsageError
from .channel import ServiceEnd
from .intake import Intake, Mark, Payload

ATTEMPTS = 3  # to start a digester again
WATCH_S = 1.0  # how often it looks whether the digester lives


class Feeder:
    """Sends what waits in the queue to a digester.

    A digester that dies loses what it had received and not written. The next one goes on with the window that the last
    one had, and follows the messages that the last one had not followed.

    Args:
        intake: The queue.
        settings: The first message to a digester: encoding options and the sink.
        on_report: Called with each report of a digester.
        on_message: Receives sentences for an operator, without content.
        lost: What a restart means, for the operator.
        keep: Open files that the digester keeps open as well, such as the lock of a folder.

    Raises:
        KvtraceError: The digester refused the settings.
    """

    def __init__(
        self,
        intake: Intake,
        settings: dict[str, Any],
        *,
        on_report: Callable[[dict[str, Any]], None],
        on_message: Callable[[str], None],
        lost: str,
        keep: tuple[int, ...] = (),
    ):
        self._intake, self._settings, self._keep = intake, settings, keep
        self._on_report, self._say, self._meaning = on_report, on_message, lost
        self.restarts, self._is_ending = 0, False
        self._now: dict[str, Any] = {}  # counts of the digester that runs
        self._earlier: dict[str, Any] = {}  # sums of those that died
        self._begun: Mark | None = None  # the last message that began a window, and was followed
        self._sent: deque[Mark] = deque()  # messages that the digester has not followed yet
        self._followed = 0  # messages that this digester has followed
        self._digester = self._new_digester()
        self._thread = threading.Thread(target=self._feed, daemon=True, name="feeder")

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def end(self) -> None:
        """Send what still waits in the queue, which is closed, and wait until the digester has written it.

        From now on it does not wait for room on a full disk.
        """
        self._is_ending = True
        self._digester.wait_no_more()
        self._thread.join()
        self._digester.end()

    @property
    def pid(self) -> int:
        """The number of the digester's process."""
        return self._digester.pid

    def counts(self) -> dict[str, Any]:
        """What all digesters have done, as far as they reported it: the fields of digester.Counts."""
        return _sums(self._earlier, self._now)

    def _new_digester(self) -> DigesterProcess:
        self._followed = 0
        return DigesterProcess(self._settings, self._on_digester, keep=self._keep)

    def _feed(self) -> None:
        """Send until the queue is closed and empty."""
        while True:
            item = self._intake.take(WATCH_S)
            if item is None and self._intake.is_over:
                return
            if not self._send(item):
                self._restart()

    def _send(self, item: Payload | Mark | None) -> bool:
        """Send an item; False if the digester has died."""
        if isinstance(item, Mark):
            self._sent.append(item)
        try:
            if item is not None:
                self._digester.send(item)
        except OSError:
            return False
        return self._digester.is_alive

    def _restart(self) -> None:
        self._digester.kill()
        self._earlier, self._now = self.counts(), {}
        again = [Mark({**mark.message, "continues": True}) for mark in (self._begun, *self._sent) if mark is not None]
        for attempt in range(ATTEMPTS):
            self.restarts += 1
            try:
                self._sent = deque(again)
                self._digester = self._new_digester()
                if self._is_ending:
                    self._digester.wait_no_more()
                for mark in again:
                    self._digester.send(mark)
                self._say(f"the digester process ended and was started again{self._meaning}")
                return
            except (KvtraceError, OSError):
                time.sleep(2.0**attempt)
        self._intake.close()
        self._say("the digester process ends again and again. All further requests are dropped.")

    def _on_digester(self, report: dict[str, Any]) -> None:
        self._now = report.get("counts", self._now)
        while self._followed < report.get("followed", 0) and self._sent:
            mark = self._sent.popleft()
            self._begun = mark if "begin" in mark.message else self._begun
            self._followed += 1
        if "error" in report:
            self._say(report["error"])
        self._on_report(report)


def _sums(earlier: dict[str, Any], current: dict[str, Any]) -> dict[str, Any]:
    """The sums of two digesters' counts.

    >>> _sums({"requests": 1, "reasons": {"a": 1}}, {"requests": 2, "reasons": {"a": 3}})
    {'requests': 3, 'reasons': {'a': 4}}
    """
    sums = {name: earlier.get(name, 0) + current.get(name, 0) for name in {**earlier, **current} if name != "reasons"}
    reasons = Counter(earlier.get("reasons", {}))
    reasons.update(current.get("reasons", {}))
    return {**sums, "reasons": dict(reasons)}


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

    def wait_no_more(self) -> None:
        """Let the digester give up what finds no room on the disk."""
        self._process.terminate()

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
