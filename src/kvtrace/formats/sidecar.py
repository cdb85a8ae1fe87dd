"""`<trace>.meta.json`: what a trace's rows cannot say of themselves, beside the trace.

It holds kvtrace's version and the format's, `block_size`, `tail`, the counts that tell whether the two files belong
together, `first_id`, `format`, and whatever else the maker of the trace wanted known.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from .. import __version__
from .._base.errors import InputError, UsageError
from .._base.files import is_regular
from ..trace.columns import TAILS, Columns
from ..trace.trace import Trace

FORMAT_VERSION = 1
UNREAD = object()
OPTIONS = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY
OWN = ("kvtrace", "block_size", "tail", "requests", "blocks", "output_blocks", "distinct_blocks", "first_id", "format")


@dataclass
class Sidecar:
    """What a sidecar says; None where it does not."""

    path: str
    block_size: int | None = None
    tail: str | None = None
    requests: int | None = None
    blocks: int | None = None
    first_id: int = 0
    meta: dict[str, Any] = field(default_factory=dict)  # all that is not of OWN

    def describes(self, columns: Columns) -> bool:
        """Whether its counts are those of the columns."""
        return self.requests in (None, len(columns)) and self.blocks in (None, len(columns.hash_ids))

    def mismatch(self, columns: Columns) -> str:
        """What to say when they are not."""
        found, said, what = len(columns), self.requests, "requests"
        if said in (None, found):
            found, said, what = len(columns.hash_ids), self.blocks, "blocks"
        return (
            f"{self.path}: the sidecar describes {said:,} {what}, the file has {found:,}: it belongs to another file. "
            "Remove it or pass --block-size."
        )


def sidecar_path(path: str | Path) -> str:
    """Where the sidecar of a trace file is.

    >>> sidecar_path("day.jsonl.gz")
    'day.jsonl.gz.meta.json'
    """
    return f"{path}.meta.json"


def describe(
    columns: Columns | None, *, block_size, tail, first_id=0, format="mooncake", meta=None, counts=None
) -> dict[str, Any]:
    """What a sidecar holds, in the order of its keys; `counts` where the columns are no longer there to be counted."""
    own = {
        "kvtrace": {"version": __version__, "format_version": FORMAT_VERSION},
        "block_size": block_size,
        "tail": tail,
        **(_counts(columns) if columns is not None else counts),
        "first_id": first_id,
        "format": format,
    }
    given = {key: value for key, value in (meta or {}).items() if key not in OWN}
    return {key: value for key, value in own.items() if value is not None} | given


def _counts(columns: Columns) -> dict[str, int | None]:
    return {
        "requests": len(columns),
        "blocks": len(columns.hash_ids),
        "output_blocks": None if columns.output_ids is None else len(columns.output_ids),
        "distinct_blocks": _distinct(columns),
    }


@dataclass
class Counts:
    """What a sidecar counts, of rows that come in chunks and whose ids are numbered by first appearance."""

    requests: int = 0
    blocks: int = 0
    output_blocks: int | None = None
    distinct_blocks: int = 0

    def add(self, columns: Columns) -> None:
        """The next rows."""
        self.requests, self.blocks = self.requests + len(columns), self.blocks + len(columns.hash_ids)
        greatest = int(columns.hash_ids.max(initial=-1))
        if columns.output_ids is not None:
            self.output_blocks = (self.output_blocks or 0) + len(columns.output_ids)
            greatest = max(greatest, int(columns.output_ids.max(initial=-1)))
        self.distinct_blocks = max(self.distinct_blocks, greatest + 1)


def dump(description: dict[str, Any]) -> bytes:
    """A sidecar's text; UsageError if `meta` holds what JSON does not know."""
    try:
        return orjson.dumps(description, option=OPTIONS)
    except TypeError:
        raise UsageError("meta holds a value that JSON does not know.") from None


def read_sidecar(path: str | Path) -> Sidecar | None:
    """The sidecar of a trace file, None if it has none; InputError if it cannot be understood."""
    if not is_regular(path):
        return None
    beside = sidecar_path(path)
    try:
        text = Path(beside).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{beside}: cannot be read ({error.strerror}).") from None
    return load(text, beside)


def load(text: bytes, path: str, *, remedy: str = "Remove it, and pass --block-size if need be.") -> Sidecar:
    """What the text of a sidecar says; `remedy` is what to try where it says nothing."""
    said: Any = UNREAD
    with suppress(orjson.JSONDecodeError):
        said = orjson.loads(text)
    if said is UNREAD:  # raised out here, so that orjson's error, which holds the text, does not hang on ours
        raise InputError(f"{path}: is not JSON. {remedy}")
    if not isinstance(said, dict):
        raise InputError(f"{path}: is not a JSON object. {remedy}")
    if said.get("tail") not in (None, *TAILS):
        raise InputError(f"{path}: tail is none of {', '.join(TAILS)}.")
    numbers = {key: _number(said, key, path) for key in ("block_size", "requests", "blocks", "first_id")}
    if numbers["block_size"] == 0:
        raise InputError(f"{path}: block_size is 0; it is a whole number of tokens, 1 or more.")
    return Sidecar(
        path, numbers["block_size"], said.get("tail"), numbers["requests"], numbers["blocks"], numbers["first_id"] or 0,
        {key: value for key, value in said.items() if key not in OWN},
    )  # fmt: skip


def _number(said, key, path) -> int | None:
    value = said.get(key)
    if value is not None and (type(value) is not int or value < 0):
        raise InputError(f"{path}: {key} is not a whole number.")
    return value


def _distinct(columns: Columns) -> int:
    if isinstance(columns, Trace):
        return columns.distinct
    parts = [columns.hash_ids] + ([] if columns.output_ids is None else [columns.output_ids])
    references, parts = sum(map(len, parts)), [part for part in parts if len(part)]
    if parts and all(part.min() >= 0 and part.max() < 4 * references + 1024 for part in parts):
        seen = np.zeros(max(int(part.max()) for part in parts) + 1, dtype=bool)  # id -> is it there
        for part in parts:
            seen[part] = True
        return int(np.count_nonzero(seen))
    from .._native import ids

    return ids.renumber(np.concatenate(parts))[1] if parts else 0
