"""The rejects file: where each bad row is and why it was not taken, one JSON object a line, never what it holds."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

from .errors import RowError
from .files import write_atomically


class RejectsFile:
    """Gathers rejects in a temporary file, which gets its name when the run ends, well or not."""

    def __init__(self, path: str | Path | None):
        self._output: AbstractContextManager[BinaryIO] | None = None if path is None else write_atomically(path)
        self._stream: BinaryIO | None = None

    def __enter__(self) -> RejectsFile:
        if self._output is not None:
            self._stream = self._output.__enter__()
        return self

    def add(self, error: RowError) -> None:
        """Note one bad row."""
        if self._stream is not None:
            row = {name: getattr(error, name) for name in ("path", "line", "offset", "length", "field", "reason")}
            self._stream.write(json.dumps(row).encode() + b"\n")

    def __exit__(self, *_):
        if self._output is not None:
            self._output.__exit__(None, None, None)  # a run that failed has rejects all the same: they may say why
