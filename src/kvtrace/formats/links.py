"""The links file of a window, `<window>.links`: which blocks, sessions and domains other windows of a recording have.

The rows of a window number their blocks from 0. The links file gives each of these numbers its number in the recording,
or -1 if no other window may have it. Without the file, nothing links the window to the others. It is one line of JSON,
which only its owner can read.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from .._base.errors import InputError
from .._base.input_files import read_unfollowed, unreadable
from .._base.output_files import Role, write_atomically
from ..trace.columns import Columns

FORMAT_VERSION = 1
NUMBERED = ("blocks", "sessions", "domains")


@dataclass(frozen=True)
class Links:
    """The links of one window."""

    recording: str  # random name of the recording: windows of one recording can be joined
    window: int  # place of the window in the recording, from 0
    offset_ms: int  # from the start of the recording to that of the window, in whole time steps of its profile
    fingerprint: str  # of the window's rows
    blocks: np.ndarray  # block id of the window -> number in the recording, -1 = none, int64
    sessions: np.ndarray  # session of the window -> number in the recording, likewise
    domains: np.ndarray  # isolation domain of the window, likewise; one number if the window has no column of them

    def __repr__(self) -> str:
        return f"Links(window {self.window}, {len(self.blocks):,} blocks, {len(self.sessions):,} sessions)"


def links_path(path: str | Path) -> str:
    """The path of a window's links file.

    >>> links_path("window-20261123T100000Z.jsonl")
    'window-20261123T100000Z.jsonl.links'
    """
    return f"{path}.links"


def fingerprint_of(columns: Columns) -> str:
    """A digest of the rows that links are for: their lengths and their blocks, numbered by first appearance.

    >>> from kvtrace.trace.building import toy
    >>> fingerprint_of(toy("0 1")) == fingerprint_of(toy("0 1")), fingerprint_of(toy("0 1")) == fingerprint_of(toy("0"))
    (True, False)
    """
    digest = blake2b(digest_size=16)
    for name in ("input_length", "offsets", "hash_ids", "output_offsets", "output_ids"):
        values = getattr(columns, name)
        values = np.empty(0, np.int64) if values is None else np.ascontiguousarray(values, dtype="<i8")
        digest.update(len(values).to_bytes(8, "little") + values.tobytes())
    return digest.hexdigest()


def write_links(links: Links, path: str | Path) -> None:
    """Write the links of a window beside it; `path` is that of the window."""
    values = {
        "kvtrace_links": FORMAT_VERSION, "recording": links.recording, "window": links.window,
        "offset_ms": links.offset_ms, "fingerprint": links.fingerprint,
        **{name: np.ascontiguousarray(getattr(links, name), dtype=np.int64) for name in NUMBERED},
    }  # fmt: skip
    with write_atomically(links_path(path), Role.SECRET) as stream:
        stream.write(orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))


def read_links(path: str | Path) -> Links:
    """Read the links of a window; `path` is that of the window.

    Raises:
        InputError: the window has no links file, or it is not valid.
    """
    beside = links_path(path)
    try:
        text = read_unfollowed(beside)
    except FileNotFoundError:
        raise InputError(
            f"{path}: the window has no links ({beside} is missing). Record with --link-windows, and keep that file "
            "beside the window."
        ) from None
    except OSError as error:
        raise unreadable(beside, error) from None
    values: Any = None
    with suppress(orjson.JSONDecodeError):
        values = orjson.loads(text)
    links = None if not isinstance(values, dict) else _links(values)
    if links is None:
        raise InputError(f"{beside}: not the links of a window, or of another version of kvtrace.")
    return links


def _links(values: dict[str, Any]) -> Links | None:
    """The links in a JSON object; None if it does not hold them."""
    texts = (values.get("recording"), values.get("fingerprint"))
    numbers = (values.get("window"), values.get("offset_ms"))
    lists = {name: values.get(name) for name in NUMBERED}
    if values.get("kvtrace_links") != FORMAT_VERSION or not all(type(text) is str for text in texts):
        return None
    if not all(type(number) is int and abs(number) < 2**53 for number in numbers):
        return None
    arrays = {name: _numbers(entries) for name, entries in lists.items()}
    if any(array is None for array in arrays.values()):
        return None
    return Links(texts[0], numbers[0], numbers[1], texts[1], **arrays)  # type: ignore[arg-type]


def _numbers(values: Any) -> np.ndarray | None:
    """A list of numbers from -1, none of them twice except -1; None if it is not one."""
    if type(values) is not list or list(map(type, values)).count(int) != len(values):
        return None
    try:
        numbers = np.array(values, dtype=np.int64)
    except OverflowError:
        return None
    assigned = np.sort(numbers[numbers >= 0])
    return None if (numbers < -1).any() or (assigned[1:] == assigned[:-1]).any() else numbers
