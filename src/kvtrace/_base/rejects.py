"""The rejects file: the place of each bad row and the reason, one JSON object a line; never its content."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

from .errors import RowError
from .output_files import Role, write_atomically


class RejectsFile:
    """Collects rejects in a temporary file, which gets its name when the run ends, also after a failure."""

    def __init__(self, path: str | Path | None):
        self._output: AbstractContextManager[BinaryIO] | None = (
            None if path is None else write_atomically(path, Role.ASIDE)
        )
        self._stream: BinaryIO | None = None

    def __enter__(self) -> RejectsFile:
        if self._output is not None:
            self._stream = self._output.__enter__()
        return self

    def add(self, error: RowError) -> None:
        """Add one bad row."""
        if self._stream is not None:
            row = {name: getattr(error, name) for name in ("path", "line", "offset", "length", "field", "reason")}
            self._stream.write(json.dumps(row).encode() + b"\n")

    def __exit__(self, *_):
        if self._output is not None:
            self._output.__exit__(None, None, None)  # also after a failure: the rejects may explain it
