"""What an audit looks at, gathered once: the file as it stands, the trace it makes, its sidecar, and what is given."""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from ... import formats
from ...errors import InputError, RowError, UsageError
from ...files import is_regular, name_of, open_read
from ...formats import parquet
from ...formats.found import Found
from ...formats.jsonl_read import read_rows
from ...formats.sidecar import Sidecar, load, sidecar_path
from ...trace import Columns, Trace, expected_blocks, replace_columns
from .. import profiles
from ..card import card_path
from ..holders import Holders
from ..holders import holders as holders_of
from ..profiles import PROFILES, Profile
from ..users import numbered

KNOWN = ("timestamp", "input_length", "output_length")


@dataclass
class Said:
    """What a sidecar says, as it stands; `fault` is why it can't be taken, in words."""

    where: str
    values: Any = None
    fault: str | None = None


@dataclass(eq=False)
class Evidence:
    """All that the checks look at."""

    found: Found  # the columns as they stand in the file
    fields: dict[
        str, np.ndarray
    ]  # field -> its scalars as they stand, None where a row has none; ids are not among them
    unread: list[RowError]  # rows that could not be read
    texts: list[Said] = field(default_factory=list)  # sidecars, and other metadata of the file
    card: str | None = None
    sidecar: Sidecar | None = None  # of the first text that is this file's
    profile: Profile = PROFILES["standard"]  # graded against
    declared: Profile | None = None  # what the sidecar says
    block_size: int | None = None
    tail: str | None = None
    trace: Trace | None = None  # of the rows that hold what lengths promise, in time order
    rows: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # row of the trace -> row of the file
    holders: Holders | None = None  # in the order of the trace's rows, where they are known
    by_users: bool = False  # ... from a file of users
    previous: Trace | None = None

    @property
    def columns(self) -> Columns:
        return self.found.columns

    @property
    def meta(self) -> dict[str, Any]:
        """What the sidecar says beyond what it must."""
        return {} if self.sidecar is None else self.sidecar.meta

    @property
    def release(self) -> dict[str, Any]:
        """What the sidecar says of the release."""
        said = self.meta.get("release")
        return said if isinstance(said, dict) else {}

    @cached_property
    def walk(self) -> np.ndarray:
        """All ids as they stand, each row's prompt and then its output."""
        columns = self.columns
        if columns.output_ids is None or columns.output_offsets is None:
            return columns.hash_ids
        ids = np.empty(len(columns.hash_ids) + len(columns.output_ids), dtype=np.int64)
        ids[_places(columns.offsets, columns.output_offsets[:-1])] = columns.hash_ids
        ids[_places(columns.output_offsets, columns.offsets[1:])] = columns.output_ids
        return ids

    @cached_property
    def firsts(self) -> np.ndarray:
        """The distinct ids, in the order in which they first appear."""
        from ..._kernels import ids

        number, distinct = ids.renumber(self.walk)
        first = np.empty(distinct, dtype=np.int64)
        first[number[::-1]] = self.walk[::-1]
        return first

    def line(self, row: int) -> int:
        """The line of a row of the file."""
        return self.found.line(row)


def gather(
    path, *, against=None, users=None, profile=None, block_size=None, format=None, sidecar=None, holders=None
) -> Evidence:
    """The evidence in a trace file; InputError where it can't be read at all."""
    if format not in (None, *formats.FORMATS):
        raise UsageError(f"format is {format!r}; it is one of {', '.join(formats.FORMATS)}.")
    graded = None if profile is None else profiles.profile(profile)
    there = _read(path, format)
    if not len(there.columns):
        raise InputError(f"{name_of(path)}: holds no requests that can be read.")
    there.texts = [*_sidecars(path, sidecar), *there.texts]
    there.sidecar = _settled(there)
    there.card = _card(path)
    declared = _declared(there.meta)
    there.profile, there.declared = graded or declared or PROFILES["standard"], declared
    _make_trace(there, block_size)
    there.holders, there.by_users = _holders(there, users, holders)
    there.previous = None if against is None else formats.read(against, extra="ignore")
    return there


# -- the file ----------------------------------------------------------------------------------------------------


def _read(path, format) -> Evidence:
    unread: list[RowError] = []
    with open_read(path) as stream:
        if format == "parquet" or (format is None and stream.peek(4)[:4] == parquet.MAGIC):
            return _read_parquet(stream.read(), path)
        rows = read_rows(stream, name_of(path), on_error=unread.append)
    reader = formats.FORMATS[format or formats.told_by(rows.others)]
    found = reader.found(rows, name_of(path), unread.append)
    fields = {name: getattr(rows, name) for name in KNOWN} | rows.others
    return Evidence(found, fields, unread)


def _read_parquet(packed: bytes, path) -> Evidence:
    """Columns that a Trace takes, and then any others that stand in the file."""
    found = parquet.read(io.BytesIO(packed), path)
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = found.columns
    fields = {name: getattr(columns, name) for name in KNOWN} | columns.extra
    fields |= {name: value for name in ("session", "parent") if (value := getattr(columns, name)) is not None}
    table = pq.ParquetFile(io.BytesIO(packed)).read()
    for name in set(table.column_names) - {*parquet.NEEDED, *parquet.OTHERS}:
        values = table.column(name)
        if pa.types.is_nested(values.type):
            found.nested[name] = len(values) - values.null_count
        elif values.null_count == 0 and (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
            fields[name] = values.to_numpy()
        else:
            fields[name] = np.array([_plain(value) for value in values.to_pylist()], dtype=object)
    texts = [_said(f"metadata {key.decode(errors='replace')}"[:40], text, must_be_json=key == parquet.KEY)
             for key, text in (table.schema.metadata or {}).items() if key != b"ARROW:schema"]  # fmt: skip
    return Evidence(found, fields, [], sorted(texts, key=lambda said: said.where != "metadata kvtrace"))


def _plain(value):
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _places(offsets, before):
    """Where the values of each row stand, once so many others stand before the row's."""
    return np.arange(offsets[-1]) + np.repeat(before, np.diff(offsets))


# -- beside the file ---------------------------------------------------------------------------------------------


def _sidecars(path, given) -> list[Said]:
    if given is not None:
        return [Said("the sidecar", given)]
    text = None if not is_regular(path) else _text(sidecar_path(path))
    return [] if text is None else [_said("the sidecar", text)]


def _said(where: str, text: bytes, must_be_json: bool = True) -> Said:
    values: Any = None
    with suppress(orjson.JSONDecodeError):
        values = orjson.loads(text)
    if values is None and not must_be_json:
        return Said(where, text.decode(errors="replace"))
    if not isinstance(values, dict) and must_be_json:
        return Said(where, text.decode(errors="replace"), "is not a JSON object")
    return Said(where, values)


def _settled(there: Evidence) -> Sidecar | None:
    """What the first sidecar says, where it can be understood and is this file's."""
    for said in there.texts:
        if said.fault or not isinstance(said.values, dict) or said.where not in ("the sidecar", "metadata kvtrace"):
            continue
        with suppress(InputError, TypeError):
            sidecar = load(orjson.dumps(said.values, option=orjson.OPT_SERIALIZE_NUMPY), said.where)
            if there.unread or sidecar.describes(there.columns):
                return sidecar
            said.fault = "describes another file: its counts are not this one's"
        said.fault = said.fault or "does not say what a sidecar says"
        return None
    return None


def _text(path) -> bytes | None:
    with suppress(OSError):
        return Path(path).read_bytes()
    return None


def _card(path) -> str | None:
    text = _text(card_path(path)) if is_regular(path) else None
    return None if text is None else text.decode(errors="replace")


def _declared(meta) -> Profile | None:
    return profiles.declared(meta) if isinstance(meta.get("profile"), str) else None


# -- the trace ---------------------------------------------------------------------------------------------------


def _make_trace(there: Evidence, block_size) -> None:
    """The trace of all rows whose numbers fit each other; what does not fit is check 11's to tell."""
    columns, said = there.columns, there.sidecar or Sidecar("")
    size, rule = block_size or said.block_size, {"unique": "kept"}.get(said.tail or "", said.tail)
    if block_size is not None and (type(block_size) is not int or block_size < 1):
        raise UsageError(f"block size is {block_size!r}; it is a whole number of tokens, 1 or more.")
    if size is None:
        with suppress(InputError):
            size, rule = formats.settle(there.found, None, rule)
    if size is None:
        return
    there.block_size, there.tail = size, rule or _likely_tail(columns, size)
    fits = sound(columns, size, there.tail)
    rows = np.flatnonzero(fits)
    if (np.diff(columns.timestamp[rows]) < 0).any():
        rows = rows[np.argsort(columns.timestamp[rows], kind="stable")]
    same = len(rows) == len(columns) and (np.diff(rows) == 1).all()
    if len(rows):
        part = replace_columns(columns) if same else columns.take(rows)
        with suppress(InputError):
            there.trace, there.rows = Trace.from_columns(part, block_size=size, tail=there.tail), rows


def sound(columns: Columns, block_size: int, tail: str) -> np.ndarray:
    """Whether each row's times and lengths are some, and its blocks are those that its lengths give."""
    lengths, outputs = columns.input_length, columns.output_length
    fits = (lengths >= 0) & (outputs >= 0) & np.isfinite(columns.timestamp)
    fits &= np.diff(columns.offsets) == expected_blocks(lengths, block_size, tail)
    if columns.output_offsets is not None:
        blocks = np.diff(columns.output_offsets)
        expected = expected_blocks(lengths + outputs, block_size, tail) - lengths // block_size
        fits &= (blocks == 0) | (blocks == expected)
    return fits


def _likely_tail(columns, size) -> str:
    blocks = np.diff(columns.offsets)
    fits = {rule: (expected_blocks(columns.input_length, size, rule) == blocks).sum() for rule in ("kept", "dropped")}
    return max(fits, key=fits.__getitem__)


# -- who holds blocks --------------------------------------------------------------------------------------------


def _holders(there: Evidence, users, known: Holders | None) -> tuple[Holders | None, bool]:
    count = len(there.columns)
    if users is not None:
        numbers = numbered(users, count)
        return (None if there.trace is None else holders_of(there.trace, numbers[there.rows])), True
    if known is not None and len(known.holder) != count:
        raise UsageError(f"{len(known.holder):,} holders were given for {count:,} requests.")
    return (None if known is None else Holders(known.holder[there.rows], known.kind)), False
