"""What can go wrong, and the exit status each kind ends with.

Every message is one line: where, what was found, what to try. None ever holds content of a log: a prompt, an
output, a key or a value taken from them.
"""

from typing import Self


class KvtraceError(Exception):
    """Something went wrong inside or around kvtrace; the message is one clear line."""

    status = 1


class UsageError(KvtraceError):
    """The arguments do not fit together, or name something that does not exist."""

    status = 2


class InputError(KvtraceError):
    """A file holds something that kvtrace cannot take."""

    status = 3


class AuditError(KvtraceError):
    """A trace shows more than its profile allows; nothing was written."""

    status = 4


class StoppedError(KvtraceError):
    """The run ended early through no fault of its input, and can be run again."""

    status = 5


class RowError(InputError):
    """One row of a file is bad; `reason` says why without showing what the row holds.

    A reader raises it with the reason alone (and `field`, the JSON path, where it knows one); whoever knows file,
    line and byte offset adds them with `at`.
    """

    def __init__(self, reason: str, *, field: str | None = None, hint: str | None = None) -> None:
        self.reason, self.field = reason, field
        self.hint: str | None = hint
        self.path: str | None = None
        self.line: int | None = None
        self.offset: int | None = None  # bytes
        self.length: int | None = None  # bytes
        self.index: int | None = None  # which of several texts it is, where a batch of them failed
        super().__init__(reason)

    def at(self, path: object, line: int, offset: int | None = None, length: int | None = None) -> Self:
        """The same error, now knowing where it happened."""
        self.path, self.line, self.offset, self.length = str(path), line, offset, length
        return self

    def __str__(self) -> str:
        where = "" if self.path is None else f"{self.path}:{self.line}: "
        field = "" if self.field is None else f"{self.field}: "
        stop = "" if self.hint is None or self.reason.endswith((".", "!", "?")) else "."
        hint = "" if self.hint is None else f"{stop} {self.hint}"
        return f"{where}{field}{self.reason}{hint}"


class LeftOut(RowError):
    """A row that is no request with blocks, though nothing is wrong with it; it is left out and counted."""


class EmptyPrompt(LeftOut):
    """A request whose prompt is empty."""


class NotARequest(LeftOut):
    """A row that tells something else: another event, a span of another kind; `reason` says what."""
