"""The digester's side of `kvtrace record`: batches go to the file of the open window."""

from __future__ import annotations

import os
import time
from typing import Any

from ..ingest.encoding import Batch
from ..ingest.logs.kv_batches import KvEventCounts
from .block_form import BlockForm
from .encoders import SourceEncoder
from .spool import WindowFile, read_window

SYNC_S = 2.0  # a power cut loses at most what came in this time


class WindowSink:
    """Appends batches to the file of the window that began last."""

    def __init__(self) -> None:
        self._file: WindowFile | None = None
        self._synced = 0.0

    def begin(self, message: dict[str, Any]) -> dict[str, Any]:
        """Make the file of a window, or continue it after an interruption."""
        path = message["path"]
        header = {**message["begin"], "accepted": message["accepted"], "dropped": message["dropped"]}
        earlier = None
        if message["continues"] and os.path.exists(path):
            earlier = read_window(path)
            if earlier is None:  # the digester before this one died while it made the file: nothing is in it
                os.unlink(path)
        self._file = WindowFile(path, header, earlier)
        return {"begun": path, "found": 0 if earlier is None else earlier.covered}

    def add(self, encoder: SourceEncoder, source: str, batch: Batch, *, covered: int, malformed: int) -> None:
        """Append a batch."""
        assert self._file is not None
        if len(batch):
            self._file.source(source, encoder.description())
        self._file.batch(batch, covered=covered, malformed=malformed)

    def misfit(self, encoder: SourceEncoder) -> str | None:
        """Another block size, or another treatment of tails, than those of the first source of the window."""
        assert self._file is not None
        first = self._file.first_source
        return None if first is None else encoder.form.misfit(BlockForm(first["block_size"], first["tail"]))

    def finish(self, message: dict[str, Any]) -> dict[str, Any]:
        """Close the file of the window, which can now be sealed."""
        if self._file is None:
            return {}
        self._file.finish(accepted=message["accepted"], dropped=message["dropped"])
        path, self._file = self._file.path, None
        return {"finished": path, "accepted": message["accepted"]}

    def tick(self) -> dict[str, Any]:
        """Flush the file to the disk every two seconds."""
        if self._file is not None and time.monotonic() - self._synced > SYNC_S:
            self._file.sync()
            self._synced = time.monotonic()
        return {}

    def stores(self, total: KvEventCounts) -> None:
        """Nothing: a window has requests only."""

    def close(self) -> None:
        """Close the file; the window was not ended."""
        if self._file is not None:
            self._file.close()
