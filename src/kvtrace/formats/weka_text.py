"""The text of a Weka session: a kernel takes out the lists of ids, and orjson decodes the rest.

A list that was taken out is replaced by a list with its number alone, such as [3]. No other list of integers is left
under that key, so both are told apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson

from .._base.errors import RowError
from .._base.offsets import offsets_of
from .._native import numbering
from .._native.rows import PAD, find_lists
from .jsonl_read import BOM, id_list


class Room:
    """Memory for the ids of one text after another."""

    def __init__(self) -> None:
        self._ids = np.empty(0, dtype=np.int64)

    def of(self, count: int) -> np.ndarray:
        """An array for so many ids, in place of the one before."""
        if count > len(self._ids):
            self._ids = np.empty(count, dtype=np.int64)
        return self._ids


def load(text: bytes, *, lifted: bool = True, room: Room | None = None) -> tuple[Any, IdLists]:
    """The values of a JSON text, and its lists of ids; with `lifted=False` the lists are decoded in place.

    The lists are valid until `room` is used for the next text.

    >>> values, lists = load(b'{"hash_ids": [7, 8]}')
    >>> values, lists.add(values["hash_ids"], "hash_ids"), lists.done()
    ({'hash_ids': [0]}, None, (array([7, 8]), array([0, 2])))
    """
    text = text.removeprefix(BOM)
    if not lifted:
        return _decoded(text), IdLists(np.zeros(1, dtype=np.int64), np.empty(0, dtype=np.int64))
    spans, offsets, ids = find_lists(text + bytes(PAD), len(text), room.of(len(text) // 2 + 1) if room else None)
    pieces, end = [], 0
    for number, (start, stop) in enumerate(spans.tolist()):
        pieces += [text[end:start], b"[%d]" % number]
        end = stop
    short = b"".join([*pieces, text[end:]])
    try:
        return orjson.loads(short), IdLists(offsets, ids)
    except orjson.JSONDecodeError:
        pass
    return load(text, lifted=False)  # for the place of the error


class IdLists:
    """The lists of ids of a session's requests, in the order in which they are added."""

    def __init__(self, offsets: np.ndarray, ids: np.ndarray):
        self._offsets, self._ids = offsets, ids
        self._order: list[int] = []  # of lists, those that were decoded in Python after those of the kernel
        self._decoded: list[np.ndarray] = []
        self._lifted = len(offsets) - 1

    def add(self, value: Any, where: str) -> None:
        """Add the list of the next request; RowError if it is not a list of 64-bit integers."""
        if self._lifted and type(value) is list and len(value) == 1 and type(value[0]) is int:
            self._order.append(value[0])
            return
        self._order.append(self._lifted + len(self._decoded))
        self._decoded.append(_ids(value, where))

    def are_used(self) -> bool:
        """Whether each list that the kernel found was added once."""
        lifted = [number for number in self._order if number < self._lifted]
        return sorted(lifted) == list(range(self._lifted))

    def done(self) -> tuple[np.ndarray, np.ndarray]:
        """The ids end to end, and the offsets of the lists."""
        if self._order == list(range(self._lifted)):
            return self._ids, self._offsets
        ids = np.concatenate([self._ids, *self._decoded])
        counts = [*np.diff(self._offsets).tolist(), *map(len, self._decoded)]
        return numbering.take(ids, offsets_of(counts), np.array(self._order, dtype=np.int64))


def _ids(value: Any, where: str) -> np.ndarray:
    if type(value) is list and any(type(one) in (int, float) and one < 0 for one in value):
        raise RowError(f"{where} has a negative id.")  # its bits could be those of an id from 2^63
    return id_list(value, where)


def _decoded(text: bytes) -> Any:
    place = 0
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        place = error.pos
    if place >= len(text.rstrip()):  # raised outside the handler: orjson's error contains the text
        raise RowError("the JSON ends early; the file is truncated.")
    if any(word in text[max(0, place - 2) : place + 10] for word in (b"NaN", b"Infinity")):
        raise RowError(f"a number is NaN or infinite at character {place + 1:,}, which JSON does not have.")
    raise RowError(f"the file is not JSON from character {place + 1:,}.")
