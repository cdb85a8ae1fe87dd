"""Load a tokenizer in the background while Python imports other modules.

Loading is the slowest step at the start of a run. fastokens takes 0.9 s for a vocabulary of 128,000 words and lets
other threads run meanwhile; importing numpy and our modules takes 0.3 s. An unused preloaded tokenizer is discarded.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

SMALL_LOG = 256 << 10  # bytes


def is_small(log_bytes: int) -> bool:
    """Whether a log of this size (0: not known) is encoded with a part of the vocabulary (small_vocabulary.py)."""
    return 0 < log_bytes <= SMALL_LOG


def begin(name: str, inputs: Iterable[str] = ()) -> None:
    """Start to load a tokenizer in the background, unless the log is small.

    Errors are ignored: the regular load reports them.
    """
    if is_small(sum(os.path.getsize(path) if os.path.isfile(path) else SMALL_LOG + 1 for path in inputs)):
        return
    from .._base.errors import KvtraceError
    from . import tokenizer_files

    name = "deepseek-r1" if name == "auto" else name  # which it is for most logs
    if name not in tokenizer_files.BUILTIN:
        return  # a file of the user's is first tried in a child (tokenizers.py); others must be downloaded first
    with suppress(KvtraceError):
        path = str(tokenizer_files.find(name).tokenizer)
        # not a daemon thread: the interpreter can crash if it exits while one runs foreign code
        _loading_of_path[path] = loading = _Loading(path)
        loading.start()


def take(path: str) -> Any | None:
    """The tokenizer that was preloaded from that file, or None. A second call returns None."""
    loading = _loading_of_path.pop(path, None)
    if loading is None:
        return None
    loading.join()
    return loading.loaded


class _Loading(threading.Thread):
    """A thread that loads one tokenizer file."""

    def __init__(self, path: str):
        super().__init__(name="kvtrace-preload")
        self.path, self.loaded = path, None

    def run(self):
        try:
            import fastokens  # type: ignore[import-untyped]

            self.loaded = fastokens.Tokenizer.from_file(self.path)
        except BaseException:  # a Rust panic is not an Exception; the regular load reports it
            self.loaded = None


_loading_of_path: dict[str, _Loading] = {}  # path -> its thread


def _finish():
    """Wait for the threads before a fork: the child would not have them."""
    for loading in list(_loading_of_path.values()):
        loading.join()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(before=_finish)
