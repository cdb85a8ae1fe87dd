"""Run the background work of a live service: what fails is reported, tried again, and shown by `/healthz`.

Each thread, and each task that lives as long as the service, is a run of a part. Its work is a function that returns
when it is over, and tells its part after each round that it works. After an exception it is called again, and goes on
with the state that it keeps in its object.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from .._base.errors import KvtraceError
from .._base.workers import place_of

FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0  # from a failure to the next attempt; it doubles
LAST_ATTEMPTS = 3  # when the service ends
PATIENCE_S = 60.0  # a round that lasts longer hangs
REPEAT_S = 3600.0  # the same sentence is not repeated earlier
LOOK_S = 0.1  # how often a wait looks whether the service ends
ENDED = "it ended before the service did."


def reason_of(error: BaseException) -> str:
    """Why a part failed, for an operator: what the system lacks, or the place of an unexpected error; no content.

    >>> reason_of(OSError(24, "Too many open files")), reason_of(KvtraceError("day.jsonl: cannot be written."))
    ('Too many open files (OSError).', 'day.jsonl: cannot be written.')
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, KvtraceError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({place_of(error)})."
    if isinstance(error, (OSError, MemoryError)) or "start new thread" in str(error):
        return f"the system has no memory, threads or processes left ({place_of(error)})."
    return f"internal error: {place_of(error)}. Please report it; the message contains no content."


class Supervisor:
    """The parts of one service.

    Args:
        on_message: Receives sentences for an operator, without content. An exception that it raises is ignored.
        clock: The time in seconds, from any start.

    >>> sentences = []
    >>> supervisor = Supervisor(sentences.append)
    >>> part = supervisor.part("windows")
    >>> part.failed("No space left on device.")
    >>> supervisor.problem()
    'failing: windows'
    >>> part.works()
    >>> supervisor.problem(), sentences
    (None, ['windows: No space left on device. It is tried again.', 'windows: works again.'])
    """

    def __init__(
        self, on_message: Callable[[str], None] | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._on_message, self.clock = on_message, clock
        self._parts: list[Part] = []
        self._said: dict[str, float] = {}  # sentence -> when it was said

    def part(self, name: str, *, patience_s: float = PATIENCE_S) -> Part:
        """A new part. Several may have one name, which is a fixed word: it is a label of the metrics."""
        part = Part(name, self, patience_s)
        self._parts.append(part)
        return part

    def say(self, sentence: str) -> None:
        """Give a sentence to the operator. It never raises: the log may be on a full disk."""
        with suppress(Exception):
            if self._on_message is not None:
                self._on_message(sentence)

    def say_once(self, sentence: str) -> bool:
        """The same, unless it was said within the last hour; whether it is said now."""
        now = self.clock()
        if now - self._said.get(sentence, -REPEAT_S) < REPEAT_S:
            return False
        self._said = {old: at_s for old, at_s in self._said.items() if now - at_s < REPEAT_S} | {sentence: now}
        self.say(sentence)
        return True

    def problem(self) -> str | None:
        """Why the service is not healthy: the parts that fail, hang or have ended; None if it is healthy."""
        states: dict[str, dict[str, None]] = {}  # state -> its parts, each once
        for part in self._parts:
            if (state := part.state) is not None:
                states.setdefault(state, {})[part.name] = None
        return "; ".join(f"{state}: {', '.join(names)}" for state, names in states.items()) or None

    def failing(self) -> dict[str, int]:
        """Name of each part -> 1 if it fails, hangs or has ended, else 0."""
        return {part.name: int(any(other.state for other in self._named(part.name))) for part in self._parts}

    def failures(self) -> dict[str, int]:
        """Name of each part -> how often it failed."""
        return {part.name: sum(other.failures for other in self._named(part.name)) for part in self._parts}

    def _named(self, name: str) -> list[Part]:
        return [part for part in self._parts if part.name == name]


class Part:
    """A part of a service, and how it does. `Supervisor.part` makes it."""

    def __init__(self, name: str, supervisor: Supervisor, patience_s: float) -> None:
        self.name, self._supervisor, self._patience_s = name, supervisor, patience_s
        self.failures = 0
        self.in_a_row = 0  # failures since it worked
        self._runs = False
        self._thread: threading.Thread | None = None
        self._beat_s = 0.0
        self._was_told = False  # the operator knows that it fails

    @property
    def state(self) -> str | None:
        """What is wrong with it, in one word; None if nothing is."""
        if self.in_a_row:
            return "failing"
        if not self._runs:
            return None
        if self._thread is not None and not self._thread.is_alive():
            return "ended"
        return "hanging" if self.quiet_s > self._patience_s else None

    @property
    def quiet_s(self) -> float:
        """Seconds since the end of its last round."""
        return self._supervisor.clock() - self._beat_s

    def beat(self) -> None:
        """A round has ended, in whatever way."""
        self._beat_s = self._supervisor.clock()

    def works(self) -> None:
        """A round has ended well: the part is healthy."""
        self.beat()
        self.in_a_row = 0
        if self._was_told:
            self._was_told = False
            self._supervisor.say(f"{self.name}: works again.")

    def failed(self, reason: str, *, tell: bool = True) -> None:
        """A round has failed; each reason is told once."""
        self.failures += 1
        self.in_a_row += 1
        if tell and self._supervisor.say_once(f"{self.name}: {reason} It is tried again."):
            self._was_told = True

    def start(self, work: Callable[[], None], is_over: Callable[[], bool]) -> None:
        """Run the work in a thread, again after each failure.

        Args:
            work: Returns when it is over.
            is_over: Whether the work may end: a return before that is a failure.

        Raises:
            RuntimeError: The system has no thread left.
        """
        self._thread = None
        thread = threading.Thread(target=self._run, args=(work, is_over), daemon=True, name=self.name)
        self._begin()
        try:
            thread.start()
        except BaseException:
            self._runs = False
            raise
        self._thread = thread

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until its thread has ended, at once if it has none; whether it has."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._thread is None or not self._thread.is_alive()

    async def attend(self, work: Callable[[], Awaitable[None]], is_over: Callable[[], bool]) -> None:
        """Run the work in this task, again after each failure, as `start` does in a thread."""
        self._begin()
        waits = _Waits(self, is_over)
        try:
            while True:
                try:
                    await work()
                    if is_over():
                        return
                    self.failed(ENDED)
                except asyncio.CancelledError:
                    raise
                except Exception as error:
                    self.failed(reason_of(error))
                waits.begin()
                if waits.are_over:
                    return
                while waits.goes_on():
                    await asyncio.sleep(LOOK_S)
        finally:
            self._runs = False

    def _begin(self) -> None:
        self._runs = True
        self.beat()

    def _run(self, work: Callable[[], None], is_over: Callable[[], bool]) -> None:
        waits = _Waits(self, is_over)
        while not waits.are_over:
            try:
                try:
                    work()
                    if is_over():
                        break
                    self.failed(ENDED)
                except BaseException as error:  # some compiled libraries raise others than Exception
                    self.failed(reason_of(error))
                waits.begin()
                while waits.goes_on():
                    time.sleep(min(LOOK_S, FIRST_WAIT_S))
            except BaseException:  # the report itself found no memory
                time.sleep(FIRST_WAIT_S)
        self._runs = False


class _Waits:
    """The waits between the attempts of one run: a few short ones once the service ends, and then no more attempts."""

    def __init__(self, part: Part, is_over: Callable[[], bool]) -> None:
        self._part, self._is_over = part, is_over
        self._last = 0  # failures since the work may end
        self._until_s = 0.0
        self.are_over = False

    def begin(self) -> None:
        """Begin the wait after a failure."""
        wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(self._part.in_a_row - 1, 16))
        if self._is_over():
            self._last += 1
            wait_s = FIRST_WAIT_S
        self.are_over = self._last >= LAST_ATTEMPTS
        self._until_s = time.monotonic() + wait_s

    def goes_on(self) -> bool:
        """Whether the wait goes on; it ends when the service does."""
        has_time = time.monotonic() < self._until_s and not self.are_over
        return has_time and (self._last > 0 or not self._is_over())
