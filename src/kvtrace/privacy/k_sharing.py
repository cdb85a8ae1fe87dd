"""k-sharing: split each block that fewer than k contributors share, so that a guess does not reveal other senders.

A block never has more contributors than its parent, so split blocks lie below shared ones and every hit stays a prefix.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..trace.columns import replace_columns
from ..trace.trace import Trace
from .contributors import Contributors


def count_contributors(trace: Trace, contributor: np.ndarray) -> np.ndarray:
    """The number of contributors of each block (block -> contributors, int32), including outputs.

    >>> from kvtrace.trace.building import toy
    >>> count_contributors(toy("0 1", "0 2", "0 1"), np.array([0, 1, 0]))
    array([2, 1, 1], dtype=int32)
    """
    from .._native import sharing

    return sharing.count_contributors(_segments(trace), contributor, trace.distinct)


def split_below(trace: Trace, contributor: np.ndarray, k: int) -> Trace:
    """The trace with each block of 2 to k - 1 contributors split into one block for each contributor.

    >>> from kvtrace.trace.building import toy
    >>> split_below(toy("0 1", "0 1", "0"), np.array([0, 1, 2]), 3).hash_ids
    array([0, 1, 0, 2, 0])
    """
    from .._native import sharing

    trace.require_chained()
    count = count_contributors(trace, contributor)
    few = (count > 1) & (count < k)
    if not few.any():
        return trace
    ids = sharing.split(_segments(trace), contributor, few, trace.distinct)
    columns = replace_columns(trace, hash_ids=ids[0], output_ids=ids[1] if len(ids) > 1 else None)
    return Trace.from_columns(columns, block_size=trace.block_size, tail=trace.tail, meta=trace.meta)


def share_by_k(trace: Trace, k: int, find: Callable[[Trace], Contributors]) -> tuple[Trace, Contributors]:
    """The trace after splitting, and its contributors, which `find` determines.

    Splitting changes the conversations that can be inferred from the blocks. Inferring and splitting therefore repeat
    until no block has 2 to k - 1 inferred contributors.
    """
    while True:
        contributors = find(trace)
        after = split_below(trace, contributors.contributor, k)
        if after is trace or contributors.kind != "inferred":
            return after, contributors
        trace = after


def exposed(trace: Trace, contributor: np.ndarray, k: int) -> np.ndarray:
    """Whether each request has a block that 2 to k - 1 contributors share.

    >>> from kvtrace.trace.building import toy
    >>> exposed(toy("0 1", "0 1", "0"), np.array([0, 1, 2]), 3)
    array([ True,  True, False])
    """
    count = count_contributors(trace, contributor)
    few, is_exposed = (count > 1) & (count < k), np.zeros(len(trace), dtype=bool)
    for ids, offsets in _segments(trace):
        is_exposed[np.repeat(np.arange(len(trace)), np.diff(offsets))[few[ids]]] = True
    return is_exposed


def _segments(trace):
    """(ids, offsets) of the prompts, and of the outputs if they have blocks."""
    prompts = [(trace.hash_ids, trace.offsets)]
    return prompts if trace.output_ids is None else [*prompts, (trace.output_ids, trace.output_offsets)]
