"""Open a trace of any format, to read it piece by piece. The content determines the format, not the name.

An open trace gives its rows in pieces, and after one pass its other columns, fields and metadata. A file is read again
for each pass, so that memory holds only a piece of its block ids. A small file stays in memory, as does one that cannot
be read twice, such as stdin, and agentic Mooncake, whose rows may be in any order.
"""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from .._base.errors import InputError, RowError
from .._base.files import is_regular, name_of
from .._base.input_files import open_read, size_of
from .._base.step_work import report_work
from ..trace.building import TraceBuilder
from ..trace.columns import NUMBERS, Columns, replace_columns, rows_of
from . import agentic_mooncake, format_table, parquet
from . import dataset as datasets
from .format_table import require_format, require_trace
from .jsonl_read import RowReader, each_piece
from .seen_words import SeenWords
from .sidecar import ReadResult, is_deep

CACHED = 1 << 20  # maximum block references of a file that stay in memory
KNOWN = ("timestamp", "input_length", "output_length")

Piece = tuple[slice, Columns]  # rows of the file, and their columns


@dataclass
class MetadataText:
    """A sidecar or another piece of metadata; `fault` is the reason why it is not valid."""

    where: str
    values: Any = None
    fault: str | None = None
    text: bytes | None = None  # as it is in the file


class OpenTrace(ABC):
    """An open trace file or data set. Everything but `pieces` is known after the first complete pass.

    >>> import tempfile
    >>> from kvtrace.formats import writing
    >>> from kvtrace.formats.open_pieces import open_pieces
    >>> from kvtrace.trace.building import toy
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = writing.write(toy("0 1", "0 2"), f"{folder}/day.jsonl")
    ...     opened = open_pieces(f"{folder}/day.jsonl")
    ...     [columns.hash_ids.tolist() for rows, columns in opened.pieces()], opened.result.columns.offsets.tolist()
    ([[0, 1, 0, 2]], [0, 2, 4])
    """

    path: str | Path
    name: str
    repeats: bool
    seen: SeenWords

    result: ReadResult  # its columns have offsets but no block ids
    fields: dict[str, np.ndarray]  # field -> scalar values as in the file, None where a row has none; without the ids

    def __init__(self, path: str | Path, *, repeats: bool):
        self.path, self.name, self.repeats = path, name_of(path), repeats
        self.seen = SeenWords()  # of the first pass; unused for Parquet that is not compressed
        self.growth = 1.0  # ratio of the whole file to what the first pass has read, where it is known
        self.unread: list[RowError] = []  # rows that could not be read
        self.texts: list[MetadataText] = []  # metadata inside the file
        self.unknown_columns: dict[str, int] = {}  # columns of a Parquet file that are not read -> rows
        self.unknown_files = 0  # files in a data set's folder that do not belong to it
        self._kept: list[Piece] | None = []
        self._is_read = False

    def pieces(self) -> Iterator[Piece]:
        """All rows in order. The ids are in every pass; sessions and other fields only where the format has them.

        The next piece may reuse the arrays of the last one.
        """
        if not self._is_read:
            yield from self._first_pass()
        elif self._kept is not None:
            yield from self._kept
        else:
            yield from self._again()

    def read(self) -> OpenTrace:
        """Read all rows once, unless that has happened."""
        for _ in self.pieces() if not self._is_read else ():
            pass
        return self

    def _first_pass(self) -> Iterator[Piece]:
        references = 0
        for rows, columns in self._read():
            references += len(columns.hash_ids) + (0 if columns.output_ids is None else len(columns.output_ids))
            if self.repeats and references > CACHED:
                self._kept = None
            if self._kept is not None:
                self._kept.append((rows, ids_alone(columns)))
            yield rows, columns
        self._is_read = True

    @abstractmethod
    def _read(self) -> Iterator[Piece]:
        """The pieces of the first pass, which collects everything else."""

    @abstractmethod
    def _again(self) -> Iterator[Piece]:
        """The pieces of another pass."""


def parse_text(where: str, text: bytes, must_be_json: bool = True) -> MetadataText:
    """A text as metadata: the values of its JSON, or the text itself."""
    values: Any = None
    with suppress(orjson.JSONDecodeError):
        values = orjson.loads(text)
    if values is None and not must_be_json:
        return MetadataText(where, text.decode(errors="replace"), text=text)
    if not isinstance(values, dict) and must_be_json:
        return MetadataText(where, text.decode(errors="replace"), "is not a JSON object", text)
    if is_deep(values):
        return MetadataText(where, None, "is nested too deeply", text)
    return MetadataText(where, values, text=text)


def cut_in_pieces(columns: Columns, references: int) -> Iterator[Piece]:
    """The rows in pieces of about so many block references.

    >>> from kvtrace.trace.building import toy
    >>> [rows for rows, _ in cut_in_pieces(toy("0 1", "0 2", "3"), 4)]
    [slice(0, 2, None), slice(2, 3, None)]
    """
    start = 0
    while start < len(columns):
        full = int(np.searchsorted(columns.offsets, columns.offsets[start] + references, side="right")) - 1
        stop = max(full, start + 1)
        yield slice(start, stop), rows_of(columns, start, stop)
        start = stop


def ids_alone(columns: Columns) -> Columns:
    """A copy of the ids and offsets of some rows, without their other columns; readers reuse their arrays."""
    copied = replace_columns(columns, session=None, parent=None, domain=None, extra={}, dependencies=None)
    for name, values in vars(copied).items():
        if isinstance(values, np.ndarray):
            setattr(copied, name, values.copy() if "ids" in name or "offsets" in name else values[:0])
    return copied


class OpenRows(OpenTrace):
    """A file of JSON Lines, compressed or not, or a pipe."""

    def __init__(self, path, stream: BufferedReader, format: str | None, threads: int | None):
        super().__init__(path, repeats=is_regular(path))
        self._stream, self._format, self._threads = stream, format, threads

    def _read(self) -> Iterator[Piece]:
        with self._stream as stream:
            reader = RowReader(stream, self.name, on_error=self.unread.append, threads=self._threads, ids=False)
            for piece in _numbered(reader.pieces()):
                self.growth = reader.growth
                yield piece
        rows = reader.rows()
        if rows.lengths_only:
            raise InputError(
                f"{self.name}: no row has hash_ids, so there is no release to audit. To make one: "
                f"kvtrace anonymize {self.name} -o TRACE"
            )
        format = format_table.FORMATS[self._format or format_table.format_of(rows.others)]
        self.result = format.result_of(rows, self.name, self.unread.append)
        self.fields = {name: getattr(rows, name) for name in KNOWN} | rows.others

    def _again(self) -> Iterator[Piece]:
        with open_read(self.path) as stream:
            yield from _numbered(each_piece(stream, self.name, threads=self._threads))


def _numbered(pieces) -> Iterator[Piece]:
    """Scanned pieces with the numbers of their rows."""
    start = 0
    for scanner in pieces:
        stop = start + scanner.rows
        outputs = (scanner.output_ids, scanner.output_offsets) if scanner.any_outputs else (None, None)
        yield slice(start, stop), Columns(
            scanner.timestamp, scanner.input_length, scanner.output_length, scanner.hash_ids, scanner.offsets,
            output_ids=outputs[0], output_offsets=outputs[1],
        )  # fmt: skip
        start = stop


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
        expected = {datasets.MANIFEST, datasets.CARD, *self.files}
        with os.scandir(path) as entries:  # a folder or a link with an expected name is unknown, too
            self.unknown_files = sum(
                not (entry.name in expected and entry.is_file(follow_symlinks=False)) for entry in entries
            )

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


def open_pieces(path: str | Path, *, format: str | None = None, threads: int | None = None) -> OpenTrace:
    """Open a trace file or a data set, to read it piece by piece.

    Args:
        path: A file (plain, gzip or zstd), a data set, or `-` for stdin.
        format: One of NAMES. By default inferred from the content.
        threads: Parser threads for JSON Lines; the default is one a core.

    Returns:
        The open trace; its rows are still to be read. Unreadable rows are listed in `unread`.

    Raises:
        InputError: The file cannot be read at all, or holds Weka sessions; also later, when its pieces are read.
        UsageError: The format is unknown.

    >>> import tempfile
    >>> from kvtrace.formats import writing
    >>> from kvtrace.trace.building import toy
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = writing.write(toy("0 1", "0 2"), f"{folder}/day.dataset")
    ...     open_pieces(f"{folder}/day.dataset").read().result.columns.input_length
    array([2, 2])
    """
    require_format(format)
    if names_dataset(path, format):
        return OpenDataset(path)
    if format == "weka" or (format is None and format_table.holds_sessions(path)):
        name = name_of(path)
        raise InputError(
            f"{name}: holds Weka sessions: a recording, not a release. To release it: kvtrace release {name} -o TRACE"
        )
    require_trace(path)
    seen = SeenWords(repeats=is_regular(path))
    stream = open_read(path, seen=seen)
    try:
        if format == "parquet" or (format is None and stream.peek(4)[:4] == parquet.MAGIC):
            opened: OpenTrace = OpenParquet(path, stream) if OpenParquet.fits(stream) else PackedParquet(path, stream)
        elif agentic_mooncake.is_of(format, stream):
            opened = OpenAgentic(path, stream)
        else:
            opened = OpenRows(path, stream, format, threads)
    except BaseException:
        stream.close()
        raise
    opened.seen = seen
    return opened


def names_dataset(path: str | Path, format: str | None = None) -> bool:
    """Whether a path is read as a data set: by format, or a folder that is one by content or name."""
    is_folder = os.path.isdir(path) and (datasets.is_dataset(path) or datasets.has_dataset_name(path))
    return format == "dataset" or (format is None and is_folder)
