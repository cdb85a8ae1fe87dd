"""Encode: one part of a raw log becomes a file of its rows in order of time: the one stage that sees text."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from .._base.errors import UsageError
from .._native import ragged
from ..privacy.numbering.store import Store
from ..privacy.numbering.task_plan import offsets_of, sample_times
from .encoding import Batch, Encoder, Recipe
from .keys import Key, load_key
from .logs import sources
from .logs.sources import Piece, Source

CHECK = "the key that hosts share"
NOBODY = Key(bytes(16))  # in place of the key, where a recipe crosses hosts


@dataclass(frozen=True)
class Part:
    """A run of a log's pieces; a packed file is one item, since it can be read from its front only."""

    number: int
    items: tuple[Piece | Source, ...] = field(repr=False)

    def pieces(self) -> Iterable[Piece]:
        """Its pieces, in the order of the log."""
        for item in self.items:
            yield from [item] if isinstance(item, Piece) else sources.pieces([item])


@dataclass(frozen=True, repr=False)
class Encoded:
    """What is known of a part once it is encoded: what to count and to reject, and where its blocks lie in time."""

    told: list[tuple[Piece, Batch]]  # batches without their arrays of blocks
    times: np.ndarray  # of some rows, in ns, rising
    blocks: np.ndarray  # ... and how many blocks there are from each to the next
    first: int | None  # time in ns; None where there are no rows
    has_sessions: bool
    has_users: bool
    has_types: bool
    bytes: int  # written


@dataclass(frozen=True)
class PartEncoder:
    """Encodes parts into a store; called with a Part, it gives what is Encoded."""

    encoder: Encoder
    store: Store

    def __call__(self, part: Part) -> Encoded:
        told, batches = [], []
        for piece in part.pieces():
            batch = self.encoder(piece)
            told.append((replace(piece, data=None), _counted(batch)))
            batches.append(batch)
            if batch.rejects and self.encoder.recipe.stop_at_error:
                break
        return self._written(part, told, batches)

    def _written(self, part: Part, told, batches: list[Batch]) -> Encoded:
        numbers = {name: _joined([getattr(batch, name) for batch in batches])
                   for name in ("time_ns", "input_length", "output_length")}  # fmt: skip
        digests = np.concatenate([np.empty((0, 2), np.uint64), *(batch.digests for batch in batches)])
        offsets = offsets_of(_joined([np.diff(batch.offsets) for batch in batches]))
        types = [kind for batch in batches for kind in batch.type]
        links = {name: _filled(batches, name) for name in ("session", "user")}
        order = np.argsort(numbers["time_ns"], kind="stable")
        place, offsets = ragged.take(np.arange(len(digests)), offsets, order)
        known: dict[str | None, int] = {}
        codes = np.array([known.setdefault(kind, len(known)) for kind in types], dtype=np.int32)
        arrays = {"time" if name == "time_ns" else name: values[order] for name, values in numbers.items()}
        arrays |= {name: values[order] for name, values in links.items() if values is not None}
        written = self.store.write(
            f"encoded/{part.number}", {"types": list(known)},
            **arrays, type=codes[order], offsets=offsets, digests=digests[place],
        )  # fmt: skip
        return Encoded(
            told, *sample_times(arrays["time"], offsets),
            int(arrays["time"][0]) if len(order) else None,
            has_sessions=links["session"] is not None, has_users=links["user"] is not None,
            has_types=any(kind is not None for kind in types), bytes=written,
        )  # fmt: skip


@dataclass(frozen=True)
class FarEncoder:
    """The same where the key must not travel: each process reads it from the key file, which its host has."""

    recipe: Recipe
    key_file: str
    store: Store
    folder: str  # that names of files are relative to
    check: bytes  # what tells that a host has the same key

    @classmethod
    def of(cls, encoder: Encoder, key_file: str, store: Store) -> FarEncoder:
        """What can be sent to another host in place of an encoder."""
        key = encoder.recipe.key
        recipe = replace(encoder.recipe, key=NOBODY)
        return cls(recipe, os.path.abspath(key_file), store, os.getcwd(), key.subkey(CHECK))

    def __call__(self, part: Part) -> Encoded:
        if os.path.isdir(self.folder):
            os.chdir(self.folder)
        return PartEncoder(_loaded(self.recipe, self.key_file, self.check), self.store)(part)


_LOADED: dict[str, Encoder] = {}


def _loaded(recipe: Recipe, key_file: str, check: bytes) -> Encoder:
    """One encoder a process: its tokenizer takes a second to load. UsageError where the key is missing or another."""
    name = f"{recipe!r} {key_file} {check.hex()}"
    if name not in _LOADED:
        key = load_key(key_file, make=False)
        if key.subkey(CHECK) != check:
            raise UsageError(f"{key_file}: holds another key on a host of the cluster. Copy the same file to each.")
        _LOADED.clear()
        _LOADED[name] = Encoder(replace(recipe, key=key))
    return _LOADED[name]


def parts_of(files: list[Source], count: int) -> list[Part]:
    """The log in at most so many parts of about equal size, in its order."""
    items: list[Piece | Source] = []
    for source in files:
        items += sources.pieces([source]) if source.form == "plain" else [source]
    sizes = np.cumsum([item.size for item in items], dtype=np.float64)
    if not items:
        return []
    share = np.minimum((sizes - sizes[0]) / max(sizes[-1], 1.0) * count, count - 1).astype(int)
    taken = [tuple(item for item, at in zip(items, share, strict=True) if at == number) for number in range(count)]
    return [Part(number, held) for number, held in enumerate(held for held in taken if held)]


def _counted(batch: Batch) -> Batch:
    """The batch with what is counted, and no block."""
    return replace(
        batch, digests=np.empty((0, 2), np.uint64), offsets=np.zeros(1, np.int64), session=None, user=None, type=[],
    )  # fmt: skip


def _joined(arrays) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *arrays])


def _filled(batches, name) -> np.ndarray | None:
    """The digests of all batches, zeros where one has none; None where none has any."""
    found = [getattr(batch, name) for batch in batches]
    if all(values is None or not values.any() for values in found):
        return None
    none = (np.zeros((len(batch), 2), np.uint64) for batch in batches)
    return np.concatenate([zeros if values is None else values for values, zeros in zip(found, none, strict=True)])
