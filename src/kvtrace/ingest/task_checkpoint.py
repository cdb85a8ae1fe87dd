"""The checkpoint of a run in tasks: the encoded partitions, whose rows lie in the work folder.

    header   that of checkpoint.py, and the number of partitions
    frames   one a partition: the counts and rejects of its pieces (task_checkpoint.py), as checkpoint.py frames batches

Encoding is nearly all of the work, so a resumed run encodes the partitions that are missing and repeats the stages.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, ClassVar

import numpy as np

from .._base.checkpoint import CheckpointKind
from ..privacy.numbering.store import Store
from ..privacy.numbering.task_plan import ENCODED
from .batch_codec import packed, unpacked
from .checkpoint import CHECKPOINT, Checkpoint
from .encoding import Encoder
from .encoding_tasks import EncodedPartition
from .logs import sources
from .logs.sources import LogPiece

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
