"""Data sets: a folder of Parquet parts and a manifest, for a trace that need not fit into memory.

Each part has a fixed number of requests, so the files depend only on the trace and not on how it was passed in. The
manifest is the sidecar of all parts, and lists the requests and blocks of each.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from .._base.errors import InputError, UsageError
from .._base.files import is_std
from .._base.input_files import read_unfollowed
from .._base.output_files import OutputFolder, require_folder_place
from .._base.results import Result, columns_of
from ..trace.building import TraceBuilder
from ..trace.columns import BlockRule, Columns, rows_of
from ..trace.trace import Trace
from . import parquet
from .sidecar import Counts, ReadResult, Sidecar, describe, dump, load

ROWS = 65_536  # requests in a part
REFERENCES = 1 << 20  # approximate block references in a chunk
MANIFEST = "manifest.json"
CARD = "card.md"  # the data card, if there is one
NAME = "part-{:05}.parquet"
PART_NAME = re.compile(r"part-\d{5,}\.parquet")
REMEDY = "Write the data set again with `kvtrace convert`."


class DatasetWriter:
    """Writes a trace in chunks as a data set, which appears complete or not at all.

    It replaces an existing data set. UsageError, before any work, if the folder has other files.

    >>> import tempfile
    >>> from kvtrace.trace.building import toy
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with DatasetWriter(f"{folder}/day.dataset", block_size=1, tail="kept") as writer:
    ...         writer.add(toy("0 1 2", "0 1 3"))
    ...     open_dataset(f"{folder}/day.dataset").distinct
    4
    """

    name: str

    def __init__(
        self,
        folder: str | Path,
        *,
        block_size: int,
        tail: str,
        meta: Mapping[str, Any] | None = None,
        rows: int = ROWS,
        inspect: Callable[..., str] | None = None,
    ):
        self._output = OutputFolder(folder, check_place)
        parquet.require()
        self.name = self._output.name
        self._settings = {"block_size": block_size, "tail": tail}
        self._meta = {key: value for key, value in (meta or {}).items() if key != "parts"}
        self._rows, self._pending_rows, self._pending = rows, 0, TraceBuilder()
        self._inspect = inspect
        self._parts: list[dict[str, Any]] = []
        self._counts = Counts()

    def __enter__(self) -> DatasetWriter:
        self._output.__enter__()
        return self

    def __exit__(self, kind, error, trace) -> None:
        try:
            if kind is None:
                self._finish()
        except BaseException:
            self._output.discard()
            raise
        self._output.__exit__(kind, error, trace)

    def add(self, columns: Columns) -> None:
        """Add the next rows, any number of them; ids and parents are those of the whole trace."""
        start = 0
        while start < len(columns):
            stop = min(len(columns), start + self._rows - self._pending_rows)
            self._pending.add(rows_of(columns, start, stop))
            self._pending_rows += stop - start
            if self._pending_rows == self._rows:
                self._write_part()
            start = stop

    def _write_part(self):
        columns, self._pending, self._pending_rows = self._pending.columns(), TraceBuilder(), 0
        name = NAME.format(len(self._parts))
        with self._output.file(name) as stream:
            parquet.write(stream, columns, description=self._settings)
        self._parts.append({"file": name, "requests": len(columns), "blocks": len(columns.hash_ids)})
        self._counts.add(columns)

    def _finish(self):
        if self._pending_rows:
            self._write_part()
        description = describe(None, **self._settings, format="dataset", meta=self._meta, counts=vars(self._counts))
        with self._output.file(MANIFEST) as stream:
            stream.write(dump(description | {"parts": self._parts}))
        if self._inspect is not None:  # checks the folder before it gets its name, and may raise
            card = self._inspect(self._output.path, description=description)
            with self._output.file(CARD) as stream:
                stream.write(card.encode())


class Dataset(Result):
    """An open data set: the values of its manifest, and its rows in chunks or at once."""

    path: str
    requests: int
    blocks: int  # references to blocks of prompts
    distinct: int
    output_blocks: int
    block_size: int  # tokens per block
    tail: BlockRule
    meta: dict[str, Any]  # how it was made
    part_requests: list[int]  # requests of each part
    sidecar: Sidecar

    def __init__(self, path: str | Path, manifest: dict[str, Any], parts: list[tuple[str, int, int]]):
        self.path, self._parts = str(path), parts
        self.part_requests = [requests for _, requests, _ in parts]
        self.requests, self.blocks = manifest["requests"], manifest["blocks"]
        self.distinct, self.output_blocks = manifest["distinct_blocks"], manifest["output_blocks"]
        self.block_size, self.tail, self.meta = manifest["block_size"], manifest["tail"], manifest["meta"]
        self.sidecar = manifest["sidecar"]

    def _headline(self) -> str:
        size = f"{self.requests:,} requests, {self.blocks:,} blocks, {self.distinct:,} distinct"
        return f"{self.path}, {size}, block_size={self.block_size:,}, tail={self.tail}, {len(self._parts):,} parts"

    def _columns(self) -> dict[str, list[Any]]:
        """One row for each part."""
        return columns_of(dict(zip(("file", "requests", "blocks"), part, strict=True)) for part in self._parts)

    def __len__(self) -> int:
        return self.requests

    def chunks(self, references: int = REFERENCES, *, extra: str = "keep") -> Iterator[Columns]:
        """The rows in order, in chunks of about `references` block references; ids and parents are those of the whole.

        InputError if a part is missing, damaged, or differs from the manifest.
        """
        builder, pending = TraceBuilder(), 0
        for columns in self._batches(max(1, references // 4), extra):
            builder.add(columns)
            pending += len(columns.hash_ids) + (0 if columns.output_ids is None else len(columns.output_ids))
            if pending >= references:
                yield builder.columns()
                builder, pending = TraceBuilder(), 0
        if len(rest := builder.columns()):
            yield rest
        parquet.forget()

    def columns(self, *, extra: str = "keep") -> Columns:
        """All rows at once."""
        whole = TraceBuilder()
        for columns in self._batches(REFERENCES, extra):
            whole.add(columns)
        return whole.columns()

    def trace(self) -> Trace:
        """The whole trace in memory."""
        return Trace.from_columns(self.columns(), block_size=self.block_size, tail=self.tail, meta=self.meta)

    def names(self) -> list[str]:
        """The names of the columns, from the first part; extra columns as `extra.name`."""
        return parquet.names(os.path.join(self.path, self._parts[0][0])) if self._parts else []

    def count_dependencies(self) -> int:
        """The dependencies of all requests, or a few more, from the footers of the parts."""
        if "dependencies" not in self.names():
            return 0
        return sum(parquet.count_dependencies(os.path.join(self.path, file)) for file, *_ in self._parts)

    def _batches(self, references, extra) -> Iterator[Columns]:
        """The rows of all parts in batches; each part must have the counts in the manifest."""
        for file, requests, blocks in self._parts:
            path, rows = os.path.join(self.path, file), max(1, requests * references // max(references, blocks))
            if not os.path.isfile(path):
                raise InputError(f"{path}: the file is missing, but {MANIFEST} lists it. {REMEDY}")
            left = [requests, blocks]
            for columns in parquet.batches(path, rows, extra=extra):
                left = [left[0] - len(columns), left[1] - len(columns.hash_ids)]
                if min(left) < 0:
                    break
                yield columns
            if any(left):
                raise InputError(f"{path}: its requests or blocks differ from the counts in {MANIFEST}. {REMEDY}")


def open_dataset(path: str | Path) -> Dataset:
    """Open a data set folder, to read it piece by piece.

    Returns:
        The data set; its rows are still on disk.

    Raises:
        InputError: The folder is not a data set, its manifest is damaged, or a newer kvtrace wrote it.

    >>> import tempfile
    >>> from kvtrace.trace.building import toy
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write(toy("0 1", "0 2"), f"{folder}/day.dataset", block_size=1, tail="kept")
    ...     opened = open_dataset(f"{folder}/day.dataset")
    ...     opened.requests, [len(columns) for columns in opened.chunks()]
    (2, [2])
    """
    name = os.path.join(path, MANIFEST)
    try:
        text = read_unfollowed(name)
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({error.strerror}). {REMEDY}") from None
    sidecar = load(text, name, remedy=REMEDY)
    manifest = orjson.loads(text)
    about = manifest.get("kvtrace")
    version = about.get("format_version") if isinstance(about, dict) else None
    if type(version) is not int or manifest.get("format") != "dataset":
        raise InputError(f"{name}: this is not the manifest of a data set. {REMEDY}")
    if sidecar.block_size is None or sidecar.tail is None or sidecar.first_id:
        raise InputError(f"{name}: block_size or tail is missing, or first_id is not 0. {REMEDY}")
    counts = {key: _count(manifest, key, name) for key in ("requests", "blocks", "distinct_blocks")}
    counts["output_blocks"] = _count(manifest, "output_blocks", name) if "output_blocks" in manifest else 0
    parts = _parts(manifest.get("parts"), name)
    sums = {"requests": sum(part[1] for part in parts), "blocks": sum(part[2] for part in parts)}
    for key, count in sums.items():
        if count != counts[key]:
            raise InputError(f"{name}: {key} is {counts[key]:,}, but its parts have {count:,}. {REMEDY}")
    if counts["distinct_blocks"] > counts["blocks"] + counts["output_blocks"]:
        raise InputError(f"{name}: distinct_blocks is larger than blocks and output_blocks together. {REMEDY}")
    meta = {key: value for key, value in sidecar.meta.items() if key != "parts"}
    sidecar.meta = meta
    settings = {"block_size": sidecar.block_size, "tail": sidecar.tail, "meta": meta, "sidecar": sidecar}
    return Dataset(path, counts | settings, parts)


def is_dataset(path: str | Path) -> bool:
    """Whether a path is a folder with a manifest."""
    return os.path.isfile(os.path.join(path, MANIFEST))


def has_dataset_name(path: str | Path) -> bool:
    """Whether a path has the name of a data set: FOLDER/ or FOLDER.dataset.

    >>> has_dataset_name("day/"), has_dataset_name("day.dataset"), has_dataset_name("day.parquet")
    (True, True, False)
    """
    return str(path).endswith(("/", os.sep, ".dataset"))


def read(path: str | Path, *, extra: str = "keep") -> ReadResult:
    """Read a whole data set."""
    dataset = open_dataset(path)
    return ReadResult(dataset.columns(extra=extra), dataset.path, "dataset", sidecar=dataset.sidecar)


def write(
    columns: Columns,
    path: str | Path,
    *,
    block_size: int,
    tail: str,
    meta: Mapping[str, Any] | None = None,
    rows: int = ROWS,
    inspect: Callable[..., str] | None = None,
) -> list[str]:
    """Write columns, whose ids are a trace's, as a data set; returns its name. The options are DatasetWriter's."""
    with DatasetWriter(path, block_size=block_size, tail=tail, meta=meta, rows=rows, inspect=inspect) as writer:
        writer.add(columns)
    return [str(path)]


def check_place(path: str | Path) -> None:
    """UsageError or KvtraceError if a data set cannot be written there, or would replace other files."""
    if is_std(path):
        raise UsageError("a data set cannot be written to stdout. Name a folder.")
    require_folder_place(
        path, _is_replaceable, is_file=", but a data set is a folder. Use another name.",
        has_others="not parts of a data set. Use another name.",
    )  # fmt: skip


# -- helpers -----------------------------------------------------------------------------------------------------


def _is_replaceable(path) -> bool:
    """Whether a folder is empty, or has only a valid manifest, its parts and a data card."""
    try:
        names = set(os.listdir(path))
        return not names or (
            all(name in (MANIFEST, CARD) or PART_NAME.fullmatch(name) for name in names) and bool(open_dataset(path))
        )
    except (OSError, InputError):
        return False


def _count(manifest, key, path) -> int:
    value = manifest.get(key)
    if type(value) is not int or value < 0:
        raise InputError(f"{path}: {key} is not a whole number of at least 0. {REMEDY}")
    return value


def _parts(parts, path) -> list[tuple[str, int, int]]:
    """(file, requests, blocks) of each part in a manifest."""
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise InputError(f"{path}: parts is not a list of objects. {REMEDY}")
    for number, part in enumerate(parts):
        if part.get("file") != NAME.format(number):  # also rejects paths outside the folder
            raise InputError(f"{path}: the file of part {number:,} is not named {NAME.format(number)}. {REMEDY}")
    return [(part["file"], _count(part, "requests", path), _count(part, "blocks", path)) for part in parts]
