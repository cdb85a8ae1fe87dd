"""k-sharing: a block that fewer than k contributors share is split, so that nobody sees who else sent what they guess.

Along a chain the contributors of a block only get fewer, so what is split lies below what is not: every hit stays a
prefix.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..trace.columns import replace_columns
from ..trace.trace import Trace
from .contributors import Contributors


def count_contributors(trace: Trace, contributor: np.ndarray) -> np.ndarray:
    """Different contributors of each block (block -> contributors, int32), outputs included.

    >>> from kvtrace.trace.building import toy
    >>> count_contributors(toy("0 1", "0 2", "0 1"), np.array([0, 1, 0]))
    array([2, 1, 1], dtype=int32)
    """
    from .._native import sharing

    return sharing.count_contributors(_parts(trace), contributor, trace.distinct)


def split_below(trace: Trace, contributor: np.ndarray, k: int) -> Trace:
    """The trace with each block of 2 to k - 1 contributors split into one block a contributor.

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
    ids = sharing.split(_parts(trace), contributor, few, trace.distinct)
    columns = replace_columns(trace, hash_ids=ids[0], output_ids=ids[1] if len(ids) > 1 else None)
    return Trace.from_columns(columns, block_size=trace.block_size, tail=trace.tail, meta=trace.meta)


def share_by_k(trace: Trace, k: int, find: Callable[[Trace], Contributors]) -> tuple[Trace, Contributors]:
    """The trace after splitting, and its contributors; `find` says who they are.

    Where contributors are inferred from the blocks, splitting changes what can be inferred: it is done again until
    whoever infers them from the result finds no block of 2 to k - 1 contributors.
    """
    while True:
        found = find(trace)
        after = split_below(trace, found.contributor, k)
        if after is trace or found.kind != "inferred":
            return after, found
        trace = after


def exposed(trace: Trace, contributor: np.ndarray, k: int) -> np.ndarray:
    """Whether each request holds a block that 2 to k - 1 contributors share.

    >>> from kvtrace.trace.building import toy
    >>> exposed(toy("0 1", "0 1", "0"), np.array([0, 1, 2]), 3)
    array([ True,  True, False])
    """
    count = count_contributors(trace, contributor)
    few, found = (count > 1) & (count < k), np.zeros(len(trace), dtype=bool)
    for ids, offsets in _parts(trace):
        found[np.repeat(np.arange(len(trace)), np.diff(offsets))[few[ids]]] = True
    return found


def _parts(trace):
    parts = [(trace.hash_ids, trace.offsets)]
    return parts if trace.output_ids is None else [*parts, (trace.output_ids, trace.output_offsets)]
