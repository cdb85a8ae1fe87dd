"""A folder of parts is released by tasks, as anonymize_dataset.py anonymises a log: the bytes are those of `release`.

Blocks have ids here and no digests; what sends an id to its shard is a public hash of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from .._base.errors import UsageError
from .._base.mixing import split_mix
from ..formats.dataset import Dataset
from ..formats.lazy import LazyTrace
from ..trace.columns import Columns
from ..trace.conversion import STALE
from ..trace.hits import Hits, added_up, unlimited_hits
from .allowed_fields import EXTRA
from .numbering.run import Numbered, Runner, number
from .numbering.store import Store
from .numbering.task_plan import BLOCKS, Plan, counts_of, cuts, offsets_of, told_of
from .profiles import Profile
from .releases import Step, drawn, left_out
from .steps import ORDER

WHOLE = "Or convert it to one file, which is released in one place."
CARRIED = ("session", "parent", "turn")


@contextmanager
def release_dataset(
    parts: Dataset,
    profile: Profile,
    *,
    runner: Runner,
    work: str | Path,
    partitions: int | None = None,
    task_blocks: int = BLOCKS,
    users: np.ndarray | None = None,
    session_share: float = 1.0,
    rng: np.random.Generator | None = None,
) -> Iterator[Numbered]:
    """Coarsen a data set as its release profile says, by tasks, in bounded memory; the result is that of `release`.

    Args:
        parts: The data set, from `open_dataset`.
        profile: A profile, from `profile(name)` or PROFILES.
        runner: Runs the tasks: a `LocalRunner`, or the one that `on_ray` gives.
        work: A folder or URL for the files that tasks hand on; it is removed when the block ends.
        partitions: Tasks of each stage; the default follows from `task_blocks`.
        task_blocks: Block references that a task holds.
        users, session_share, rng: As in `release`.

    Yields:
        The rows in a store, their figures, and what the sidecar says.

    Raises:
        UsageError: The profile or the data set needs all blocks in one place.

    >>> import tempfile, kvtrace
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = kvtrace.write(kvtrace.toy("0 1", "0 2", block_size=16), f"{folder}/day.dataset")
    ...     opened, runner = kvtrace.open_dataset(f"{folder}/day.dataset"), kvtrace.LocalRunner(1)
    ...     with release_dataset(opened, kvtrace.profile("exact"), runner=runner, work=f"{folder}/work") as made:
    ...         made.figures["distinct_blocks"]
    3
    """
    whole = LazyTrace(parts, extra=("turn",))
    _require_partable(parts, whole, profile)
    tail = max(profile.tail, parts.tail, key=ORDER.index)
    rows = None if session_share == 1 else drawn(whole, users, session_share, rng, _not_inferred)
    drops = tail == "dropped" != parts.tail
    if drops and rows is not None:
        raise UsageError("a sample is drawn and tails are dropped one after the other. Release it twice.")
    raw = "tails dropped" if drops else "as it was" if rows is None else "sampled"
    before = [] if raw == "as it was" else [Step("as it was", _hits(parts))]
    meta = {name: value for name, value in parts.meta.items() if name not in STALE}
    encode = _Encoder(parts, Store.at(work), users, rows, drops)
    try:
        plan = _plan(parts, profile, encode, partitions, task_blocks, tail, whole)
        made = number(plan, runner, meta, before=before, raw=raw, retailed=tail != parts.tail)
        made.account.sampled = rows is not None
        if profile.coarsens:
            made.account.notes[:0] = left_out(_others(parts))
        made.meta |= made.account.meta
        made.bytes = {"encode": encode.bytes} | made.bytes
        yield made
    finally:
        encode.store.remove()


def _require_partable(parts: Dataset, whole: LazyTrace, profile: Profile) -> None:
    if not whole.is_chained:
        raise UsageError(f"{parts.path}: blocks were hashed without their prefix. Try `kvtrace convert --chain` first.")
    if parts.output_blocks:
        raise UsageError(f"{parts.path}: has blocks of outputs. {WHOLE}")
    if _others(parts) and not profile.coarsens:
        raise UsageError(f"{parts.path}: --profile exact would keep all columns. Try `kvtrace convert`.")


def _others(parts: Dataset) -> list[str]:
    """Extra columns that no release keeps."""
    return [name for name in parts.names() if name.startswith("extra.") and name.removeprefix("extra.") not in EXTRA]


def _hits(parts: Dataset) -> Hits:
    """What the prompts hit without eviction as they are."""

    def pieces():
        seen = 0
        for columns in parts.chunks(BLOCKS, extra="ignore"):
            yield unlimited_hits(columns, seen=seen), np.diff(columns.offsets), columns.input_length
            seen = max(seen, int(columns.hash_ids.max(initial=-1)) + 1)

    return added_up(pieces(), parts.block_size)


def _not_inferred() -> np.ndarray:
    raise UsageError(f"conversations can't be inferred from a folder of parts. Try --users FILE. {WHOLE}")


class _Encoder:
    """Writes a folder's rows as the first stage does those of a log, one part after the other."""

    def __init__(self, parts: Dataset, store: Store, users, rows: np.ndarray | None, drops: bool):
        self._parts, self.store, self.users, self.rows, self._drops = parts, store, users, rows, drops
        self.place = None if rows is None else np.cumsum(rows) - 1  # row -> row among those drawn
        self.times: list[np.ndarray] = []
        self.blocks: list[np.ndarray] = []
        self.bytes, self.names = 0, set()  # type: ignore[var-annotated]

    def run(self) -> int:
        """Write all parts; returns how many there are."""
        start = count = 0
        session = _Renumbered()
        for columns in self._parts.chunks(BLOCKS):
            rows = slice(start, start + len(columns))
            start += len(columns)
            users = None if self.users is None else self.users[rows]
            if self.rows is not None:
                kept = np.flatnonzero(self.rows[rows])
                columns, users = columns.take(kept), None if users is None else users[kept]
                if columns.session is not None:
                    columns.session = session(columns.session)
                if columns.parent is not None and self.place is not None:
                    columns.parent = np.where(columns.parent < 0, -1, self.place[columns.parent])
            if len(columns):
                self._write(count, columns, users)
                count += 1
        return count

    def _write(self, part: int, columns: Columns, users) -> None:
        ids, offsets = columns.hash_ids, columns.offsets
        if self._drops:
            ids, offsets = _without_tails(columns, self._parts.block_size)
        carried = {"session": columns.session, "parent": columns.parent, "turn": columns.extra.get("turn")}
        kept = {name: values for name, values in carried.items() if values is not None and values.dtype.kind in "iu"}
        known: dict[str, int] = {}
        kinds = columns.extra["type"].tolist() if "type" in columns.extra else []
        codes = np.array([known.setdefault(str(kind), len(known)) for kind in kinds], dtype=np.int32)
        self.names |= {*kept, *(["type"] if kinds else [])}
        contributors = {"session": columns.session, "user": users}
        self.bytes += self.store.write(
            f"encoded/{part}", {"types": list(known)},
            time=columns.timestamp, input_length=columns.input_length, output_length=columns.output_length,
            offsets=offsets, digests=_digests(ids), **({"type": codes} if kinds else {}),
            **{name: _digests(held, kind) for kind, (name, held) in enumerate(contributors.items()) if held is not
            None}, **{f"carried {name}": values for name, values in kept.items()},
        )  # fmt: skip
        times, blocks = told_of(columns.timestamp, offsets)
        self.times.append(times)
        self.blocks.append(blocks)


def _plan(parts, profile, encode, partitions, task_blocks, tail, whole) -> Plan:
    count = encode.run()
    tasks = partitions or max(1, -(-sum(int(blocks.sum()) for blocks in encode.blocks) // task_blocks))
    drawn = slice(None) if encode.rows is None else encode.rows
    users, sessions = (held is not None and bool((held[drawn] >= 0).any()) for held in (encode.users, whole.session))
    return Plan(
        store=encode.store, parts=count, shards=tasks, block_size=parts.block_size, tail=tail, profile=profile,
        counts=counts_of(profile, users, sessions, "--users FILE"), cuts=cuts(encode.times, encode.blocks, tasks),
        first_time=None, has_types="type" in encode.names,
        carried=tuple(name for name in CARRIED if name in encode.names),
    )  # fmt: skip


class _Renumbered:
    """Sessions of a sample, numbered anew: whole sessions are drawn, so that their order stays."""

    def __init__(self):
        self._number: dict[int, int] = {}

    def __call__(self, sessions: np.ndarray) -> np.ndarray:
        number = self._number
        found = (number.setdefault(session, len(number)) if session >= 0 else -1 for session in sessions.tolist())
        return np.fromiter(found, dtype=np.int64, count=len(sessions))


def _digests(numbers, kind: int = 0) -> np.ndarray:
    """128 bits for each number of a kind, which tell it and spread it over the shards; zeros for -1."""
    found = np.stack([split_mix(numbers), numbers.astype(np.uint64) * np.uint64(2) + np.uint64(1 + kind)], axis=1)
    found[numbers < 0] = 0
    return found


def _without_tails(columns: Columns, block_size) -> tuple[np.ndarray, np.ndarray]:
    blocks = np.diff(columns.offsets)
    partial = (columns.input_length % block_size > 0) & (blocks > 0)
    kept = np.ones(len(columns.hash_ids), dtype=bool)
    kept[columns.offsets[1:][partial] - 1] = False
    return columns.hash_ids[kept], offsets_of(blocks - partial)
