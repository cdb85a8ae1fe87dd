"""Links between the windows of a recording: which blocks of a released window another window may have, too.

A window's release splits blocks of fewer than k known contributors. Links must not undo that, within the window or
across windows, so a block links in one of two ways:

* shared: it has k known contributors or more in this window, or has one and was shared in an earlier window. All
  windows that share the block have one number for it.
* own: its rows are of one contributor. Only the same contributor's rows in other windows have the number. A copy that
  k-sharing made is such a block.

All others get -1: unique tails, and blocks of one contributor that the log does not name. Below a block that is not
shared, no block is. No two blocks of a window get the same number, so that joined windows never merge blocks.

The numbers of a recording (keyed digest -> number, over all windows that link) are in one file, appended to,
owner-only:

    header   one line of JSON: the name of the recording, when it starts, a check value of its key
    frames   a count for each kind of digest, and a checksum; then the digests, in the order of their numbers

The file has neither text nor the key. A kill may leave an incomplete frame at its end, which is cut off: no links file
has its numbers, because a window's numbers are saved before its links.
"""

from __future__ import annotations

import json
import os
import secrets
import struct
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Self

import numpy as np

from .._base.checkpoint import parsed
from .._base.errors import InputError, UsageError, named_errors
from .._base.file_locks import locked_file
from .._base.output_files import append_whole
from .._base.units import NS_PER_MS
from .._native import numbering
from .._native.numbering import DigestIndex
from ..formats.links import Links, fingerprint_of
from ..trace.columns import Columns
from ..trace.meta import UNRENDERED, Rendering
from .contributors import Contributors
from .release_options import Profile
from .trace_draft import RowBlocks, TraceDraft

OWNER = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], dtype=np.uint64)  # marks the digest of an account as such
SAMPLED = "a sample of a window's sessions cannot be linked to other windows. Leave out --sample-sessions."


@dataclass(frozen=True, repr=False)
class Identities:
    """The keyed digests behind the numbers of collected rows: (n, 2) uint64, zeros = none. Rows are in time order."""

    blocks: np.ndarray  # block number -> digest
    session: np.ndarray  # row -> digest
    account: np.ndarray
    user: np.ndarray
    domain: np.ndarray
    start_ns: int  # time of the first row


@dataclass(frozen=True, repr=False)
class Unreleased:
    """The blocks of a draft before its release, which changes them in place."""

    number: np.ndarray  # block reference -> number of its block, rows end to end
    offsets: np.ndarray
    prompts: np.ndarray  # row -> blocks of its prompt
    tails: np.ndarray  # block reference -> whether the block is partial
    ids: Identities

    @classmethod
    def of(cls, draft: TraceDraft, ids: Identities) -> Unreleased:
        """The blocks of a draft of the collected rows."""
        blocks, is_tail = draft.blocks, np.zeros(len(draft.blocks.number), dtype=bool)
        if draft.tail != "dropped":
            is_tail[blocks.tails(draft.rows.input_length, draft.rows.output_length, draft.block_size)] = True
        return cls(blocks.number.copy(), blocks.offsets, blocks.prompts, is_tail, ids)


def links_of(
    before: Unreleased,
    after: Columns,
    index: LinkIndex,
    *,
    profile: Profile,
    contributors: Contributors | None = None,
) -> Links:
    """The links of a released window. The numbers are saved in the index before this returns.

    Args:
        before: The window's blocks before the release.
        after: Its released rows: the same rows in the same order, with ids from 0 by first appearance.
        index: The numbers of the recording.
        profile: The release profile.
        contributors: Those that the release counted; None if it split nothing.

    Raises:
        UsageError: The release left out rows.
    """
    released = RowBlocks.of(after)
    reference = _references(before, released)
    original = np.zeros(released.distinct, dtype=np.int64)  # released id -> its number before
    original[released.number] = before.number[reference]
    is_tail = np.zeros(released.distinct, dtype=bool)
    if profile.tail == "unique":
        is_tail[released.number] = before.tails[reference]
    blocks = _Numbers(before, released, original, is_tail).numbers(index, profile.k, contributors)
    sessions = _numbers_of(after.session, before.ids.session, index.sessions)
    domains = _numbers_of(after.domain, before.ids.domain, index.domains)
    if after.domain is None and not profile.drop_sessions and _is_one(before.ids.domain):  # no column if all are equal
        domains = index.domains.add(before.ids.domain[:1]).astype(np.int64)
    step_ms = max(1, profile.time_step_ms)
    offset_ms = (before.ids.start_ns - index.start_ns) // NS_PER_MS // step_ms * step_ms
    return Links(index.recording, index.save(), offset_ms, fingerprint_of(after), blocks, sessions, domains)


def _references(before: Unreleased, released: RowBlocks) -> np.ndarray:
    """The place before the release of each released block reference. Steps only leave out the last ones of a row."""
    if len(released.offsets) != len(before.offsets):
        raise UsageError(SAMPLED)
    prompts = released.prompts
    outputs = np.diff(released.offsets) - prompts
    starts = before.offsets[:-1]
    if (prompts > before.prompts).any() or (outputs > np.diff(before.offsets) - before.prompts).any():
        raise UsageError(SAMPLED)
    first = np.stack([starts, starts + before.prompts], axis=1).ravel()
    return numbering.ranges(first, np.stack([prompts, outputs], axis=1).ravel())


class _Numbers:
    """The numbers of a window's blocks in the recording."""

    def __init__(self, before: Unreleased, released: RowBlocks, original: np.ndarray, is_tail: np.ndarray):
        self._ids, self._released, self._is_tail = before.ids, released, is_tail
        self._digest = before.ids.blocks[original]  # released id -> digest of its block
        copies = np.bincount(original[~is_tail], minlength=len(before.ids.blocks))
        self._is_copy = copies[original] > 1

    def numbers(self, index: LinkIndex, k: int, who: Contributors | None) -> np.ndarray:
        """Released id -> its number: even if it is shared, odd if it is one contributor's own, -1 = none."""
        number_of_id = np.full(len(self._digest), -1, dtype=np.int64)
        shared = ~self._is_tail & ~self._is_copy
        if k > 1 and who is not None:
            unknown = self._released.in_rows(who.contributor == who.unknown)
            enough = self._released.contributors(who.contributor) - unknown >= k
            was_shared = index.shared.find(self._digest) >= 0
            shared &= enough | was_shared
        shared &= self._below_shared(shared)
        number_of_id[shared] = 2 * index.shared.add(self._digest[shared]).astype(np.int64)
        if k > 1 and who is not None:
            owner = self._owners(who)
            own = ~shared & ~self._is_tail & owner.any(axis=1)
            keys = self._digest[own] ^ np.roll(owner[own], 1, axis=1)
            number_of_id[own] = 2 * index.own.add(keys).astype(np.int64) + 1
        return _without_repeats(number_of_id)

    def _below_shared(self, shared: np.ndarray) -> np.ndarray:
        """Released id -> whether all blocks before it in its rows are shared, too."""
        number, offsets = self._released.number, self._released.offsets
        other = ~shared & ~self._is_tail  # no block is below a tail: outputs continue after the last full block
        before = np.concatenate([[0], np.cumsum(other[number])])  # blocks that are not shared, up to a reference
        is_below = np.zeros(len(shared), dtype=bool)
        rows = np.repeat(before[offsets[:-1]], np.diff(offsets))
        is_below[number[before[1:] == rows]] = True
        return is_below

    def _owners(self, who: Contributors) -> np.ndarray:
        """Released id -> digest of the one contributor that has it; zeros if it has several, or one without a name."""
        rows = self._row_owners(who)
        owner = self._one(rows)
        if who.kind == "accounts" and who.member is not None:  # k users of one account may share a block
            alone = self._released.contributors(who.contributor) == 1
            account = self._ids.account[self._released.first_rows()]
            several = alone & ~owner.any(axis=1) & account.any(axis=1)
            owner[several] = account[several] ^ OWNER
        return owner

    def _row_owners(self, who: Contributors) -> np.ndarray:
        """Row -> digest of who sent it, as closely as the release tells contributors apart; zeros = not known."""
        ids = self._ids
        named = {"accounts": ids.account, "users": ids.account, "client_users": ids.user}.get(who.kind)
        if named is None:
            return ids.session if who.kind == "sessions" else np.zeros_like(ids.session)
        owner = named ^ np.roll(ids.user, 1, axis=1) if who.kind == "accounts" else named
        is_named = np.asarray(named.any(axis=1))
        return np.where(is_named[:, None], owner, ids.session)

    def _one(self, rows: np.ndarray) -> np.ndarray:
        """Released id -> the digest that all of its rows have; zeros if they have several, or none."""
        numbers = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
        alone = self._released.contributors(numbers.astype(np.int64)) == 1
        return np.where(alone[:, None], rows[self._released.first_rows()], np.uint64(0))


def _numbers_of(values: np.ndarray | None, digests: np.ndarray, index: DigestIndex) -> np.ndarray:
    """Number of the window -> number of the recording; none without the column."""
    if values is None:
        return np.empty(0, dtype=np.int64)
    recording_number = np.full(int(values.max(initial=-1)) + 1, -1, dtype=np.int64)
    numbers, rows = np.unique(values, return_index=True)
    has_digest = (numbers >= 0) & digests[rows].any(axis=1)
    recording_number[numbers[has_digest]] = index.add(digests[rows[has_digest]])
    return _without_repeats(recording_number)


def _is_one(digests: np.ndarray) -> bool:
    """Whether all rows have the same digest."""
    return len(digests) > 0 and bool(digests[0].any()) and bool((digests == digests[:1]).all())


def _without_repeats(numbers: np.ndarray) -> np.ndarray:
    """The numbers; -1 for all that stand for several values of the window."""
    _, inverse, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    return np.where((counts[inverse.reshape(-1)] > 1) | (numbers < 0), -1, numbers)


FORMAT = 1
KINDS = ("shared", "own", "sessions", "domains")
FRAME = struct.Struct(f"<{len(KINDS)}Q16s")
DIGEST_BYTES = 16
BUSY = "{path}: another run writes this index. Wait for it."
FOREIGN = "{path}: not the index of a recording of this version of kvtrace. Move it away."
DAMAGED = "{path}: the index of the recording is damaged. Move it away to begin another recording."
OTHER_RENDERING = (
    "{path}: the windows so far were rendered by another engine or version, so nothing would link to them. Move the "
    "file away to begin another recording."
)


class LinkIndex:
    """The numbers of a recording. Use it as a context manager; `save` after each window.

    Args:
        path: The file; made if it is missing.
        check: A check value of the key. The file of another key is replaced: its digests say nothing about new ones.
        start_ns: When the recording starts, if the file is new.
        rendering: Of the windows, as `rendering_of` gives it: equal prompts have other digests in another one.

    Raises:
        UsageError: Another run has the file open, others can read it, or its windows are of another rendering.
        InputError: It is not an index of this version.

    >>> import tempfile
    >>> digests = np.array([[1, 2], [3, 4]], dtype=np.uint64)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with LinkIndex(f"{folder}/index", check="a", start_ns=5) as index:
    ...         first = index.shared.add(digests), index.save()
    ...     with LinkIndex(f"{folder}/index", check="a", start_ns=9) as index:
    ...         index.shared.find(digests[::-1]), index.windows, index.start_ns
    (array([1, 0], dtype=int32), 1, 5)
    """

    shared: DigestIndex  # of blocks that enough contributors have
    own: DigestIndex  # of blocks of one contributor, with that contributor
    sessions: DigestIndex
    domains: DigestIndex

    def __init__(self, path: str | Path, *, check: str, start_ns: int, rendering: Rendering = UNRENDERED):
        self._path, self._end = os.fspath(path), 0
        self._saved: list[int] = []
        self._handle = locked_file(self._path, busy=BUSY, remedy="Move it away.", private=True)
        try:
            self._open({"kvtrace_links_index": FORMAT, "recording": secrets.token_hex(16), "check": check,
                        "start_ns": start_ns, "rendering": list(rendering)})  # fmt: skip
        except BaseException:
            os.close(self._handle)
            raise

    def save(self) -> int:
        """Append the digests that are new since the last call; returns the number of the window that has them."""
        new = [index.digests()[saved:] for index, saved in zip(self._indexes, self._saved, strict=True)]
        data = b"".join(np.ascontiguousarray(digests, dtype="<u8").tobytes() for digests in new)
        counts = [len(digests) for digests in new]
        frame = FRAME.pack(*counts, _checksum(counts, data)) + data
        self._end = append_whole(self._handle, frame, self._end, self._path)
        with named_errors(self._path):
            os.fsync(self._handle)
        self._saved = [index.distinct for index in self._indexes]
        self.windows += 1
        return self.windows - 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    @property
    def _indexes(self) -> list[DigestIndex]:
        return [getattr(self, kind) for kind in KINDS]

    def _open(self, header: dict) -> None:
        for kind in KINDS:
            setattr(self, kind, DigestIndex())
        self.windows, self._end = 0, 0
        with open(self._handle, "rb", closefd=False) as file:
            line = file.readline()
            stored_header = parsed(line) if line.endswith(b"\n") else {}
            if line.endswith(b"\n") and stored_header.get("kvtrace_links_index") != FORMAT:
                raise InputError(FOREIGN.format(path=self._path))
            if stored_header.get("check") == header["check"]:
                if stored_header.get("rendering", list(UNRENDERED)) != header["rendering"]:
                    raise UsageError(OTHER_RENDERING.format(path=self._path))
                header, self._end = stored_header, file.tell()
                start_ns = header.get("start_ns")
                if type(header.get("recording")) is not str or type(start_ns) is not int or abs(start_ns) >> 63:
                    raise InputError(DAMAGED.format(path=self._path))
                self._read(file)
        with named_errors(self._path):
            os.ftruncate(self._handle, self._end)
        if not self._end:
            self._end = append_whole(self._handle, json.dumps(header).encode() + b"\n", 0, self._path)
        self.recording, self.start_ns = header["recording"], header["start_ns"]
        self._saved = [index.distinct for index in self._indexes]

    def _read(self, file) -> None:
        """Add the digests of all complete frames."""
        while len(head := file.read(FRAME.size)) == FRAME.size:
            *counts, checksum = FRAME.unpack(head)
            size = sum(counts) * DIGEST_BYTES
            if size > os.fstat(self._handle).st_size:
                return
            data = file.read(size)
            if len(data) < size or _checksum(counts, data) != checksum:
                return
            digests = np.frombuffer(data, dtype="<u8").reshape(-1, 2)
            ends = np.cumsum(counts)
            for index, end, count in zip(self._indexes, ends, counts, strict=True):
                index.add(digests[end - count : end])
            self._end, self.windows = file.tell(), self.windows + 1


def _checksum(counts: list[int], data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_BYTES, key=struct.pack(f"<{len(KINDS)}Q", *counts)).digest()
