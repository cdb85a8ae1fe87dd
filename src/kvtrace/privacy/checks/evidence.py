"""What an audit looks at: the file as it stands, the requests of the trace it makes, its sidecar, and what is given.

Columns over requests are whole; block ids are not: `feed` gives them in pieces, as numbers, to whoever sums them up.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from ..._base.errors import InputError, UsageError
from ..._base.files import is_regular, name_of
from ..._base.memory import give_back
from ...formats import trace_files as formats
from ...formats.dataset import CARD
from ...formats.sidecar import Sidecar, load, sidecar_path
from ...trace.columns import Columns
from ...trace.invariants import expected_blocks
from ...trace.normalise import normalise
from ...trace.trace import Trace
from .. import profiles
from ..contributors import Contributors
from ..profiles import PROFILES, Profile
from ..users import numbered
from . import source
from .blocks import Blocks, Requests
from .bound import Limit
from .numbers import Numbers
from .source import Piece, Said, Source, said
from .sums import Sums

SHARED = ("timestamp", "input_length", "output_length", "session", "parent")
RUN = 1 << 20  # block references that are put into time order at once


@dataclass(eq=False)
class Evidence:
    """All that the checks look at."""

    source: Source
    numbers: Numbers  # of the ids as they stand
    texts: list[Said] = field(default_factory=list)  # sidecars, and other metadata of the file
    card: str | None = None
    sidecar: Sidecar | None = None  # of the first text that is this file's
    profile: Profile = PROFILES["standard"]  # graded against
    declared: Profile | None = None  # what the sidecar says
    block_size: int | None = None
    tail: str | None = None
    requests: Requests | None = None  # of the rows that hold what lengths promise
    contributors: Contributors | None = None  # request -> contributor, where they are known
    users: np.ndarray | None = None  # request -> user, where a file of users says so, -1 = unknown
    previous: Trace | None = None

    @property
    def found(self):
        """Where the rows stand, and what they say of each other."""
        return self.source.found

    @property
    def fields(self) -> dict[str, np.ndarray]:
        """The scalars of each field as they stand in the file."""
        return self.source.fields

    @property
    def columns(self) -> Columns:
        """The columns over rows as they stand in the file."""
        return self.source.found.columns

    @property
    def meta(self) -> dict[str, Any]:
        """What the sidecar says beyond what it must."""
        return {} if self.sidecar is None else self.sidecar.meta

    @property
    def release(self) -> dict[str, Any]:
        """What the sidecar says of the release."""
        said = self.meta.get("release")
        return said if isinstance(said, dict) else {}

    def line(self, row: int) -> int:
        """The line of a row of the file."""
        return self.found.line(row)

    @cached_property
    def sums(self) -> Sums:
        """What one pass over the blocks sums up."""
        assert self.requests is not None
        sums = Sums(self.requests, self.numbers.distinct)
        self.feed(sums.take)
        sums.parents.end()
        return sums

    def feed(self, take: Callable[[Blocks], None]) -> None:
        """Give the blocks of all requests, piece by piece, as they stand in the file."""
        requests = self.requests
        assert requests is not None
        place = np.full(len(self.columns), -1, dtype=np.int32)  # row of the file -> request
        place[requests.rows] = np.arange(len(requests))

        def give(piece: Piece):
            at = place[piece.row : piece.row + len(piece)]
            if len(at) < len(piece):
                raise InputError("the file grew while it was read. Audit it once it is whole.")
            take(_blocks(piece, at, self.numbers))

        self.source.each(give)

    def feed_in_time(self, take: Callable[[Blocks], None]) -> None:
        """As `feed`, in time order; rows in another order are all read again for each RUN of references."""
        assert self.requests is not None
        if self.requests.in_order:
            self.feed(take)
            return
        blocks = np.diff(self.columns.offsets)[self.requests.rows]
        run = np.cumsum(blocks) // RUN
        for start, stop in zip(*_runs(run), strict=True):
            some: list[Blocks] = []

            def collect(piece: Blocks, start=start, stop=stop, some=some):
                inside = np.flatnonzero((piece.requests >= start) & (piece.requests < stop))
                some.append(_taken(piece, inside))

            self.feed(collect)
            take(_in_order(some))


def gather(
    path, *, against=None, users=None, profile=None, block_size=None, format=None, sidecar=None, contributors=None,
    memory=None,
) -> Evidence:  # fmt: skip
    """The evidence in a trace file or a folder of parts; InputError where it can't be read at all."""
    if format not in (None, *formats.NAMES):
        raise UsageError(f"format is {format!r}; it is one of {', '.join(formats.NAMES)}.")
    graded = None if profile is None else profiles.profile(profile)
    limit = Limit.of(path, memory, profile=profile, users=users is not None, against=against)
    numbers = Numbers(room=None if limit is None else limit.room)
    there = Evidence(source.read(path, format, lambda piece: see(piece, numbers)), numbers)
    if limit:
        limit.require(numbers)
    if not len(there.columns):
        raise InputError(f"{name_of(path)}: holds no requests that can be read.")
    there.texts = [*_sidecars(path, sidecar), *there.source.texts]
    there.sidecar = _settled(there)
    there.card = _card(path)
    declared = _declared(there.meta)
    there.profile, there.declared = graded or declared or PROFILES["standard"], declared
    _make_requests(there, block_size)
    _add_holders(there, users, contributors)
    there.previous = None if against is None else formats.read(against, extra="ignore")
    give_back()
    return there


# -- beside the file ---------------------------------------------------------------------------------------------


def _sidecars(path, given) -> list[Said]:
    if given is not None:
        return [Said("the sidecar", given)]
    text = None if not is_regular(path) else _text(sidecar_path(path))
    return [] if text is None else [said("the sidecar", text)]


def _settled(there: Evidence) -> Sidecar | None:
    """What the first sidecar says, where it can be understood and is this file's."""
    for one in there.texts:
        if one.fault or not isinstance(one.values, dict) or one.where not in ("the sidecar", "metadata kvtrace"):
            continue
        with suppress(InputError, TypeError):
            sidecar = load(orjson.dumps(one.values, option=orjson.OPT_SERIALIZE_NUMPY), one.where)
            if there.source.unread or _describes(sidecar, there.columns):
                return sidecar
            one.fault = "describes another file: its counts are not this one's"
        one.fault = one.fault or "does not say what a sidecar says"
        return None
    return None


def _describes(sidecar, columns) -> bool:
    """Whether a sidecar's counts are those of the rows."""
    return sidecar.requests in (None, len(columns)) and sidecar.blocks in (None, columns.offsets[-1])


def _text(path) -> bytes | None:
    with suppress(OSError):
        return Path(path).read_bytes()
    return None


def _card(path) -> str | None:
    if source.is_dataset(path):
        text = _text(os.path.join(path, CARD))
    else:
        text = _text(formats.card_path(path)) if is_regular(path) else None
    return None if text is None else text.decode(errors="replace")


def _declared(meta) -> Profile | None:
    return profiles.declared(meta) if isinstance(meta.get("profile"), str) else None


# -- the requests ------------------------------------------------------------------------------------------------


def _make_requests(there: Evidence, block_size) -> None:
    """The requests of all rows whose numbers fit each other; what does not fit is check 11's to tell."""
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
    rows = np.flatnonzero(sound(columns, size, there.tail))
    in_order = not (np.diff(columns.timestamp[rows]) < 0).any()
    if not in_order:
        rows = rows[np.argsort(columns.timestamp[rows], kind="stable")]
    if len(rows):
        there.requests = _requests(columns, rows, in_order, size, there.tail)


def _requests(columns: Columns, rows, in_order, block_size, tail) -> Requests:
    nothing, parent = np.empty(0, dtype=np.int64), columns.parent
    plain = Columns(
        columns.timestamp, columns.input_length, columns.output_length, nothing, np.zeros(len(columns) + 1),
        session=columns.session, parent=None if parent is None else np.clip(parent, -1, len(columns)),
    )  # fmt: skip
    if len(rows) < len(columns) or not in_order:
        plain = plain.take(rows)
    normalised, _ = normalise(plain)
    time, inputs, outputs, session, parent = (
        _one_of(getattr(columns, name), getattr(normalised, name)) for name in SHARED
    )
    return Requests(time, inputs, outputs, session, parent, block_size, tail, rows, in_order)


def _one_of(standing, normalised):
    """The array that stands in the file where nothing was normalised, so that there are no two of it."""
    same = standing is not None and normalised is not None and standing.dtype == normalised.dtype
    return standing if same and np.array_equal(standing, normalised) else normalised


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


def _add_holders(there: Evidence, users, known: Contributors | None) -> None:
    """Who holds blocks, as a file of users or the caller says, in the order of the requests."""
    count, requests = len(there.columns), there.requests
    numbers = None if users is None else numbered(users, count)
    if numbers is None and known is not None and len(known.contributor) != count:
        raise UsageError(f"{len(known.contributor):,} contributors were given for {count:,} requests.")
    if requests is None:
        return
    if numbers is not None:
        there.users = numbers[requests.rows]
    elif known is not None:
        there.contributors = Contributors(known.contributor[requests.rows], known.kind)


# -- their blocks ------------------------------------------------------------------------------------------------


def see(piece: Piece, numbers: Numbers) -> None:
    """Number the ids of some rows, each row's prompt and then its output."""
    if piece.output_ids is None or piece.output_offsets is None:
        numbers.see(piece.hash_ids)
        return
    ids = np.empty(len(piece.hash_ids) + len(piece.output_ids), dtype=np.int64)
    ids[_places(piece.offsets, piece.output_offsets[:-1])] = piece.hash_ids
    ids[_places(piece.output_offsets, piece.offsets[1:])] = piece.output_ids
    numbers.see(ids)


def _places(offsets, before):
    """Where the values of each row stand, once so many others stand before the row's."""
    return np.arange(offsets[-1]) + np.repeat(before, np.diff(offsets))


def _blocks(piece: Piece, requests: np.ndarray, numbers: Numbers) -> Blocks:
    """The blocks of the rows that are requests."""
    outputs = None if piece.output_ids is None else numbers.of(piece.output_ids)
    whole = Blocks(requests, numbers.of(piece.hash_ids), piece.offsets, outputs, piece.output_offsets)
    return whole if (requests >= 0).all() else _taken(whole, np.flatnonzero(requests >= 0))


def _taken(blocks: Blocks, rows: np.ndarray) -> Blocks:
    """Those of some rows, in the order given."""
    from ..._native import ragged

    pairs = [pair for numbers, offsets in blocks.parts() for pair in ragged.take(numbers, offsets, rows)]
    return Blocks(blocks.requests[rows], *pairs)


def _in_order(some: list[Blocks]) -> Blocks:
    """All of them as one, in time order."""
    with_outputs = any(blocks.output_numbers is not None for blocks in some)
    parts = [_joined([blocks.numbers for blocks in some], [blocks.offsets for blocks in some])]
    if with_outputs:
        outputs = [blocks.parts()[1] if blocks.output_numbers is not None else _no_outputs(blocks) for blocks in some]
        parts.append(_joined([numbers for numbers, _ in outputs], [offsets for _, offsets in outputs]))
    requests = np.concatenate([blocks.requests for blocks in some])
    whole = Blocks(requests, *[array for part in parts for array in part])
    return _taken(whole, np.argsort(requests))


def _no_outputs(blocks: Blocks) -> tuple[np.ndarray, np.ndarray]:
    return np.empty(0, dtype=np.int64), np.zeros_like(blocks.offsets)


def _joined(numbers, offsets) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.concatenate([np.diff(part) for part in offsets])
    return np.concatenate(numbers), np.concatenate([[0], np.cumsum(lengths)])


def _runs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where runs of equal values begin, and where they end."""
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    return starts, np.append(starts[1:], len(values))
