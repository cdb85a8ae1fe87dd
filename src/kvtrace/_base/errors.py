"""The kinds of errors with their exit statuses, and what their messages share.

Every message is one line: where, what is wrong, what to do. No message contains content of a log: a prompt, an output,
a key or any of their values. Names of files in a suggested command can be pasted into a shell.
"""

from __future__ import annotations

import errno
import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self


class KvtraceError(Exception):
    """An error in kvtrace or its environment; the message is one line."""

    status = 1


class NotCompiledError(KvtraceError, ImportError):
    """A compiled module is missing, outdated, or made for another Python."""


class UsageError(KvtraceError):
    """The arguments are not valid, or contradict each other."""

    status = 2


class InputError(KvtraceError):
    """A file is not valid."""

    status = 3


class MissingFileError(InputError, FileNotFoundError):
    """A file does not exist."""


class MissingPathError(UsageError, FileNotFoundError):
    """What an option names does not exist: neither a name that is known, nor a file."""


class AuditError(KvtraceError):
    """A trace reveals more than its profile allows; nothing was written."""

    status = 4


class StoppedError(KvtraceError):
    """The run stopped early for an outside reason, and can be run again."""

    status = 5


class UnknownError(KvtraceError):
    """The trace does not hold what the result needs, because its log did not: the result is unknown."""

    status = 6


class MismatchError(KvtraceError):
    """The log's own token counts contradict ours: the prompts are probably not those of the engine."""

    status = 7


class RowError(InputError):
    """One row of a file is not valid; `reason` explains it without the row's content.

    A reader raises it with the reason (and `field`, the JSON path, if known); the caller adds file, line and byte
    offset with `at`.
    """

    reason: str
    field: str | None

    def __init__(self, reason: str, *, field: str | None = None, hint: str | None = None) -> None:
        self.reason, self.field = reason, field
        self.hint: str | None = hint
        self.path: str | None = None
        self.line: int | None = None
        self.offset: int | None = None  # bytes
        self.length: int | None = None  # bytes
        self.index: int | None = None  # which of several texts it is, where a batch of them failed
        super().__init__(reason)

    def at(self, path: object, line: int | None, offset: int | None = None, length: int | None = None) -> Self:
        """The same error, now knowing where it happened; a file of one JSON object has no lines that help."""
        self.path, self.line, self.offset, self.length = str(path), line, offset, length
        return self

    @property
    def fault(self) -> str:
        """The JSON path without the numbers of items, and the reason: the same for all rows with this fault.

        >>> RowError("is a number; expected text.", field="messages[12].content").fault
        'messages[].content: is a number; expected text.'
        """
        return re.sub(r"\[\d+\]", "[]", f"{self.field}: {self.reason}") if self.field else self.reason

    def __str__(self) -> str:
        line = "" if self.line is None else f"{self.line}:"
        where = "" if self.path is None else f"{self.path}:{line} "
        field = "" if self.field is None else f"{self.field}: "
        stop = "" if self.hint is None or self.reason.endswith((".", "!", "?")) else "."
        hint = "" if self.hint is None else f"{stop} {self.hint}"
        return f"{where}{field}{self.reason}{hint}"


class LeftOut(RowError):
    """A valid row that is not a request with blocks; it is left out and counted."""


class EmptyPrompt(LeftOut):
    """A request with an empty prompt."""


class NotARequest(LeftOut):
    """A row that is not a request, such as another event or span; `reason` says which."""


class FailedCall(NotARequest):
    """A call that failed: the service answered it with an error, or not at all."""

    def __init__(self, reason: str = "the call failed; nothing was generated.", *, field: str | None = None) -> None:
        super().__init__(reason, field=field)


class OtherCall(NotARequest):
    """A call that generates no text, such as an embedding."""


def nearest(word: str, words: Iterable[str], limit: int = 1) -> list[str]:
    """The words that are spelt most like a wrong one; none if no word is near.

    >>> names = ["lru", "slru", "s3-fifo", "round-robin"]
    >>> [nearest(word, names) for word in ("lruu", "S3FIFO", "round", "nothing")]
    [['lru'], ['s3-fifo'], ['round-robin'], []]
    """
    from difflib import get_close_matches

    plain = {_letters(name): name for name in words}
    wanted = _letters(word)
    close = [wanted] if wanted in plain else get_close_matches(wanted, plain, n=limit, cutoff=0.66)
    if not close and len(wanted) >= MIN_BEGINNING:
        close = [name for name in plain if name.startswith(wanted)][:limit]
    return [plain[name] for name in close]


MIN_BEGINNING = 3  # letters


def _letters(word: str) -> str:
    return "".join(letter for letter in word.lower() if letter.isalnum()) or word


def wrong_word(word: object, what: str, words: Iterable[str], further: str = "") -> UsageError:
    """The error for a word that is not in a list: it names the nearest one, or else all of them.

    Args:
        word: The wrong word.
        what: What it is not, with an article.
        words: The list.
        further: What else is valid, after the list.

    >>> raise wrong_word("lruu", "a policy", ["lru", "fifo"])
    Traceback (most recent call last):
    kvtrace._base.errors.UsageError: 'lruu' is not a policy. Did you mean lru?
    >>> print(wrong_word("best", "a policy", ["lru", "fifo"], ", or a class as module:Class"))
    'best' is not a policy. Try lru, fifo, or a class as module:Class.
    """
    words = [*map(str, words)]
    near = nearest(word, words) if isinstance(word, str) else []
    listed = (" or " if len(words) == 2 and not further else ", ").join(words)
    return UsageError(f"{word!r} is not {what}. " + (f"Did you mean {near[0]}?" if near else f"Try {listed}{further}."))


DOCS = "https://github.com/kvtrace/kvtrace/blob/main/docs/"  # a wheel has no docs


def docs_page(page: str) -> str:
    """The address of a page of the docs, for help and messages.

    >>> docs_page("cache/simulate.md")
    'https://github.com/kvtrace/kvtrace/blob/main/docs/cache/simulate.md'
    """
    return DOCS + page


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no space: on the disk, for this user, in this file


def unwritable(path: str | Path, error: OSError, rest: str = "") -> KvtraceError:
    """The error for a file that cannot be written; a StoppedError if the disk is full, because that can be fixed.

    >>> raise unwritable("day.jsonl", OSError(errno.ENOSPC, "No space left on device"))
    Traceback (most recent call last):
    kvtrace._base.errors.StoppedError: day.jsonl: cannot be written (No space left on device).
    """
    kind = StoppedError if error.errno in FULL else KvtraceError
    return kind(f"{path}: cannot be written ({error.strerror or type(error).__name__}).{rest}")


@contextmanager
def named_errors(path: str | Path) -> Iterator[None]:
    """Turn errors of a file that is written into errors with its name."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from None


def pasted(path: str | Path) -> str:
    """A path as one word of a shell command.

    >>> print(pasted("day.jsonl"), pasted("my logs/day 1.jsonl"), pasted("-x.jsonl"), pasted("-"))
    day.jsonl 'my logs/day 1.jsonl' ./-x.jsonl -
    """
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") and text != "-" else text)
