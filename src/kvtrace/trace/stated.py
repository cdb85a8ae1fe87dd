"""Prompts whose blocks are stated: a source gives each prompt more or fewer blocks than its tokens fill.

Recordings that count tokens with another tokenizer than the one that hashed the blocks are like that. A Trace keeps
them as they are (tail `stated`); where tokens and blocks must agree, `with_whole_prompts` gives a trace where they do.
"""

from __future__ import annotations

import numpy as np

from .._base.errors import InputError
from .._base.offsets import in_first, offsets_of
from .columns import STATED, Columns, replace_columns, require_trace
from .normalise import uneven
from .trace import Trace


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
    is_stated = in_first(stated, own)
    ids = np.empty(len(is_stated), dtype=np.int64)
    ids[is_stated] = trace.hash_ids
    ids[~is_stated] = trace.distinct + np.arange(int(own.sum()))
    columns = replace_columns(
        trace, input_length=tokens, hash_ids=ids, offsets=offsets_of(stated + own), output_ids=None, output_offsets=None
    )
    return Trace.from_columns(columns, block_size=size, tail="dropped", meta=trace.meta)
