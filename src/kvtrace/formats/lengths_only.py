"""Files of lengths only: no row has hash_ids, so it is unknown which prompts share a prefix.

GuideLLM's `trace_synthetic` reads such JSON Lines. Each prompt gets blocks of its own, which nothing else has, so that
the trace has its length in blocks; its `meta` says that shared prefixes are unknown, and no hit rate follows from it.
"""

from __future__ import annotations

import numpy as np

from .._base.offsets import offsets_of
from ..trace.columns import TAILS
from ..trace.invariants import MAX_LENGTH, expected_blocks
from .read_result import ReadResult

BLOCK_SIZE = 512  # tokens, where neither an option nor a sidecar states it; as for a log of lengths


def make_up_blocks(result: ReadResult, block_size: int | None, tail: str | None) -> tuple[int, str]:
    """Give each prompt of a file of lengths only blocks of its own; returns their size, and the kind of tails.

    Given values come first, then those of the sidecar.

    >>> from kvtrace.trace.columns import Columns
    >>> result = ReadResult(Columns([0, 1], [5, 4], [1, 1], [], [0, 0, 0]), "day.jsonl", "mooncake", lengths_only=True)
    >>> make_up_blocks(result, 4, None), result.columns.hash_ids.tolist(), result.columns.offsets.tolist()
    ((4, 'kept'), [0, 1, 2], [0, 2, 3])
    """
    sidecar, columns = result.sidecar, result.columns
    size = block_size or (sidecar and sidecar.block_size) or BLOCK_SIZE
    tail = tail or (sidecar and sidecar.tail) or "kept"
    if (long := np.flatnonzero(columns.input_length > MAX_LENGTH)).size:
        raise result.error(long[0], f"input_length is more than {MAX_LENGTH:,} tokens.")
    rule = tail if tail in TAILS else "kept"
    columns.offsets = offsets_of(np.maximum(expected_blocks(columns.input_length, size, rule), 0))
    columns.hash_ids = np.arange(columns.offsets[-1])
    return size, rule
