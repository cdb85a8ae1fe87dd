"""The numbers of a recording: keyed digest -> number, over all windows that link. One file, appended to, owner-only.

    header   one line of JSON: the name of the recording, when it starts, a check value of its key
    frames   a count for each kind of digest, and a checksum; then the digests, in the order of their numbers

The file has neither text nor the key. A kill may leave an incomplete frame at its end, which is cut off: no links file
has its numbers, because a window's numbers are saved before its links.
"""

from __future__ import annotations

import json
import os
import secrets
import struct
from hashlib import blake2b
from pathlib import Path
from typing import Self

import numpy as np

from .._base.checkpoint import parsed
from .._base.errors import InputError, UsageError
from .._base.file_locks import locked_file
from .._base.output_errors import named_errors
from .._base.output_files import append_whole
from .._native.numbering import DigestIndex
from ..trace.meta import UNRENDERED, Rendering

FORMAT = 1
KINDS = ("shared", "own", "sessions", "domains")
FRAME = struct.Struct(f"<{len(KINDS)}Q16s")
DIGEST_BYTES = 16
BUSY = "{path}: another run writes this index. Wait for it."
FOREIGN = "{path}: not the index of a recording of this version of kvtrace, or other users can read it. Move it away."
OTHER_RENDERING = (
    "{path}: the windows so far were rendered by another engine or version, so nothing would link to them. Move the "
    "file away to begin another recording."
)


class LinkIndex:
    """The numbers of a recording. Use it as a context manager; `save` after each window.

    Args:
        path: The file; made if it is missing.
        check: A check value of the key. The file of another key is replaced: its digests say nothing about new ones.
        start_ns: When the recording starts, if the file is new.
        rendering: Of the windows, as `rendering_of` gives it: equal prompts have other digests in another one.

    Raises:
        UsageError: Another run has the file open, others can read it, or its windows are of another rendering.
        InputError: It is not an index of this version.

    >>> import tempfile
    >>> digests = np.array([[1, 2], [3, 4]], dtype=np.uint64)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with LinkIndex(f"{folder}/index", check="a", start_ns=5) as index:
    ...         first = index.shared.add(digests), index.save()
    ...     with LinkIndex(f"{folder}/index", check="a", start_ns=9) as index:
    ...         index.shared.find(digests[::-1]), index.windows, index.start_ns
    (array([1, 0], dtype=int32), 1, 5)
    """

    shared: DigestIndex  # of blocks that enough contributors have
    own: DigestIndex  # of blocks of one contributor, with that contributor
    sessions: DigestIndex
    domains: DigestIndex

    def __init__(self, path: str | Path, *, check: str, start_ns: int, rendering: Rendering = UNRENDERED):
        self._path, self._end = os.fspath(path), 0
        self._saved: list[int] = []
        self._handle = locked_file(self._path, busy=BUSY, foreign=FOREIGN)
        try:
            self._open({"kvtrace_links_index": FORMAT, "recording": secrets.token_hex(16), "check": check,
                        "start_ns": start_ns, "rendering": list(rendering)})  # fmt: skip
        except BaseException:
            os.close(self._handle)
            raise

    def save(self) -> int:
        """Append the digests that are new since the last call; returns the number of the window that has them."""
        new = [index.digests()[saved:] for index, saved in zip(self._indexes, self._saved, strict=True)]
        data = b"".join(np.ascontiguousarray(digests, dtype="<u8").tobytes() for digests in new)
        counts = [len(digests) for digests in new]
        frame = FRAME.pack(*counts, _checksum(counts, data)) + data
        self._end = append_whole(self._handle, frame, self._end, self._path)
        with named_errors(self._path):
            os.fsync(self._handle)
        self._saved = [index.distinct for index in self._indexes]
        self.windows += 1
        return self.windows - 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    @property
    def _indexes(self) -> list[DigestIndex]:
        return [getattr(self, kind) for kind in KINDS]

    def _open(self, header: dict) -> None:
        for kind in KINDS:
            setattr(self, kind, DigestIndex())
        self.windows, self._end = 0, 0
        with open(self._handle, "rb", closefd=False) as file:
            line = file.readline()
            found = parsed(line) if line.endswith(b"\n") else {}
            if line.endswith(b"\n") and found.get("kvtrace_links_index") != FORMAT:
                raise InputError(FOREIGN.format(path=self._path))
            if found.get("check") == header["check"]:
                if found.get("rendering", list(UNRENDERED)) != header["rendering"]:
                    raise UsageError(OTHER_RENDERING.format(path=self._path))
                header, self._end = found, file.tell()
                self._read(file)
        with named_errors(self._path):
            os.ftruncate(self._handle, self._end)
        if not self._end:
            self._end = append_whole(self._handle, json.dumps(header).encode() + b"\n", 0, self._path)
        self.recording, self.start_ns = str(header["recording"]), int(header["start_ns"])
        self._saved = [index.distinct for index in self._indexes]

    def _read(self, file) -> None:
        """Add the digests of all complete frames."""
        while len(head := file.read(FRAME.size)) == FRAME.size:
            *counts, checksum = FRAME.unpack(head)
            size = sum(counts) * DIGEST_BYTES
            if size > os.fstat(self._handle).st_size:
                return
            data = file.read(size)
            if len(data) < size or _checksum(counts, data) != checksum:
                return
            digests = np.frombuffer(data, dtype="<u8").reshape(-1, 2)
            ends = np.cumsum(counts)
            for index, end, count in zip(self._indexes, ends, counts, strict=True):
                index.add(digests[end - count : end])
            self._end, self.windows = file.tell(), self.windows + 1


def _checksum(counts: list[int], data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_BYTES, key=struct.pack(f"<{len(KINDS)}Q", *counts)).digest()
