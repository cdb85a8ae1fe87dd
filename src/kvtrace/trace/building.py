"""Build traces from chunks of columns, from other traces, and from strings; and traces whose blocks are stated.

Where a recording counts tokens with another tokenizer than the one that hashed the blocks, prompts have more or fewer
blocks than their tokens fill. A Trace keeps them as they are (tail `stated`); where tokens and blocks must agree,
`with_whole_prompts` gives a trace where they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .._base.arrays import in_first, offsets_of
from .._base.errors import InputError, UsageError
from .columns import NUMBERS, STATED, BlockRule, Columns, replace_columns, require_trace
from .dependencies import join_dependencies
from .invariants import require_own_blocks
from .meta import with_unknown_prefixes
from .normalise import uneven
from .trace import Trace


def toy(*prompts: str, block_size: int = 1, gap_ms: float = 1.0) -> Trace:
    """A small trace for examples and tests: each string is a prompt, its ids separated by spaces; all blocks are full.

    >>> toy("0 1", "0 2").input_length
    array([2, 2])
    """
    ids = [[int(word) for word in prompt.split()] for prompt in prompts]
    blocks = np.array([len(row) for row in ids], dtype=np.int64)
    columns = Columns(
        np.arange(len(ids)) * gap_ms, blocks * block_size, np.ones(len(ids)),
        np.array([block for row in ids for block in row], dtype=np.int64), offsets_of(blocks),
    )  # fmt: skip
    return Trace.from_columns(columns, block_size=block_size)


def concat(traces: Iterable[Trace], *, shared: bool = False, overlay: bool = False, gap_ms: float = 0.0) -> Trace:
    """Join several traces into one; a column that only some of them have is -1, NaN or None where it is missing.

    Args:
        traces: Traces of one block size and one kind of tail.
        shared: Equal ids mean equal blocks, and equal domains the same domain; else the ids and domains of each trace
            are its own. Sessions always are.
        overlay: All traces begin together; else each begins after the last request of the one before it.
        gap_ms: Time between the last request of a trace and the first of the next one.

    Raises:
        UsageError: There are no traces, or their block sizes or tails differ.

    >>> concat([toy("0 1"), toy("0 2")]).hash_ids
    array([0, 1, 2, 3])
    >>> concat([toy("0 1"), toy("0 1 2")], shared=True).hash_ids
    array([0, 1, 0, 1, 2])
    """
    traces = list(traces)
    if not traces:
        raise UsageError("concat needs at least one trace.")
    if len({(trace.block_size, trace.tail) for trace in traces}) > 1:
        kinds = sorted({f"{trace.block_size} ({trace.tail} tails)" for trace in traces})
        raise UsageError(f"traces with different block sizes or tails cannot be concatenated: {', '.join(kinds)}.")
    builder = TraceBuilder()
    start, first_id, first_session, first_domain, first_row = 0.0, 0, 0, 0, 0
    for trace in traces:
        part = replace_columns(trace)
        part.timestamp = part.timestamp + start
        part.hash_ids = part.hash_ids + first_id
        part.output_ids = None if part.output_ids is None else part.output_ids + first_id
        part.session = None if part.session is None else np.where(part.session < 0, -1, part.session + first_session)
        part.parent = None if part.parent is None else np.where(part.parent < 0, -1, part.parent + first_row)
        part.domain = None if part.domain is None else np.where(part.domain < 0, -1, part.domain + first_domain)
        part.dependencies = None if part.dependencies is None else part.dependencies.shifted(first_row)
        builder.add(part)
        start = start if overlay or not len(trace) else float(part.timestamp[-1]) + gap_ms
        first_id += 0 if shared else trace.distinct
        first_session += 0 if trace.session is None or not len(trace) else int(trace.session.max()) + 1
        first_domain += 0 if shared or trace.domain is None else int(trace.domain.max(initial=-1)) + 1
        first_row += len(trace)
    meta = with_unknown_prefixes(None, (trace.meta for trace in traces))
    return builder.finish(block_size=traces[0].block_size, tail=traces[0].tail, meta=meta)


class TraceBuilder:
    """Collects columns chunk by chunk and makes one Trace of them.

    >>> builder = TraceBuilder()
    >>> builder.add(Columns([0.0], [2], [1], [5, 6], [0, 2]))
    >>> builder.add(Columns([9.0], [2], [1], [5, 7], [0, 2]))
    >>> builder.finish(block_size=1).hash_ids
    array([0, 1, 0, 2])
    """

    def __init__(self) -> None:
        self._chunks: list[Columns] = []

    def add(self, columns: Columns) -> None:
        """Append rows; a `parent` and the rows of dependencies are numbers of the whole."""
        self._chunks.append(columns)

    def columns(self) -> Columns:
        """All rows so far, as they were added."""
        chunks = [chunk for chunk in self._chunks if len(chunk)] or self._chunks[:1]
        if not chunks:
            nothing = np.empty(0)
            return Columns(nothing, nothing, nothing, nothing, np.zeros(1))
        if len(chunks) == 1:
            return chunks[0]
        joined: dict[str, Any] = {
            name: np.concatenate([getattr(chunk, name) for chunk in chunks])
            for name in ("timestamp", "input_length", "output_length", "hash_ids")
        }
        joined["offsets"] = _join_offsets([chunk.offsets for chunk in chunks])
        for name in ("session", "parent", "domain"):
            joined[name] = _join_optional(chunks, name)
        if any(chunk.output_ids is not None for chunk in chunks):
            joined["output_ids"] = np.concatenate([c.output_ids for c in chunks if c.output_ids is not None])
            joined["output_offsets"] = _join_offsets(
                [np.zeros(len(c) + 1, np.int64) if c.output_offsets is None else c.output_offsets for c in chunks]
            )
        joined["dependencies"] = join_dependencies([(len(chunk), chunk.dependencies) for chunk in chunks])
        for name, number in NUMBERS.items():
            joined[name] = _join_optional(chunks, name, number.unknown)
        joined["extra"] = join_extra(chunks)
        return Columns(**joined)

    def finish(self, *, block_size: int, tail: BlockRule = "kept", meta: Mapping[str, Any] | None = None) -> Trace:
        """One Trace of all rows: sorted by time, times from 0, ids renumbered."""
        return Trace.from_columns(self.columns(), block_size=block_size, tail=tail, meta=meta)


def join_extra(chunks: Sequence[Any]) -> dict[str, np.ndarray]:
    """The `extra` columns of chunks end to end; None where a chunk does not have a column."""
    names = dict.fromkeys(name for chunk in chunks for name in chunk.extra)
    return {name: _join_extra(chunks, name) for name in names}


def _join_offsets(arrays):
    return offsets_of(np.concatenate([np.diff(offsets) for offsets in arrays]))


def _join_optional(chunks, name, missing=-1):
    if all(getattr(chunk, name) is None for chunk in chunks):
        return None
    return np.concatenate([np.full(len(c), missing) if getattr(c, name) is None else getattr(c, name) for c in chunks])


def _join_extra(chunks, name):
    arrays = [chunk.extra.get(name) for chunk in chunks]
    kinds = {None if array is None else array.dtype.kind for array in arrays}
    if len(kinds) > 1:  # missing in some chunks, or of different types: only an object array fits all
        arrays = [
            np.full(len(c), None, object) if array is None else array.astype(object)
            for c, array in zip(chunks, arrays, strict=True)
        ]
    return np.concatenate(arrays)


def uneven_prompts(columns: Columns, block_size: int) -> tuple[int, int]:
    """The numbers of prompts with more blocks than their tokens fill, and with fewer.

    >>> uneven_prompts(Columns([0, 1, 2], [4, 9, 8], [1, 1, 1], [0, 1, 0, 0, 1], [0, 2, 3, 5]), 4)
    (1, 1)
    """
    extra = np.diff(columns.offsets) - columns.input_length // block_size
    return int((extra > 0).sum()), int((extra < 0).sum())


def stated_note(trace: Columns, tail: str, block_size: int) -> list[str]:
    """A sentence on prompts with stated blocks, if a trace has any.

    >>> stated_note(Columns([0], [4], [1], [0, 1], [0, 2]), "stated", 4)
    ['1 prompt has more blocks than its tokens fill; the block counts are kept.']
    """
    return [f"{uneven(*uneven_prompts(trace, block_size))}."] if tail == STATED else []


def require_rule(tail: str, use: str) -> None:
    """InputError if block counts are stated, for a use that derives them from lengths.

    >>> require_rule("stated", "a release")
    Traceback (most recent call last):
    kvtrace._base.errors.InputError: a release needs prompts with the blocks that their tokens fill, but this trace \
states other block counts (tail: stated).
    """
    if tail == STATED:
        raise InputError(
            f"{use} needs prompts with the blocks that their tokens fill, but this trace states other block counts "
            "(tail: stated)."
        )


def with_whole_prompts(trace: Trace) -> Trace:
    """A trace whose prompts have the blocks that their tokens fill, as an engine needs them; others are returned as is.

    Tokens without a stated block are blocks that only this request has: they take room and never hit. A prompt is at
    least as long as its stated blocks. Outputs lose their blocks.

    >>> columns = Columns([0, 1], [12, 4], [1, 1], [0, 0, 1], [0, 1, 3])
    >>> whole = with_whole_prompts(Trace.from_columns(columns, block_size=4, tail="stated"))
    >>> whole.hash_ids, whole.input_length
    (array([0, 1, 2, 0, 3]), array([12,  8]))
    """
    require_trace(trace)
    if trace.tail != STATED:
        return trace
    stated, size = trace.prompt_blocks, trace.block_size
    tokens = np.maximum(trace.input_length, stated * size)
    own = tokens // size - stated
    require_own_blocks(own * size, size, "prompts without ids")
    is_stated = in_first(stated, own)
    ids = np.empty(len(is_stated), dtype=np.int64)
    ids[is_stated] = trace.hash_ids
    ids[~is_stated] = trace.distinct + np.arange(int(own.sum()))
    columns = replace_columns(
        trace, input_length=tokens, hash_ids=ids, offsets=offsets_of(stated + own), output_ids=None, output_offsets=None
    )
    return Trace.from_columns(columns, block_size=size, tail="dropped", meta=trace.meta)
