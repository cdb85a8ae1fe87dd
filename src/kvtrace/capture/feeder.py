"""Feed the digester from the queue, in order. It is a child process, which is started again if it dies.

A digester that cannot be started is tried again for as long as the service runs; meanwhile payloads wait in the queue.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .._base.errors import InputError, KvtraceError, StoppedError, UsageError
from .channel import ServiceEnd, framed
from .intake import Intake, Mark, Payload
from .supervisor import LAST_ATTEMPTS, Part, Supervisor, reason_of

WATCH_S = 1.0  # how often it looks whether the digester lives
STEADY_S = 5.0  # a digester that was started again works after so long, or once it has digested a payload
HUNG_S = 300.0  # the longest batch, 128 MiB of rows, takes about 100 s
HUNG = f"the digester process has not answered for {HUNG_S:.0f} s and was killed."
DIED = "its process ended."
FULL = "the disk is full."


class Feeder:
    """Sends what waits in the queue to a digester.

    A digester that dies loses what it had received and not written. The next one goes on with the window that the last
    one had, and follows the messages that the last one had not followed.

    Args:
        intake: The queue.
        settings: The first message to a digester: encoding options and the sink.
        on_report: Called with each report of a digester.
        supervisor: Runs its threads, and tells an operator what happens.
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
        supervisor: Supervisor,
        lost: str,
        keep: tuple[int, ...] = (),
    ):
        self._intake, self._settings, self._keep = intake, settings, keep
        self._on_report, self._supervisor, self._meaning = on_report, supervisor, lost
        self._part, self._digester_part = supervisor.part("feeder"), supervisor.part("digester")
        self.restarts, self._is_ending = 0, False
        self._now: dict[str, Any] = {}  # counts of the digester that runs
        self._earlier: dict[str, Any] = {}  # sums of those that died
        self._begun: Mark | None = None  # the last message that began a window, and was followed
        self._sent: deque[Mark] = deque()  # messages that the digester has not followed yet
        self._followed = 0  # messages that this digester has followed
        self._item: Payload | Mark | None = None  # taken from the queue, and not sent
        self._is_sound = True  # the digester lives, and has whole items only
        self._born_s = 0.0  # when the digester started
        self._digester = self._new_digester()

    def start(self) -> None:
        """Begin to send."""
        self._part.start(self._feed, lambda: self._intake.is_closed)

    def end(self) -> bool:
        """Send what still waits in the queue, which is closed, and wait until the digester has written it.

        From now on it does not wait for room on a full disk. One that reports nothing for HUNG_S is killed; the next
        goes on with what the queue still has.

        Returns:
            Whether the digester has followed all messages.
        """
        self._is_ending = True
        self._digester.wait_no_more()
        while not self._part.join(WATCH_S):
            self._kill_hung()
        self._end_digester()
        for _ in range(LAST_ATTEMPTS):  # it died at the end
            if self._sent:
                with suppress(KvtraceError, OSError):
                    self._start_again()
                    self._end_digester()
        return not self._sent and self._intake.is_over

    def _end_digester(self) -> None:
        while not self._digester.end(WATCH_S):
            self._kill_hung()

    def _kill_hung(self) -> None:
        if self._digester_part.quiet_s > HUNG_S and self._digester.is_alive:
            self._supervisor.say(HUNG)
            self._digester.stop()

    @property
    def pid(self) -> int:
        """The number of the digester's process."""
        return self._digester.pid

    def counts(self) -> dict[str, Any]:
        """What all digesters have done, as far as they reported it: the fields of digester.Counts."""
        return _sums(self._earlier, self._now)

    def _new_digester(self) -> DigesterProcess:
        self._followed, self._born_s, self._is_full = 0, time.monotonic(), False
        try:
            return DigesterProcess(self._settings, self._on_digester, self._digester_part, keep=self._keep)
        except (OSError, MemoryError, RuntimeError) as error:  # no descriptor, memory or thread is left
            raise StoppedError(f"the digester process cannot be started: {reason_of(error)}") from None

    def _feed(self) -> None:
        """Send until the queue is closed and empty."""
        while True:
            if not self._is_sound:
                self._start_again()
            self._item = self._item or self._intake.take(WATCH_S)
            if self._item is not None:
                self._send(self._item)
            elif self._intake.is_over:
                return
            if not (self._is_sound and self._digester.is_alive):
                self._note_death()
            if self._digester_part.in_a_row:
                self._part.beat()
            else:
                self._part.works()

    def _send(self, item: Payload | Mark) -> None:
        frame = framed(item)
        if isinstance(item, Mark):
            self._sent.append(item)
        self._item, self._is_sound = None, False  # if it fails from here on, the digester may have a part of the item
        with suppress(OSError):  # it has died
            self._digester.send(frame)
            self._is_sound = True

    def _note_death(self) -> None:
        """The digester ended by itself. The next one starts at once, and later if that one ends at once as well."""
        self._is_sound = False
        self._digester_part.failed(DIED, tell=False)
        if self._digester_part.in_a_row > 1:
            raise StoppedError("the digester process ends again and again.")

    def _start_again(self) -> None:
        """Start a digester that goes on where the last one was."""
        self._digester.kill()
        self._earlier, self._now = self.counts(), {}
        if self._begun is not None:
            message = {name: value for name, value in self._begun.message.items() if name != "finish"}
            self._sent.appendleft(Mark(message))  # what it finished has ended
            self._begun = None
        self._sent = deque(Mark({**mark.message, "continues": True}) for mark in self._sent)
        self._digester = self._new_digester()
        if self._is_ending:
            self._digester.wait_no_more()
        for mark in list(self._sent):  # reports remove from it
            self._digester.send(framed(mark))
        self._is_sound = True
        self.restarts += 1
        self._supervisor.say_once(f"the digester process ended and was started again{self._meaning}")

    def _on_digester(self, report: dict[str, Any]) -> None:
        self._now = report.get("counts", self._now)
        while self._followed < report.get("followed", 0) and self._sent:
            mark = self._sent.popleft()
            self._begun = mark if "begin" in mark.message else self._begun
            self._followed += 1
        if "error" in report:
            self._supervisor.say_once(report["error"])
        self._on_report(report)
        part, was_full = self._digester_part, self._is_full
        self._is_full = report.get("full", was_full)
        if self._is_full:
            if not was_full:
                part.failed(FULL, tell=False)  # its error says so
            return
        is_steady = not part.in_a_row or self._now.get("covered") or time.monotonic() - self._born_s > STEADY_S
        if is_steady and not self._sent:
            part.works()


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
LINGER_S = 5.0  # from the last report to the end of the process
ERRORS = {error.status: error for error in (UsageError, InputError)}


class DigesterProcess:
    """A running digester.

    Args:
        settings: The first message: encoding options and the sink.
        on_report: Called from a thread with each report, again if it raises an exception.
        part: Runs that thread.
        keep: Open files that the digester keeps open as well, such as the lock of a folder.

    Raises:
        KvtraceError: The digester refused the settings; the error is its own.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        on_report: Callable[[dict[str, Any]], None],
        part: Part,
        keep: tuple[int, ...] = (),
    ):
        ours, theirs = socket.socketpair()
        code = f"from kvtrace.capture.digester import run; run({theirs.fileno()})"
        self._channel, self._on_report, self._part = ServiceEnd(ours), on_report, part
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", code], pass_fds=(theirs.fileno(), *keep), stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL, start_new_session=True,
                )  # fmt: skip
            except BaseException:
                self._channel.abandon()
                raise
        self._reports = self._channel.reports()
        self._report: dict[str, Any] | None = None  # received, and not taken by on_report
        self._first: dict[str, Any] | None = None
        self._started = threading.Event()
        try:
            part.start(self._read, lambda: not self.is_alive)
            self._channel.send(framed(Mark(settings)))
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

    def send(self, frame: tuple[bytes, bytes]) -> None:
        """Send a payload or a message; waits until the digester has room. OSError if it has died."""
        self._channel.send(frame)

    def wait_no_more(self) -> None:
        """Let the digester give up what finds no room on the disk."""
        self._process.terminate()

    def end(self, timeout_s: float) -> bool:
        """Let the digester finish what it received, and wait until it has ended; whether it has."""
        self._channel.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self.kill()
        return True

    def stop(self) -> None:
        """Kill the process, from any thread; who waits for it goes on."""
        self._process.kill()

    def kill(self) -> None:
        """End the process at once."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._part.join()  # no report of it comes later
        self._channel.abandon()

    def _read(self) -> None:
        """Take the reports, and end the process with them: one whose reports cannot be read is of no use."""
        while (report := self._report or next(self._reports, None)) is not None:
            self._report = report
            if not self._started.is_set():
                self._first = report
                self._started.set()
            else:
                self._on_report(report)
            self._report = None
            self._part.beat()
        self._started.set()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(LINGER_S)
        self._process.kill()
        self._process.wait()

    def _require_start(self) -> None:
        self._started.wait(START_S)
        first = self._first or {"error": "the digester process did not start."}
        if "error" in first:
            raise ERRORS.get(first.get("status", 1), KvtraceError)(first["error"])
