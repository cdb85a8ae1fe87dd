"""JSON files of a page or two that describe something. Each error is one line and shows none of the file's values."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from .errors import KvtraceError, UsageError

MAX_BYTES = 1 << 24  # a description is a page or two; a log given by mistake is not read to its end
UNREAD = object()


def read_object(path: str | Path, wrong: type[KvtraceError], hint: str) -> dict[str, Any]:
    """Read the JSON object of a file.

    Args:
        path: The file.
        wrong: The error if the file holds something else.
        hint: What to try; it ends each message.

    Raises:
        UsageError: The file does not exist.
    """
    import orjson

    text, value, reason = b"", UNREAD, None
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        reason = error.strerror or "cannot be read"
    except ValueError:  # a name that no file can have
        reason = "cannot be read"
    if reason:
        raise UsageError(f"{path}: {reason}. {hint}")
    with suppress(orjson.JSONDecodeError):
        value = orjson.loads(text)
    if len(text) > MAX_BYTES or value is UNREAD:  # raised here, without orjson's error, which holds the text
        raise wrong(f"{path}: not valid JSON of a page or two. {hint}")
    if not isinstance(value, dict):
        raise wrong(f"{path}: not a JSON object. {hint}")
    return value
