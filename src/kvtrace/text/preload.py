"""A tokenizer begins to load while Python still imports the rest: nothing else at the start of a run takes so long.

fastokens needs 0.9 s for a vocabulary of 128,000 words, and lets other threads run meanwhile; numpy and our own modules
take 0.3 s, which is then no longer on top. Nothing is decided here: what nobody takes is dropped.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Any


def begin(name: str) -> None:
    """Begin to load the tokenizer of that name in the background; whatever is wrong with it will be said elsewhere."""
    from .._base.errors import KvtraceError
    from . import tokenizer_files

    if name not in tokenizer_files.BUILTIN and not os.path.exists(name):
        return  # what has to be fetched first gains nothing
    with suppress(KvtraceError):
        path = str(tokenizer_files.find(name).tokenizer)
        # not a daemon: an interpreter that ends under a daemon thread in foreign code can crash
        _begun[path] = loading = _Loading(path)
        loading.start()


def take(path: str) -> Any | None:
    """What was loaded from that file, once; None if nothing was."""
    loading = _begun.pop(path, None)
    if loading is None:
        return None
    loading.join()
    return loading.loaded


class _Loading(threading.Thread):
    """One file on its way."""

    def __init__(self, path: str):
        super().__init__(name="kvtrace-preload")
        self.path, self.loaded = path, None

    def run(self):
        try:
            import fastokens  # type: ignore[import-untyped]

            self.loaded = fastokens.Tokenizer.from_file(self.path)
        except BaseException:  # a Rust panic is no Exception; it comes again where it is reported
            self.loaded = None


_begun: dict[str, _Loading] = {}  # path -> what is loading it


def _finish():
    """Before a fork: the child would not have the threads."""
    for loading in list(_begun.values()):
        loading.join()


os.register_at_fork(before=_finish)
