"""The portable profile: rows that every reader of Mooncake traces can read.

Four keys; whole milliseconds; prompts and outputs of at least one token; an id for every tail block, and one block size
for each id; no sessions, because some readers treat the rows of a session as increments.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..._base.arrays import offsets_of
from ..._base.errors import UsageError
from ..._base.files import PACKED, Content, require_name
from ...trace.columns import replace_columns
from ...trace.normalise import normalise
from ...trace.trace import Trace
from .. import mooncake
from .losses import Losses

MAX_IDS = 2**31  # some readers store ids in 32 bits
SIDECAR = True


def adapt(trace: Trace) -> tuple[Trace, list[str]]:
    """The trace in the portable profile, and a sentence for each loss.

    >>> from kvtrace.trace.building import toy
    >>> adapt(toy("0 1", "0 2", gap_ms=0.4))
    (Trace(2 requests, 4 blocks, 3 distinct, block_size=1, tail=kept), ['1 time was rounded to whole milliseconds.'])
    """
    losses = Losses()
    trace = losses.without_empty_prompts(trace)
    losses.unshared_prompts(trace)
    columns = losses.some_output(replace_columns(trace))
    losses.rounded_times(columns)
    losses.drop_outputs(columns)
    losses.drop_sessions(columns)
    losses.drop_extra(columns)
    rule = trace.tail
    if rule == "dropped" and _complete_tails(columns, trace, losses):
        rule = "unique"
    _one_size_an_id(columns, trace.block_size, losses)
    columns, _ = normalise(columns)
    return Trace(**vars(columns), block_size=trace.block_size, tail=rule, meta=trace.meta), losses.sentences


def check_name(path: str | Path) -> None:
    """UsageError if the name has a suffix of compression (clients read plain files only) or of another content."""
    if Path(path).suffix.lower() in PACKED:
        raise UsageError(f"{path}: the client reads plain files only. Remove {Path(path).suffix} from the name.")
    require_name(path, Content.JSON_LINES, "the client's input")


def write(stream: BinaryIO, trace: Trace, *, first_id: int = 0, name: str = "") -> None:
    """Write the rows as JSON Lines; UsageError if ids do not fit 31 bits."""
    require_small_ids(trace, first_id)
    mooncake.write(stream, trace, first_id=first_id)


def require_small_ids(trace: Trace, first_id: int) -> None:
    """UsageError if an id is below 0 or above 31 bits."""
    if not 0 <= first_id <= MAX_IDS - trace.distinct:
        raise UsageError(f"--first-id {first_id:,} makes ids outside 0 ... 2^31 - 1, the client's range.")


def _complete_tails(columns, trace, losses) -> bool:
    """Give each dropped tail block a new id; True if the trace has tails now."""
    missing = trace.input_length % trace.block_size != 0
    count = int(missing.sum())
    columns.hash_ids = np.insert(columns.hash_ids, columns.offsets[1:][missing], trace.distinct + np.arange(count))
    columns.offsets = columns.offsets + offsets_of(missing)
    losses.add(
        count,
        "dropped tail block got a new id.",
        "dropped tail blocks got new ids.",
    )
    return True


def _one_size_an_id(columns, block_size, losses) -> None:
    """Give new ids to tail blocks whose id also identifies a block of another size."""
    rows = np.flatnonzero(columns.input_length % block_size)
    at = columns.offsets[1:][rows] - 1  # places of the tail blocks
    sizes, distinct = columns.input_length[rows] % block_size, int(columns.hash_ids.max(initial=-1)) + 1
    first_size = np.full(distinct, -1, dtype=np.int64)  # id -> tokens of its block
    first_size[columns.hash_ids[at][::-1]] = sizes[::-1]
    full = np.ones(len(columns.hash_ids), dtype=bool)
    full[at] = False
    first_size[columns.hash_ids[full]] = block_size
    clash = first_size[columns.hash_ids[at]] != sizes
    pairs = columns.hash_ids[at[clash]] * (block_size + 1) + sizes[clash]  # one number for an id and a size
    renamed = columns.hash_ids.copy()
    renamed[at[clash]] = distinct + np.unique(pairs, return_inverse=True)[1]
    columns.hash_ids = renamed
    losses.add(int(clash.sum()), "tail block had the id of a block of another size and got a new one.",
               "tail blocks had ids of blocks of another size and got new ones.")  # fmt: skip
