"""Seal windows as they end, one at a time, in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from queue import Queue

from .sealing import Sealed, seal_in_process


class Sealer:
    """Seals the windows that it is given, in order.

    Args:
        folder: Where sealed windows go.
        on_sealed: Called with the result of each.
        on_message: Receives a sentence about each, without content.
    """

    def __init__(self, folder: Path, *, on_sealed: Callable[[Sealed], None], on_message: Callable[[str], None]):
        self._folder, self._on_sealed, self._say = folder, on_sealed, on_message
        self._waiting: Queue[Path | None] = Queue()
        self._thread = threading.Thread(target=self._work, daemon=True, name="sealer")
        self._thread.start()

    def seal(self, path: Path) -> None:
        """Seal a window when those before it are sealed."""
        self._waiting.put(path)

    def end(self) -> None:
        """Seal what waits."""
        self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (path := self._waiting.get()) is not None:
            done = seal_in_process(path, self._folder)
            self._on_sealed(done)
            if sentence := sentence_of(done):
                self._say(sentence)


def sentence_of(done: Sealed) -> str | None:
    """What became of a window, for an operator; None if it had nothing.

    >>> sentence_of(Sealed("window-20261123T100000Z", ["a.jsonl"], 1200, lost=3, audit="k-anonymous"))
    'window-20261123T100000Z: sealed; 1,200 requests, 3 lost; audit k-anonymous.'
    """
    if done.error is not None:
        return f"{done.name}: not sealed: {done.error} Its digests are kept; the next start tries again."
    missing = [f"{count:,} {what}" for what in ("lost", "dropped", "rejected") if (count := getattr(done, what))]
    if not done.files:
        return f"{done.name}: no request was recorded; {', '.join(missing)}." if missing else None
    requests = f"{done.requests:,} request{'' if done.requests == 1 else 's'}"
    counts = ", ".join([requests, *missing])
    note = f" {done.note[0].upper()}{done.note[1:]}" if done.note else ""
    return f"{done.name}: sealed; {counts}; audit {done.audit}.{note}"
