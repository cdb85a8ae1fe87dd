"""The sidecar `<trace>.meta.json`, with values that a trace's rows cannot express, and what a reader returns.

A sidecar contains the versions of kvtrace and of the format, `block_size`, `tail`, counts that show whether the two
files belong together, `first_id`, `format`, and any other values of the trace's maker. A `ReadResult` is the rows and
the sidecar of a trace file, before they are normalised or verified.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from .. import __version__
from .._base.errors import InputError, RowError, UsageError
from .._base.files import is_regular
from .._base.input_files import read_unfollowed, unreadable
from ..trace.columns import BLOCK_RULES, BlockRule, Columns
from ..trace.invariants import MAX_BLOCK_SIZE
from ..trace.normalise import Fixes
from ..trace.trace import Trace

FORMAT_VERSION = 1
UNREAD = object()
OPTIONS = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY
MAX_DEPTH = 50  # levels of nesting
CLAIMS = (("profile", str, "a text"), ("release", dict, "an object"), ("release", "settings", dict, "an object"))
OWN = ("kvtrace", "block_size", "tail", "requests", "blocks", "output_blocks", "distinct_blocks", "first_id", "format")


@dataclass
class Sidecar:
    """The values of a sidecar; None for missing ones."""

    path: str
    block_size: int | None = None
    tail: BlockRule | None = None
    requests: int | None = None
    blocks: int | None = None
    first_id: int = 0
    meta: dict[str, Any] = field(default_factory=dict)  # all keys except OWN
    part: str = ""  # the part of the trace file that states the values: its header, metadata or sessions

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.part or "sidecar"

    def describes(self, columns: Columns) -> bool:
        """Whether its counts fit the columns."""
        return self.requests in (None, len(columns)) and self.blocks in (None, len(columns.hash_ids))

    def mismatch(self, columns: Columns) -> str:
        """The message if its counts do not fit the columns."""
        count, stated, unit = len(columns), self.requests, "requests"
        if stated in (None, count):
            count, stated, unit = len(columns.hash_ids), self.blocks, "blocks"
        remedy = "Write the file again" if self.part else "it belongs to another file. Delete it"
        return (
            f"{self.path}: the {self.name} describes {stated:,} {unit}, but the file has {count:,}"
            f"{'.' if self.part else ':'} {remedy} or pass --block-size."
        )


def sidecar_path(path: str | Path) -> str:
    """The path of a trace file's sidecar.

    >>> sidecar_path("day.jsonl.gz")
    'day.jsonl.gz.meta.json'
    """
    return f"{path}.meta.json"


def describe(
    columns: Columns | None, *, block_size, tail, first_id=0, format="mooncake", meta=None, counts=None
) -> dict[str, Any]:
    """The values of a sidecar, in order; pass `counts` if the columns are not in memory."""
    own = {
        "kvtrace": {"version": __version__, "format_version": FORMAT_VERSION},
        "block_size": block_size,
        "tail": tail,
        **(_counts(columns) if columns is not None else counts),
        "first_id": first_id,
        "format": format,
    }
    others = {key: value for key, value in (meta or {}).items() if key not in OWN}
    return {key: value for key, value in own.items() if value is not None} | others


def _counts(columns: Columns) -> dict[str, int | None]:
    return {
        "requests": len(columns),
        "blocks": len(columns.hash_ids),
        "output_blocks": None if columns.output_ids is None else len(columns.output_ids),
        "distinct_blocks": _distinct(columns),
    }


@dataclass
class Counts:
    """The counts of a sidecar, for rows in chunks whose ids count by first appearance."""

    requests: int = 0
    blocks: int = 0
    output_blocks: int | None = None
    distinct_blocks: int = 0

    def add(self, columns: Columns) -> None:
        """Add the next rows."""
        self.requests, self.blocks = self.requests + len(columns), self.blocks + len(columns.hash_ids)
        greatest = int(columns.hash_ids.max(initial=-1))
        if columns.output_ids is not None:
            self.output_blocks = (self.output_blocks or 0) + len(columns.output_ids)
            greatest = max(greatest, int(columns.output_ids.max(initial=-1)))
        self.distinct_blocks = max(self.distinct_blocks, greatest + 1)


def dump(description: dict[str, Any]) -> bytes:
    """The text of a sidecar; UsageError if `meta` has values that JSON cannot express."""
    try:
        return orjson.dumps(description, option=OPTIONS)
    except TypeError:
        raise UsageError("meta has a value that JSON cannot express. Use numbers, strings, lists and dicts.") from None


def read_sidecar(path: str | Path) -> Sidecar | None:
    """The sidecar of a trace file, None if there is none; InputError if it is not valid."""
    if not is_regular(path):
        return None
    beside = sidecar_path(path)
    try:
        text = read_unfollowed(beside)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(beside, error) from None
    return load(text, beside)


def load(
    text: bytes, path: str, *, part: str = "", remedy: str = "Delete it, and pass --block-size if needed."
) -> Sidecar:
    """Parse the text of a sidecar, or of a part of a trace file; `remedy` ends the message if it is not valid."""
    values: Any = UNREAD
    with suppress(orjson.JSONDecodeError):
        values = orjson.loads(text)
    if values is UNREAD:  # raised outside the handler: orjson's error contains the text and must not be its context
        raise InputError(f"{path}: the file is not JSON. {remedy}")
    if not isinstance(values, dict):
        raise InputError(f"{path}: the file is not a JSON object. {remedy}")
    if is_deep(values):
        raise InputError(f"{path}: the file is nested more than {MAX_DEPTH} levels deep. {remedy}")
    _verify_version(values, path)
    if values.get("tail") not in (None, *BLOCK_RULES):
        raise InputError(f"{path}: tail must be one of {', '.join(BLOCK_RULES)}.")
    _verify_claims(values, path)
    numbers = {key: _number(values, key, path) for key in ("block_size", "requests", "blocks", "first_id")}
    if numbers["block_size"] == 0:
        raise InputError(f"{path}: block_size must be at least 1, not 0.")
    if (numbers["block_size"] or 0) > MAX_BLOCK_SIZE:
        raise InputError(f"{path}: block_size must be at most {MAX_BLOCK_SIZE:,} tokens.")
    if (numbers["first_id"] or 0) >= 1 << 63:
        raise InputError(f"{path}: first_id must be below 2^63.")
    return Sidecar(
        path, numbers["block_size"], values.get("tail"), numbers["requests"], numbers["blocks"],
        numbers["first_id"] or 0, {key: value for key, value in values.items() if key not in OWN},
        part,
    )  # fmt: skip


def is_deep(value: Any) -> bool:
    """Whether JSON is nested more than MAX_DEPTH levels: what walks over it may recurse.

    >>> is_deep([[]] * 9), is_deep(orjson.loads("[" * 99 + "]" * 99))
    (False, True)
    """
    level = [value]
    for _ in range(MAX_DEPTH):
        inside = [
            inner.values() if isinstance(inner, dict) else inner for inner in level if isinstance(inner, dict | list)
        ]
        level = [inner for values in inside for inner in values]
    return any(isinstance(inner, dict | list) for inner in level)


def _verify_version(values, path) -> None:
    """InputError if a later version of kvtrace wrote the values: they may mean something else."""
    about = values.get("kvtrace")
    version = about.get("format_version") if isinstance(about, dict) else None
    if type(version) is int and version > FORMAT_VERSION:
        raise InputError(f"{path}: format version {version} is newer than {FORMAT_VERSION}. Update kvtrace.")


def _verify_claims(values, path) -> None:
    """InputError if the release profile and its settings have the wrong types; privacy/profiles.py reads them."""
    for *above, key, kind, words in CLAIMS:
        section = values
        for name in above:
            section = section.get(name) or {}
        if section.get(key) is not None and not isinstance(section[key], kind):
            raise InputError(f"{path}: {'.'.join([*above, key])} is not {words}.")


def _number(values, key, path) -> int | None:
    value = values.get(key)
    if value is not None and (type(value) is not int or value < 0):
        raise InputError(f"{path}: {key} is not a whole number of at least 0.")
    return value


def _distinct(columns: Columns) -> int:
    if isinstance(columns, Trace):
        return columns.distinct
    arrays = [columns.hash_ids] + ([] if columns.output_ids is None else [columns.output_ids])
    references, arrays = sum(map(len, arrays)), [array for array in arrays if len(array)]
    if arrays and all(array.min() >= 0 and array.max() < 4 * references + 1024 for array in arrays):
        seen = np.zeros(max(int(array.max()) for array in arrays) + 1, dtype=bool)  # id -> whether it appears
        for array in arrays:
            seen[array] = True
        return int(np.count_nonzero(seen))
    from .._native import numbering

    return numbering.renumber(np.concatenate(arrays))[1] if arrays else 0


@dataclass
class ReadResult:
    """The columns of a file, and the line of each row."""

    columns: Columns
    path: str
    format: str
    lines: np.ndarray | None = None  # row -> line, from 1; None = row r is on line r + 1
    sidecar: Sidecar | None = None
    lost_parents: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # rows whose parent does not exist
    repeated: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # rows with the name of an earlier row
    fixes: Fixes = field(default_factory=Fixes)  # changes that the reader made
    nested: dict[str, int] = field(default_factory=dict)  # field of lists or objects, which are not read -> rows
    lengths_only: bool = False  # no row has block ids: shared prefixes are unknown

    def line(self, row: int) -> int:
        """The line of a row, from 1; in a Parquet file, the row from 1."""
        return int(row) + 1 if self.lines is None else int(self.lines[row])

    def error(self, row: int, reason: str, hint: str | None = None) -> RowError:
        """An error in a row, with its file and line."""
        return RowError(reason, hint=hint).at(self.path, self.line(row))
