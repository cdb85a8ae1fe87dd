"""Whether a trace file is, byte for byte, what kvtrace writes of the rows that it reads from it.

Rows that are read are written again, and compared with the file. Whatever a reader passes over makes a difference:
repeated keys, spaces, blank lines, bytes between Parquet's row groups, names in a gzip header, metadata of a schema.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import numpy as np

from .._base.errors import KvtraceError
from .._base.files import BUFFER
from .._base.input_files import ByteDigest, SameBytes, open_read
from .._base.output_files import packed_stream
from ..trace.columns import Columns, replace_columns, rows_of
from ..trace.invariants import broken_lengths
from . import agentic_mooncake, parquet
from . import dataset as datasets
from .format_table import FORMATS
from .jsonl_write import all_fields, lists, print_rows, require_writable
from .open_pieces import OpenAgentic, OpenColumns, OpenDataset, OpenRows, OpenTrace, Piece, Source
from .sidecar import dump


class Difference(StrEnum):
    """The parts of a file that differ from those that kvtrace writes.

    >>> Difference.ROWS.label
    'the text of its rows'
    """

    ROWS = "rows"
    COMPRESSION = "compression"
    PARQUET = "parquet"
    LIBRARY = "library"
    PARTS = "parts"

    @property
    def label(self) -> str:
        """The words for people."""
        return LABELS[self]


LABELS = {
    Difference.ROWS: "the text of its rows",
    Difference.COMPRESSION: "the compressed bytes",
    Difference.PARQUET: "the bytes of a Parquet file",
    Difference.LIBRARY: "the version of pyarrow that wrote a Parquet file",
    Difference.PARTS: "the number of requests in a part",
}


def differences(opened: OpenTrace, pieces: Iterable[Piece] | None = None) -> list[Difference]:
    """The differences from the file that kvtrace writes for the same rows; reads all bytes again, a piece at a time.

    `pieces` are the rows with their ids, as `opened` gave them, if the caller has them.

    >>> import tempfile
    >>> from kvtrace.formats import writing
    >>> from kvtrace.formats.open_pieces import open_pieces
    >>> from kvtrace.trace.building import toy
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = writing.write(toy("0 1", "0 2"), f"{folder}/day.jsonl")
    ...     before = differences(open_pieces(f"{folder}/day.jsonl"))
    ...     with open(f"{folder}/day.jsonl", "a") as file:
    ...         _ = file.write(" ")
    ...     before, differences(open_pieces(f"{folder}/day.jsonl"))
    ([], [<Difference.ROWS: 'rows'>])
    """
    opened.read()
    if isinstance(opened, OpenRows):
        return _of_rows(opened, opened.pieces() if pieces is None else pieces)
    if isinstance(opened, OpenAgentic):
        return _of_agentic(opened)
    assert isinstance(opened, OpenColumns)
    if isinstance(opened, OpenDataset):
        return _of_dataset(opened)
    source = opened.sources()[0]
    mismatches = _of_parquet(source, opened.result.columns)
    if opened.seen.form is not None and not mismatches:  # a compressed Parquet file
        with _Rewritten(opened, packed=True) as packed:
            with io.BufferedWriter(_packer(packed.stream, opened.seen.form), BUFFER) as stream:
                stream.write(source.getvalue() if isinstance(source, io.BytesIO) else Path(source).read_bytes())
            mismatches += [] if packed.is_same() else [Difference.COMPRESSION]
    return mismatches


def same_text(text: bytes, values: dict[str, Any]) -> bool:
    """Whether the text of a sidecar or a manifest is what kvtrace writes of its values."""
    try:
        return dump(values) == text
    except KvtraceError:
        return False


# -- rows of JSON ------------------------------------------------------------------------------------------------


def _of_rows(opened: OpenRows, pieces: Iterable[Piece]) -> list[Difference]:
    with _Rewritten(opened) as plain:
        try:
            if opened.seen.form is None:
                _write_rows(opened, pieces, plain.stream)
                return [] if plain.is_same() else [Difference.ROWS]
            with _Rewritten(opened, packed=True) as packed:
                with io.BufferedWriter(_packer(packed.stream, opened.seen.form), BUFFER) as packer:
                    _write_rows(opened, pieces, _Tee(plain.stream, packer))
                if plain.is_same():
                    return [] if packed.is_same() else [Difference.COMPRESSION]
        except KvtraceError:  # such as a time that is not finite: it cannot be written, so it was not
            pass
        return [Difference.ROWS]


def _of_agentic(opened: OpenAgentic) -> list[Difference]:
    """The differences of a file of agentic Mooncake; none of the first version is what kvtrace writes."""
    sidecar = opened.result.sidecar
    if sidecar is None or any(len(rule.rows) for rule in broken_lengths(opened.columns)):
        return [Difference.ROWS]
    written = io.BytesIO()
    settings = {"block_size": sidecar.block_size, "tail": sidecar.tail, **sidecar.meta}
    try:
        agentic_mooncake.write(written, opened.columns, extra=True, description=settings)
    except KvtraceError:  # such as prompts of more blocks than a file may have: it cannot be written, so it was not
        return [Difference.ROWS]
    with _Rewritten(opened) as plain:
        plain.stream.write(written.getvalue())
        if not plain.is_same():
            return [Difference.ROWS]
    if opened.seen.form is None:
        return []
    with _Rewritten(opened, packed=True) as packed:
        with io.BufferedWriter(_packer(packed.stream, opened.seen.form), BUFFER) as packer:
            packer.write(written.getvalue())
        return [] if packed.is_same() else [Difference.COMPRESSION]


class _Rewritten:
    """The bytes that kvtrace writes, to be compared with those of the file; `packed`: as they are in the file.

    The file is read again; if that cannot be, the digests of its bytes are compared.
    """

    def __init__(self, opened: OpenTrace, *, packed: bool = False) -> None:
        seen = opened.seen
        self._digest = (seen.packed if packed or seen.form is None else seen.plain).digest
        self.stream: ByteDigest | SameBytes  # takes the bytes
        if self._digest is not None:
            self.stream = ByteDigest()
        else:
            file = open(opened.path, "rb") if packed else open_read(opened.path)  # noqa: SIM115 - `close` closes it
            self.stream = SameBytes(file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    def is_same(self) -> bool:
        """Whether the stream got the bytes of the file, and no others."""
        if isinstance(self.stream, SameBytes):
            return self.stream.is_complete()
        assert self._digest is not None
        return self.stream.equals(self._digest)


def _write_rows(opened: OpenRows, pieces: Iterable[Piece], stream) -> None:
    """Write the rows with the normal writer's fields; the ids come piece by piece."""
    columns, format = opened.result.columns, FORMATS[opened.result.format]
    no_ids = np.empty(0, np.int64)
    columns = replace_columns(columns, hash_ids=no_ids, output_ids=None if columns.output_ids is None else no_ids)
    require_writable(columns, 0)
    fields, extra = all_fields(format.fields_of(columns), format.extra_of(columns))
    for rows, ids in pieces:
        fields["hash_ids"] = _list_field(ids.hash_ids, ids.offsets)
        if columns.output_ids is not None:
            output_ids, offsets = ids.output_ids, ids.output_offsets
            if output_ids is None or offsets is None:  # no row of this piece has the field
                output_ids, offsets = no_ids, np.zeros(rows.stop - rows.start + 1, np.int64)
            fields["output_hash_ids"] = _list_field(output_ids, offsets)
        stream.write(print_rows(fields, rows.start, rows.stop, extra=extra))


def _list_field(ids, offsets):
    """A field of lists whose rows count from the piece's first."""
    whole = lists(ids, offsets)
    return lambda start, stop: whole(0, stop - start)


class _Packer(io.RawIOBase):
    """A compressor as a stream that can be buffered as the writer buffers its own."""

    def __init__(self, stream):
        super().__init__()
        self._stream = stream

    def writable(self):
        return True

    def write(self, data):
        self._stream.write(data)
        return memoryview(data).nbytes

    def close(self):
        if not self.closed:
            super().close()
            self._stream.close()


def _packer(sink: ByteDigest | SameBytes, form: str) -> _Packer:
    return _Packer(packed_stream(sink, form))


class _Tee:
    """Writes to two streams."""

    def __init__(self, *streams):
        self._streams = streams

    def write(self, data) -> None:
        for stream in self._streams:
            stream.write(data)


# -- Parquet -----------------------------------------------------------------------------------------------------


def _of_dataset(opened: OpenDataset) -> list[Difference]:
    """The differences of all parts; each but the last has the same number of requests."""
    columns, start, mismatches = opened.result.columns, 0, set()
    counts = opened.dataset.part_requests
    expected = {"block_size": opened.dataset.block_size, "tail": opened.dataset.tail}
    if any(count != datasets.ROWS for count in counts[:-1]) or any(count > datasets.ROWS for count in counts[-1:]):
        mismatches.add(Difference.PARTS)
    for source, count in zip(opened.sources(), counts, strict=True):
        part = rows_of(replace_columns(columns, hash_ids=np.empty(0, np.int64)), start, start + count)
        mismatches |= set(_of_parquet(source, part, expected))
        start += count
    return sorted(mismatches)


def _of_parquet(source: Source, columns: Columns, expected: dict[str, Any] | None = None) -> list[Difference]:
    """The differences of one Parquet file with these columns, and with the expected description if there is one."""
    import pyarrow as pa
    import pyarrow.parquet

    if len(columns) and np.signbit(columns.timestamp).any():  # -0.0 is written as it was read
        return [Difference.PARQUET]
    rewritten = ByteDigest()
    fault = False
    try:
        with pa.parquet.ParquetFile(source) as file:
            if file.metadata.created_by != f"parquet-cpp-arrow version {pa.cpp_version}":
                return [Difference.LIBRARY]
            if expected not in (None, parquet.description_of(file.schema_arrow)):
                return [Difference.PARQUET]
            _write_parquet(file, columns, rewritten)
    except (KvtraceError, pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError):
        fault = True  # it cannot be written, so it was not
    return [Difference.PARQUET] if fault or not rewritten.equals(_digest_of(source)) else []


def _write_parquet(file, columns: Columns, stream) -> None:
    """Write the columns again; the ids come from one row group of the file at a time."""
    description = parquet.description_of(file.schema_arrow)
    blocks, groups = int(columns.offsets[-1]), range(file.metadata.num_row_groups)
    lists_in = [name for name in ("hash_ids", "output_hash_ids") if name in file.schema_arrow.names]
    with parquet.RowGroups(stream, columns, blocks=blocks, description=description) as writer:
        if len(writer.rows) != len(groups):
            raise ValueError("row groups")
        for number, rows in enumerate(writer.rows):
            writer.write(rows, parquet.ids_of(file.read_row_group(number, columns=lists_in, use_threads=False)))


def _digest_of(source: Source) -> ByteDigest:
    """The digest of a file's bytes."""
    digest = ByteDigest()
    for data in _bytes_of(source):
        digest.write(data)
    return digest


def _bytes_of(source: Source) -> Iterator[bytes | memoryview]:
    if isinstance(source, io.BytesIO):
        yield source.getbuffer()
        return
    with open(source, "rb") as file:
        while data := file.read(BUFFER):
            yield data
