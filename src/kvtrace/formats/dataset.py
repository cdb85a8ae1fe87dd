"""A folder of Parquet parts and a manifest: a trace that need not fit into memory, to be written and read in pieces.

A part holds a set number of requests, so that the files depend on the trace alone and not on how it came. The manifest
is the sidecar of them all: it says what rows can't, and how many requests and blocks each part holds.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from .._base.errors import InputError, KvtraceError, UsageError
from .._base.files import is_std, keep_names, temporary_name, unwritable, write_atomically
from ..trace.building import TraceBuilder
from ..trace.columns import Columns
from ..trace.trace import Trace
from . import parquet
from .read_result import Found
from .sidecar import FORMAT_VERSION, Counts, Sidecar, describe, dump, load

ROWS = 65_536  # of a part, so that files depend on the trace alone
REFERENCES = 1 << 20  # of a chunk, about
MANIFEST = "manifest.json"
CARD = "card.md"  # the data card, where there is one
NAME = "part-{:05}.parquet"
OURS = re.compile(r"part-\d{5,}\.parquet")
REMEDY = "Write the folder anew with `kvtrace convert`."


class DatasetWriter:
    """Writes a trace that comes in pieces as a folder of parts, which appears whole or not at all.

    UsageError, before any work, where the folder holds anything but parts of ours; those are replaced.

    >>> import tempfile
    >>> from kvtrace.trace.building import toy
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with DatasetWriter(f"{folder}/day.dataset", block_size=1, tail="kept") as writer:
    ...         writer.add(toy("0 1 2", "0 1 3"))
    ...     open_dataset(f"{folder}/day.dataset").distinct
    4
    """

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
        check_place(folder)
        parquet.require()
        self.name = str(folder)
        self._final = os.path.realpath(folder)
        self._said = {"block_size": block_size, "tail": tail}
        self._meta = {key: value for key, value in (meta or {}).items() if key != "parts"}
        self._rows, self._held, self._rest = rows, 0, TraceBuilder()
        self._inspect = inspect
        self._parts: list[dict[str, Any]] = []
        self._counts = Counts()

    def __enter__(self) -> DatasetWriter:
        self._folder = temporary_name(self._final)
        try:
            os.mkdir(self._folder)
        except OSError as error:
            raise unwritable(self.name, error, " No file was written.") from None
        return self

    def __exit__(self, kind, error, trace) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)  # gone already where all went well

    def add(self, columns: Columns) -> None:
        """The next rows of the trace, any number: ids numbered by first appearance over all rows, parents too."""
        start = 0
        while start < len(columns):
            stop = min(len(columns), start + self._rows - self._held)
            self._rest.add(rows_of(columns, start, stop))
            self._held += stop - start
            if self._held == self._rows:
                self._write_part()
            start = stop

    def _write_part(self):
        columns, self._rest, self._held = self._rest.columns(), TraceBuilder(), 0
        name = NAME.format(len(self._parts))
        with self._file(name) as stream:
            parquet.write(stream, columns, description=self._said)
        self._parts.append({"file": name, "requests": len(columns), "blocks": len(columns.hash_ids)})
        self._counts.add(columns)

    def _finish(self):
        if self._held:
            self._write_part()
        said = describe(None, **self._said, format="dataset", meta=self._meta, counts=vars(self._counts))
        with self._file(MANIFEST) as stream:
            stream.write(dump(said | {"parts": self._parts}))
        if self._inspect is not None:  # it sees the folder before it has its name, and may raise
            card = self._inspect(self._folder, description=said)
            with self._file(CARD) as stream:
                stream.write(card.encode())
        check_place(self.name)  # nobody has put anything there meanwhile
        old = temporary_name(self._final)
        try:
            if os.path.isdir(self._final):
                os.rename(self._final, old)
            os.rename(self._folder, self._final)
            keep_names(os.path.dirname(self._final))
        except BaseException as error:
            if os.path.isdir(old) and not os.path.isdir(self._final):
                os.rename(old, self._final)
            if isinstance(error, OSError):
                raise unwritable(self.name, error, " No file was written.") from None
            raise
        shutil.rmtree(old, ignore_errors=True)

    @contextmanager
    def _file(self, name):
        """A file of the folder that is not there yet; what goes wrong is told with the folder's own name."""
        failed = None
        try:
            with write_atomically(os.path.join(self._folder, name)) as stream:
                yield stream
        except KvtraceError as error:
            failed = error
        if failed:
            raise type(failed)(str(failed).replace(self._folder, self.name))


class Dataset:
    """A folder of parts that is open to be read: what its manifest says, and the rows in pieces or at once."""

    path: str
    requests: int
    blocks: int  # references to blocks of prompts
    distinct: int
    output_blocks: int
    block_size: int  # tokens a block
    tail: str  # "kept", "unique" or "dropped"
    meta: dict[str, Any]  # what the manifest says of its making
    sidecar: Sidecar

    def __init__(self, path: str | Path, said: dict[str, Any], parts: list[tuple[str, int, int]]):
        self.path, self._parts = str(path), parts
        self.requests, self.blocks = said["requests"], said["blocks"]
        self.distinct, self.output_blocks = said["distinct_blocks"], said["output_blocks"]
        self.block_size, self.tail, self.meta = said["block_size"], said["tail"], said["meta"]
        self.sidecar = said["sidecar"]

    def __len__(self) -> int:
        return self.requests

    def chunks(self, references: int = REFERENCES, *, extra: str = "keep") -> Iterator[Columns]:
        """Rows in order, about so many block references at a time, ids and parents as in the whole trace.

        InputError where a part is missing, damaged, or not as the manifest says.
        """
        held, some = TraceBuilder(), 0
        for columns in self._batches(max(1, references // 4), extra):
            held.add(columns)
            some += len(columns.hash_ids) + (0 if columns.output_ids is None else len(columns.output_ids))
            if some >= references:
                yield held.columns()
                held, some = TraceBuilder(), 0
        if len(rest := held.columns()):
            yield rest
        parquet.forget()

    def columns(self, *, extra: str = "keep") -> Columns:
        """All rows at once."""
        whole = TraceBuilder()
        for columns in self._batches(REFERENCES, extra):
            whole.add(columns)
        return whole.columns()

    def trace(self) -> Trace:
        """All of it in memory."""
        return Trace.from_columns(self.columns(), block_size=self.block_size, tail=self.tail, meta=self.meta)

    def names(self) -> list[str]:
        """The columns of the first part, extra ones as `extra.name`."""
        return parquet.names(os.path.join(self.path, self._parts[0][0])) if self._parts else []

    def _batches(self, references, extra) -> Iterator[Columns]:
        """Row groups of all parts, or parts of them, each part counted."""
        for file, requests, blocks in self._parts:
            path, rows = os.path.join(self.path, file), max(1, requests * references // max(references, blocks))
            if not os.path.isfile(path):
                raise InputError(f"{path}: no such file, but {MANIFEST} lists it. {REMEDY}")
            left = [requests, blocks]
            for columns in parquet.batches(path, rows, extra=extra):
                left = [left[0] - len(columns), left[1] - len(columns.hash_ids)]
                if min(left) < 0:
                    break
                yield columns
            if any(left):
                raise InputError(f"{path}: holds more or fewer requests or blocks than {MANIFEST} says. {REMEDY}")


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
        text = Path(name).read_bytes()
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({error.strerror}). {REMEDY}") from None
    sidecar = load(text, name, remedy=REMEDY)
    said = orjson.loads(text)
    about = said.get("kvtrace")
    version = about.get("format_version") if isinstance(about, dict) else None
    if type(version) is not int or said.get("format") != "dataset":
        raise InputError(f"{name}: is not the manifest of a folder of parts. {REMEDY}")
    if version > FORMAT_VERSION:
        raise InputError(f"{name}: is of format version {version}, newer than {FORMAT_VERSION}. Try a newer kvtrace.")
    if sidecar.block_size is None or sidecar.tail is None or sidecar.first_id:
        raise InputError(f"{name}: block_size or tail is missing, or first_id is not 0. {REMEDY}")
    counts = {key: _count(said, key, name) for key in ("requests", "blocks", "distinct_blocks")}
    counts["output_blocks"] = _count(said, "output_blocks", name) if "output_blocks" in said else 0
    parts = _listed(said.get("parts"), name)
    held = {"requests": sum(part[1] for part in parts), "blocks": sum(part[2] for part in parts)}
    for key, count in held.items():
        if count != counts[key]:
            raise InputError(f"{name}: its parts do not hold as many {key} as it says. {REMEDY}")
    if counts["distinct_blocks"] > counts["blocks"] + counts["output_blocks"]:
        raise InputError(f"{name}: there are more distinct blocks than references to blocks. {REMEDY}")
    meta = {key: value for key, value in sidecar.meta.items() if key != "parts"}
    sidecar.meta = meta
    own = {"block_size": sidecar.block_size, "tail": sidecar.tail, "meta": meta, "sidecar": sidecar}
    return Dataset(path, counts | own, parts)


def is_dataset(path: str | Path) -> bool:
    """Whether a path is a folder with a manifest."""
    return os.path.isfile(os.path.join(path, MANIFEST))


def has_dataset_name(path: str | Path) -> bool:
    """Whether a path's name says that it is, or will be, a folder of parts.

    >>> has_dataset_name("day/"), has_dataset_name("day.dataset"), has_dataset_name("day.parquet")
    (True, True, False)
    """
    return str(path).endswith(("/", os.sep, ".dataset"))


def read(path: str | Path, *, extra: str = "keep") -> Found:
    """What a folder of parts says, all of it."""
    opened = open_dataset(path)
    return Found(opened.columns(extra=extra), opened.path, "dataset", sidecar=opened.sidecar)


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
    """UsageError or KvtraceError where no folder of parts can be made there, or what is there may not be replaced."""
    beside = os.path.dirname(os.path.realpath(path))
    if is_std(path):
        raise UsageError("stdout is no place for a folder of parts. Name a folder.")
    if not os.path.isdir(beside):
        raise UsageError(f"{path}: there is no folder {os.path.dirname(str(path).rstrip('/')) or beside}.")
    if os.path.exists(path) and not os.path.isdir(path):
        raise UsageError(f"{path}: is a file; parts go into a folder. Try another name.")
    if os.path.isdir(path) and not _is_ours(path):
        raise UsageError(f"{path}: is a folder that holds more than parts of ours. Try another name.")
    if not os.access(beside, os.W_OK | os.X_OK):
        raise KvtraceError(f"{path}: no folder can be made there.")


def rows_of(columns: Columns, start: int, stop: int) -> Columns:
    """Some rows that follow each other; ids and parents stay what they are.

    >>> from kvtrace.trace.building import toy
    >>> rows_of(toy("0 1", "0 2", "3"), 1, 3).hash_ids
    array([0, 2, 3])
    """
    rows = slice(start, stop)
    hash_ids, offsets = _cut(columns.hash_ids, columns.offsets, start, stop)
    output_ids = output_offsets = None
    if columns.output_ids is not None and columns.output_offsets is not None:
        output_ids, output_offsets = _cut(columns.output_ids, columns.output_offsets, start, stop)
    return Columns(
        columns.timestamp[rows], columns.input_length[rows], columns.output_length[rows], hash_ids, offsets,
        session=None if columns.session is None else columns.session[rows],
        parent=None if columns.parent is None else columns.parent[rows],
        extra={name: values[rows] for name, values in columns.extra.items()},
        output_ids=output_ids, output_offsets=output_offsets,
    )  # fmt: skip


# -- helpers -----------------------------------------------------------------------------------------------------


def _is_ours(path) -> bool:
    """Whether a folder is empty, or a manifest of ours, parts and a data card are all that it holds."""
    try:
        names = set(os.listdir(path))
        return not names or (
            all(name in (MANIFEST, CARD) or OURS.fullmatch(name) for name in names) and bool(open_dataset(path))
        )
    except (OSError, InputError):
        return False


def _count(said, key, path) -> int:
    value = said.get(key)
    if type(value) is not int or value < 0:
        raise InputError(f"{path}: {key} is not a whole number. {REMEDY}")
    return value


def _listed(parts, path) -> list[tuple[str, int, int]]:
    """(file, requests, blocks) of each part that a manifest lists."""
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise InputError(f"{path}: parts is not a list of objects. {REMEDY}")
    for number, part in enumerate(parts):
        if part.get("file") != NAME.format(number):  # and nothing outside of the folder
            raise InputError(f"{path}: part {number:,} does not have the name of one. {REMEDY}")
    return [(part["file"], _count(part, "requests", path), _count(part, "blocks", path)) for part in parts]


def _cut(values: np.ndarray, offsets: np.ndarray, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    return values[offsets[start] : offsets[stop]], offsets[start : stop + 1] - offsets[start]
