"""Keep the panics of Rust libraries off stderr: their messages may quote the text that was being tokenised."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

hidden = False  # set by the command line: other programs may write to stderr from their own threads


@contextmanager
def hide() -> Iterator[None]:
    """Inside the `with` block, what is written to stderr is lost, in commands and in worker processes only."""
    if not (hidden or multiprocessing.parent_process()):
        yield
        return
    saved = None
    with suppress(OSError):  # stderr is closed
        saved = os.dup(2)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        os.close(null)
    try:
        yield
    finally:
        if saved is not None:
            os.dup2(saved, 2)
            os.close(saved)
