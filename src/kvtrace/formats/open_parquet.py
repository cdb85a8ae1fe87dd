"""An open trace that is Parquet: a file, a file that cannot be read twice, or a data set."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .._base.errors import InputError
from .._base.input_files import size_of
from .._base.step_work import report_work
from ..trace.building import TraceBuilder
from ..trace.columns import Columns, replace_columns
from ..trace.measured import NUMBERS
from . import dataset as datasets
from . import parquet
from .opened import KNOWN, OpenTrace, Piece, cut_in_pieces, parse_text
from .read_result import ReadResult

REFERENCES = 1 << 18  # approximate block references in a piece, to bound what is derived from it
ROWS = 1 << 12  # rows of a Parquet file read at a time

Source = str | io.BytesIO


class OpenColumns(OpenTrace):
    """A trace that is read as Columns."""

    def _columns(self, extra: str) -> Iterator[Columns]:
        raise NotImplementedError

    def sources(self) -> list[Source]:
        """The Parquet files."""
        raise NotImplementedError

    def _read(self) -> Iterator[Piece]:
        whole, pool = TraceBuilder(), _StringPool()
        start = 0
        for columns in self._columns("keep"):
            extra = {name: pool.pool(values) for name, values in columns.extra.items()}
            no_outputs = None if columns.output_ids is None else np.empty(0, np.int64)
            yield slice(start, start + len(columns)), columns
            start += len(columns)
            whole.add(replace_columns(columns, hash_ids=np.empty(0, np.int64), output_ids=no_outputs, extra=extra))
        columns = whole.columns()
        numbers = (*parquet.LINKS, *NUMBERS)
        links = {name: getattr(columns, name) for name in numbers if getattr(columns, name) is not None}
        own = {*parquet.NEEDED, *parquet.OTHERS}  # an extra column with such a name is not that column
        extra = {f"extra.{name}" if name in own else name: values for name, values in columns.extra.items()}
        self.fields = {name: getattr(columns, name) for name in KNOWN} | extra | links
        self.result = ReadResult(columns, self.name, "parquet")
        _add_other_content(self, self.sources())

    def _again(self) -> Iterator[Piece]:
        start = 0
        for columns in self._columns("ignore"):
            yield slice(start, start + len(columns)), columns
            start += len(columns)


class OpenParquet(OpenColumns):
    """A plain Parquet file."""

    def __init__(self, path, stream):
        super().__init__(path, repeats=True)
        stream.close()

    @staticmethod
    def fits(stream) -> bool:
        """Whether Parquet can be read from the file itself, not compressed and not a pipe."""
        return size_of(stream) is not None

    def _columns(self, extra: str) -> Iterator[Columns]:
        return parquet.batches(str(self.path), ROWS, extra=extra)

    def sources(self) -> list[Source]:
        return [str(self.path)]


class PackedParquet(OpenColumns):
    """A Parquet file that is compressed or a pipe: its bytes stay in memory."""

    def __init__(self, path, stream):
        super().__init__(path, repeats=False)
        with stream:
            self._bytes = stream.read()

    def _columns(self, extra: str) -> Iterator[Columns]:
        for _, columns in cut_in_pieces(parquet.read(io.BytesIO(self._bytes), self.path).columns, REFERENCES):
            yield columns

    def sources(self) -> list[Source]:
        return [io.BytesIO(self._bytes)]


class OpenDataset(OpenColumns):
    """A data set; its manifest is the first of its texts."""

    files: list[Any]
    unknown_files: int

    def __init__(self, path):
        super().__init__(path, repeats=True)
        self.dataset = datasets.open_dataset(path)
        self.manifest = parse_text("the sidecar", Path(path, datasets.MANIFEST).read_bytes())
        self.files = [part["file"] for part in self.manifest.values["parts"]]
        known = {datasets.MANIFEST, datasets.CARD, *self.files}
        with os.scandir(path) as entries:  # a folder or a link with a known name is unknown, too
            self.unknown_files = sum(not (one.name in known and one.is_file(follow_symlinks=False)) for one in entries)

    def _columns(self, extra: str) -> Iterator[Columns]:
        for columns in self.dataset.chunks(REFERENCES, extra=extra):
            report_work(len(columns), len(self.dataset))
            yield columns

    def sources(self) -> list[Source]:
        return [os.path.join(self.path, file) for file in self.files]

    def _read(self) -> Iterator[Piece]:
        yield from super()._read()
        self.texts.insert(0, self.manifest)


class _StringPool:
    """Replaces equal strings by one object."""

    def __init__(self):
        self._texts: dict[str, str] = {}

    def pool(self, values: np.ndarray) -> np.ndarray:
        if values.dtype == object:
            for row, value in enumerate(values):
                if type(value) is str:
                    values[row] = self._texts.setdefault(value, value)
        return values


def _add_other_content(opened: OpenColumns, files: list[Source]) -> None:
    """Add the names of the columns that a Trace does not read, and the metadata of their schemas."""
    import pyarrow as pa

    fault = None
    try:
        _add_columns_and_metadata(opened, files)
    except (pa.ArrowException, OSError) as error:
        fault = type(error).__name__
    if fault:  # raised outside the handler: Arrow's error may quote values and must not be its context
        raise InputError(f"{opened.name}: cannot be read as Parquet ({fault}).")


def _add_columns_and_metadata(opened: OpenColumns, files: list[Source]) -> None:
    import pyarrow.parquet as pq

    metadata: dict[tuple[bytes, bytes], None] = {}
    for file in files:
        with pq.ParquetFile(file) as whole:
            schema, count = whole.schema_arrow, whole.metadata.num_rows
        metadata |= dict.fromkeys((schema.metadata or {}).items())
        for name in set(schema.names) - {*parquet.NEEDED, *parquet.OTHERS}:
            opened.unknown_columns[name] = opened.unknown_columns.get(name, 0) + count
    texts = [parse_text(f"metadata {key.decode(errors='replace')}"[:40], text, must_be_json=key == parquet.KEY)
             for key, text in metadata if key != b"ARROW:schema"]  # fmt: skip
    opened.texts += sorted(texts, key=lambda text: text.where != "metadata kvtrace")
