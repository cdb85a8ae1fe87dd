"""One run at a time writes an output: a lock file beside it, `.NAME.lock`, for as long as a command runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .file_locks import locked_file
from .files import is_regular, is_std
from .temporary_files import lock_name, remove_stale

EXPOSED = "{path}: this lock belongs to another user, or others can write to it. Delete it, or choose another output."


@contextmanager
def only_writer(output: str | Path, beside: Iterable[str | Path] = ()) -> Iterator[None]:
    """Lock an output for this run, and remove what killed runs left of it and of the files beside it.

    UsageError if another run writes it. A killed run leaves its lock file, which locks nothing. Stdout, pipes and
    devices have no lock.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, only_writer(f"{folder}/day.jsonl"):
    ...     print(os.listdir(folder))
    ['.day.jsonl.lock']
    """
    if is_std(output) or not (is_regular(output) or os.path.isdir(output)):
        yield
        return
    folder, base = os.path.split(os.path.realpath(output))
    path = os.path.join(folder, lock_name(base))
    busy = f"{_quoted(output)}: another run is writing this output. Wait for it, or choose another output."
    handle = locked_file(path, busy=busy, foreign=EXPOSED, exposed=EXPOSED)
    try:
        for name in (output, *beside):
            remove_stale(name)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
        os.close(handle)


def _quoted(path: str | Path) -> str:
    """A name in a message with placeholders."""
    return str(path).replace("{", "{{").replace("}", "}}")
