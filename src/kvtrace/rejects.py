"""The rejects file: where each bad row is and why it was not taken, one JSON object a line, never what it holds."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TextIO

from .errors import KvtraceError, RowError


class RejectsFile:
    """Gathers rejects in a temporary file, which gets its name when the run ends, well or not."""

    def __init__(self, path: str | Path | None):
        self._path = None if path is None else Path(path)
        self._file: TextIO | None = None

    def __enter__(self) -> RejectsFile:
        if self._path is not None:
            try:
                handle, self._temporary = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
            except OSError as error:
                raise KvtraceError(f"{self._path}: cannot be written ({error.strerror}).") from None
            self._file = os.fdopen(handle, "w", encoding="utf-8")
        return self

    def add(self, error: RowError) -> None:
        """Note one bad row."""
        if self._file is not None:
            row = {name: getattr(error, name) for name in ("path", "line", "offset", "length", "field", "reason")}
            self._file.write(json.dumps(row) + "\n")

    def __exit__(self, *_):
        if self._file is None:
            return
        try:
            with self._file:
                self._file.flush()
                os.fsync(self._file.fileno())
            os.replace(self._temporary, self._path)
        except OSError as error:
            raise KvtraceError(f"{self._path}: cannot be written ({error.strerror}).") from None
