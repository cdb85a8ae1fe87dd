"""The encode stage of a run in tasks: a partition of a raw log becomes a file of its rows. No later stage sees text.

Encoding is nearly all of the work, so a checkpoint records the encoded partitions, whose rows lie in the work folder. A
resumed run encodes the partitions that are missing and repeats the stages.

    header   that of checkpoint.py, and the number of partitions
    frames   one a partition: the counts and rejects of its pieces, framed as checkpoint.py frames batches
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar

import numpy as np

from .._base.arrays import numbers_of_digests, offsets_of
from .._base.checkpoint import CheckpointKind
from .._base.errors import UsageError
from .._native.numbering import DigestIndex
from ..privacy.numbering.run import Runner
from ..privacy.numbering.store import Store
from ..privacy.numbering.task_plan import DOMAINS, ENCODED, by_time, firsts_of, sample_times
from ..trace.columns import MEASURED, joined_measured
from .checkpoint import CHECKPOINT, Checkpoint, packed, unpacked
from .collector import Collector
from .encoding import Batch, Encoder, Recipe
from .keys import Key, load_key
from .logs import sources
from .logs.sources import LogPiece, LogSource
from .logs.times import ArrivalModel

CHECK_PURPOSE = "the key that hosts share"  # of the subkey that shows whether two hosts have the same key
TIMED = "timed"  # in the place of ENCODED for rows with modelled times
NO_KEY = Key(bytes(16))  # replaces the key in a recipe that is sent to another host


@dataclass(frozen=True)
class Partition:
    """Consecutive pieces of a log that one task encodes. A compressed file is one item: it is read front to back."""

    number: int
    items: tuple[LogPiece | LogSource, ...] = field(repr=False)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(item.size for item in self.items)

    def pieces(self) -> Iterable[LogPiece]:
        """The pieces, in the order of the log."""
        for item in self.items:
            yield from [item] if isinstance(item, LogPiece) else sources.pieces([item])


@dataclass(frozen=True, repr=False)
class EncodedPartition:
    """The counts and rejects of an encoded partition, and how its blocks are distributed over time."""

    batches: list[tuple[LogPiece, Batch]]  # without their digests
    times: np.ndarray  # of sampled rows, in ns, rising
    blocks: np.ndarray  # sampled row -> blocks from it to the next one
    first_time: int | None  # ns; None = no rows
    has_sessions: bool
    has_accounts: bool
    has_users: bool
    has_domains: bool
    has_types: bool
    has_service: bool
    measured: list[str]  # columns of MEASURED that have a value
    bytes: int  # written


@dataclass(frozen=True)
class PartitionEncoder:
    """Encodes a partition and writes its rows to a store, sorted by time or in the order of the log."""

    encoder: Encoder
    store: Store
    by_time: bool = True

    def __call__(self, partition: Partition) -> EncodedPartition:
        summaries, batches = [], []
        for piece in partition.pieces():
            batch = self.encoder(piece)
            summaries.append((replace(piece, data=None), _without_digests(batch)))
            batches.append(batch)
            if batch.rejects and not self.encoder.recipe.options.max_errors:
                break
        return self._write(partition, summaries, batches)

    def _write(self, partition: Partition, summaries, batches: list[Batch]) -> EncodedPartition:
        numbers = {name: _concatenated([getattr(batch, name) for batch in batches])
                   for name in ("time_ns", "input_length", "output_length")}  # fmt: skip
        prompts = _concatenated([batch.prompts for batch in batches])
        outputs = None
        if self.encoder.recipe.options.outputs:
            outputs = _concatenated([batch.outputs for batch in batches])
        digests = np.concatenate([np.empty((0, 2), np.uint64), *(batch.all_digests() for batch in batches)])
        offsets = offsets_of(prompts if outputs is None else prompts + outputs)
        types = [kind for batch in batches for kind in batch.type]
        links = {name: _key_digests(batches, name) for name in ("session", "account", "user", "domain")}
        code_of_type: dict[str | None, int] = {}
        codes = np.array([code_of_type.setdefault(kind, len(code_of_type)) for kind in types], dtype=np.int32)
        arrays = {"time" if name == "time_ns" else name: values for name, values in numbers.items()} | {"type": codes}
        arrays |= {name: values for name, values in links.items() if values is not None}
        arrays |= {} if outputs is None else {"prompts": prompts}
        service = _joined_or_none([batch.service_ns for batch in batches], [len(batch) for batch in batches])
        measured = joined_measured([batch.measured for batch in batches], [len(batch) for batch in batches])
        arrays |= {} if service is None else {"service": service}
        delay = _joined_or_none([batch.delay_ns for batch in batches], [len(batch) for batch in batches])
        arrays |= {} if delay is None else {"delay": delay}
        arrays |= {f"carried {name}": values for name, values in measured.items()}
        name = f"{ENCODED}/{partition.number}"
        return EncodedPartition(
            summaries, **_write_rows(self.store, name, list(code_of_type), arrays, offsets, digests, self.by_time),
            has_sessions=links["session"] is not None, has_accounts=links["account"] is not None,
            has_users=links["user"] is not None, has_domains=links["domain"] is not None,
            has_types=any(kind is not None for kind in types), has_service=service is not None,
            measured=list(measured),
        )  # fmt: skip


def _write_rows(
    store: Store,
    name: str,
    types: list[Any],
    arrays: dict[str, np.ndarray],
    offsets: np.ndarray,
    digests: np.ndarray,
    is_sorted: bool = True,
) -> dict[str, Any]:
    """Write the rows of a partition; returns how its blocks are distributed over time, if they are sorted by time."""
    if is_sorted:
        arrays, digests, offsets = by_time(arrays, digests, offsets)
    written = store.write(name, {"types": types}, **arrays, offsets=offsets, digests=digests)
    times, blocks = sample_times(arrays["time"], offsets)
    first_time = int(arrays["time"].min()) if len(times) else None
    return {"times": times, "blocks": blocks, "first_time": first_time, "bytes": written}


@dataclass(frozen=True)
class Retimer:
    """Copies the rows of a partition to TIMED with other times; called with its number and the times, in ns."""

    store: Store

    def __call__(self, item: tuple[int, np.ndarray]) -> dict[str, Any]:
        number, times = item
        with self.store.open(f"{ENCODED}/{number}") as encoded:
            arrays, types = {name: encoded[name] for name in encoded}, encoded.about["types"]
        digests, offsets = arrays.pop("digests"), arrays.pop("offsets")
        return _write_rows(self.store, f"{TIMED}/{number}", types, arrays | {"time": times}, offsets, digests)


def with_arrivals(
    encoded: list[EncodedPartition], model: ArrivalModel, store: Store, runner: Runner
) -> tuple[list[EncodedPartition], str]:
    """The partitions with the times of an arrival model, if the log has none, and the folder that has their rows.

    Rows without times are in the order of the log, as the model needs them. 40 bytes a request are in memory.
    """
    index, times, sessions = DigestIndex(), [], []
    for number, partition in enumerate(encoded):
        with store.open(f"{ENCODED}/{number}") as rows:
            times.append(rows["time"])
            digests = rows["session"] if partition.has_sessions else None
            sessions.append(numbers_of_digests(index.add, digests, len(times[-1])))
    logged = np.concatenate(times)
    modelled = model.times_ns(logged, np.concatenate(sessions))
    if modelled is logged:
        return encoded, ENCODED
    parts = np.split(modelled, np.cumsum([len(part) for part in times])[:-1])
    moved = runner.map(Retimer(store), list(enumerate(parts)))
    return [replace(partition, **changed) for partition, changed in zip(encoded, moved, strict=True)], TIMED


@dataclass(frozen=True)
class RemoteEncoder:
    """A PartitionEncoder for other hosts. It does not carry the key: each process reads it from its host's key file."""

    recipe: Recipe
    key_file: str
    store: Store
    folder: str  # base of relative file names
    check: bytes  # check value of the key
    by_time: bool

    @classmethod
    def of(cls, encoder: PartitionEncoder, key_file: str) -> RemoteEncoder:
        """The remote version of an encoder."""
        recipe = encoder.encoder.recipe
        check, recipe = recipe.key.subkey(CHECK_PURPOSE), replace(recipe, key=NO_KEY)
        return cls(recipe, os.path.abspath(key_file), encoder.store, os.getcwd(), check, encoder.by_time)

    def __call__(self, partition: Partition) -> EncodedPartition:
        if os.path.isdir(self.folder):
            os.chdir(self.folder)
        encoder = _loaded(self.recipe, self.key_file, self.check)
        return PartitionEncoder(encoder, self.store, self.by_time)(partition)


_LOADED: dict[str, Encoder] = {}


def _loaded(recipe: Recipe, key_file: str, check: bytes) -> Encoder:
    """The encoder of this process, loaded once since its tokenizer takes a second; UsageError if the key differs."""
    name = f"{recipe!r} {key_file} {check.hex()}"
    if name not in _LOADED:
        key = load_key(key_file, make=False)
        if key.subkey(CHECK_PURPOSE) != check:
            raise UsageError(f"{key_file}: a host of the cluster has another key. Copy the same key file to each host.")
        _LOADED.clear()
        _LOADED[name] = Encoder(replace(recipe, key=key))
    return _LOADED[name]


def partitions_of(files: list[LogSource], count: int) -> list[Partition]:
    """Split the log into at most `count` partitions of about equal size, in log order."""
    items: list[LogPiece | LogSource] = []
    for source in files:
        items += sources.pieces([source]) if source.form == "plain" and source.layout == "lines" else [source]
    sizes = np.cumsum([item.size for item in items], dtype=np.float64)
    if not items:
        return []
    number_of_item = np.minimum((sizes - sizes[0]) / max(sizes[-1], 1.0) * count, count - 1).astype(int)
    groups = groupby(zip(items, number_of_item, strict=True), itemgetter(1))
    return [Partition(number, tuple(item for item, _ in group)) for number, (_, group) in enumerate(groups)]


def collect(store: Store, folder: str, partitions: int, collector: Collector) -> None:
    """Collect the rows of all partitions: 4 bytes a block reference and 40 a distinct block are in memory."""
    for number in range(partitions):
        with store.open(f"{folder}/{number}") as stored:
            types, rows = stored.about["types"], {name: stored[name] for name in stored}
        links: dict[str, Any] = {name: rows.pop(name, None) for name in ("session", "account", "user", "domain")}
        kinds, blocks = [types[code] for code in rows.pop("type").tolist()], np.diff(rows.pop("offsets"))
        measured = {name: rows.pop(f"carried {name}") for name in MEASURED if f"carried {name}" in rows}
        rows = {"blocks": blocks, "prompts": blocks} | rows
        collector.add_rows(types=kinds, measured=measured, **links, **rows)


def number_domains(encoded: list[EncodedPartition], store: Store, folder: str) -> bool:
    """Number the domains of all rows by first appearance in time, and write DOMAINS: their digests in this order.

    False if all rows have the same domain, or none. 24 bytes a request are in memory.
    """
    if not any(partition.has_domains for partition in encoded):
        return False
    index, times, domains = DigestIndex(), [], []
    for number in range(len(encoded)):
        with store.open(f"{folder}/{number}") as rows:
            times.append(rows["time"])
            domains.append(rows["domain"] if "domain" in rows else np.zeros((len(times[-1]), 2), np.uint64))
    digests = np.concatenate(domains)[np.argsort(np.concatenate(times), kind="stable")]
    numbers = numbers_of_digests(index.add, digests, len(digests))
    if (numbers == numbers[0]).all():
        return False
    has_domain = numbers >= 0
    store.write(DOMAINS, {}, digest=digests[has_domain][firsts_of(numbers[has_domain])])
    return True


def _without_digests(batch: Batch) -> Batch:
    """The batch with its counts and lengths only."""
    nothing: dict[str, Any] = dict.fromkeys(MEASURED)
    return replace(
        batch, digests=np.empty((0, 2), np.uint64), offsets=np.zeros(1, np.int64), session=None, account=None,
        user=None, domain=None, delay_ns=None, service_ns=None, type=[], output_digests=None, output_offsets=None,
        **nothing,
    )  # fmt: skip


def _concatenated(arrays) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *arrays])


def _joined_or_none(columns: list[np.ndarray | None], rows: list[int]) -> np.ndarray | None:
    """Row -> its nanoseconds in the columns of batches, -1 where a batch has none; None if no batch has them."""
    if all(column is None for column in columns):
        return None
    filled = (np.full(count, -1) if column is None else column for column, count in zip(columns, rows, strict=True))
    return np.concatenate(list(filled))


def _key_digests(batches, name) -> np.ndarray | None:
    """Row -> digest of its session, account, user or domain, zeros = none; None if no row has one."""
    columns = [getattr(batch, name) for batch in batches]
    if all(values is None or not values.any() for values in columns):
        return None
    empty = (np.zeros((len(batch), 2), np.uint64) for batch in batches)
    return np.concatenate([zeros if values is None else values for values, zeros in zip(columns, empty, strict=True)])


LENGTHS = struct.Struct("<Q")  # bytes of the JSON header, or of one packed batch
ARRAYS = ("times", "blocks")
VALUES = ("first_time", "has_sessions", "has_accounts", "has_users", "has_domains", "has_types", "has_service",
          "measured", "bytes")  # fmt: skip


class TaskCheckpoint(Checkpoint):
    """A file of encoded partitions, and the number of partitions of the run."""

    kind: ClassVar[CheckpointKind] = replace(
        CHECKPOINT,
        exists="{path}: the checkpoint of an unfinished run exists. Continue it with --resume, or delete it and the "
        "work folder ({path}.work, unless --work-dir names another) to start over.",
    )

    @property
    def work(self) -> str:
        """The default work folder, which is kept together with the checkpoint."""
        return f"{self.path}.work"

    @property
    def holds_work(self) -> bool:
        """Whether partitions are saved."""
        return self._count > 0

    def begin_tasks(self, encoder: Encoder, inputs: list[sources.LogSource], *, partitions: int, by_time: bool) -> int:
        """Record what the partitions depend on; returns their number, which is that of the earlier run."""
        order = {"--keep-order, --sample-sessions": by_time}
        return self.begin(encoder, inputs, settings=order, partitions=partitions)["partitions"]

    def saved(self, store: Store) -> list[EncodedPartition]:
        """The encoded partitions of the earlier run, in order; none if the work folder has lost rows of them."""
        partitions = [unpacked_partition(data) for data in self.payloads()]
        if all(store.has(f"{ENCODED}/{number}") for number in range(len(partitions))):
            return partitions
        self.discard()
        return []

    def append_partition(self, partition: EncodedPartition) -> None:
        """Save the next partition, whose rows are in the work folder."""
        self.append_payload(packed_partition(partition))


def packed_partition(partition: EncodedPartition) -> bytes:
    """Serialise an encoded partition: a JSON header, and the batch of each piece."""
    values: dict[str, Any] = {name: getattr(partition, name) for name in VALUES}
    values |= {name: getattr(partition, name).tolist() for name in ARRAYS}
    values["pieces"] = [asdict(piece) | {"data": None} for piece, _ in partition.batches]
    frames = [json.dumps(values).encode(), *(packed(batch) for _, batch in partition.batches)]
    return b"".join(part for frame in frames for part in (LENGTHS.pack(len(frame)), frame))


def unpacked_partition(data: bytes) -> EncodedPartition:
    """The partition that `packed_partition` serialised.

    >>> none = np.empty(0, np.int64)
    >>> partition = EncodedPartition([], none, none, None, False, False, False, False, False, False, [], 7)
    >>> unpacked_partition(packed_partition(partition)).bytes
    7
    """
    header, *batches = _frames(data)
    values = json.loads(header)
    pieces = [LogPiece(**piece) for piece in values.pop("pieces")]
    arrays: dict[str, Any] = {name: np.array(values.pop(name), dtype=np.int64) for name in ARRAYS}
    return EncodedPartition(list(zip(pieces, map(unpacked, batches), strict=True)), **arrays, **values)


def _frames(data: bytes) -> Iterator[bytes]:
    place = 0
    while place < len(data):
        (size,) = LENGTHS.unpack_from(data, place)
        place += LENGTHS.size + size
        yield data[place - size : place]
