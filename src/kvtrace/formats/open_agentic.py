"""An open trace that is agentic Mooncake: its rows may be in any order, so all of them stay in memory."""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedReader

import numpy as np

from ..trace.columns import Columns, replace_columns
from ..trace.measured import NUMBERS
from . import agentic_mooncake
from .opened import KNOWN, OpenTrace, Piece, cut_in_pieces, parse_text

REFERENCES = 1 << 18  # approximate block references in a piece


class OpenAgentic(OpenTrace):
    """A file of agentic Mooncake, compressed or not, or a pipe; its header is the first of its texts."""

    columns: Columns  # as in the file, with the ids

    def __init__(self, path, stream: BufferedReader):
        super().__init__(path, repeats=False)
        self._stream = stream

    def _read(self) -> Iterator[Piece]:
        with self._stream as stream:
            header = stream.peek(agentic_mooncake.HEAD).partition(b"\n")[0]
            self.result = agentic_mooncake.read(stream, self.name, on_error=self.unread.append)
        self.columns = columns = self.result.columns
        if self.result.sidecar is not None:
            self.texts.append(parse_text("the header", header))
        yield from cut_in_pieces(columns, REFERENCES)
        numbers = ("session", "parent", "domain", *NUMBERS)
        links = {name: getattr(columns, name) for name in numbers if getattr(columns, name) is not None}
        self.fields = {name: getattr(columns, name) for name in KNOWN} | columns.extra | links
        no_outputs = None if columns.output_ids is None else np.empty(0, np.int64)
        self.result.columns = replace_columns(columns, hash_ids=np.empty(0, np.int64), output_ids=no_outputs)

    def _again(self) -> Iterator[Piece]:
        yield from cut_in_pieces(self.columns, REFERENCES)
