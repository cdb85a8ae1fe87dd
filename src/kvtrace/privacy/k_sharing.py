"""k-sharing: a block that fewer than k holders share is split, so that nobody sees who else sent what they guess.

Along a chain the holders of a block only get fewer, so what is split lies below what is not: every hit stays a prefix.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..trace.columns import replace_columns
from ..trace.trace import Trace
from .contributors import Holders


def count_holders(trace: Trace, holder: np.ndarray) -> np.ndarray:
    """Different holders of each block (block -> holders, int32), outputs included.

    >>> from kvtrace.trace.building import toy
    >>> count_holders(toy("0 1", "0 2", "0 1"), np.array([0, 1, 0]))
    array([2, 1, 1], dtype=int32)
    """
    from .._native import sharing

    return sharing.count_holders(_parts(trace), holder, trace.distinct)


def split_below(trace: Trace, holder: np.ndarray, k: int) -> Trace:
    """The trace with each block of 2 to k - 1 holders split into one block a holder.

    >>> from kvtrace.trace.building import toy
    >>> split_below(toy("0 1", "0 1", "0"), np.array([0, 1, 2]), 3).hash_ids
    array([0, 1, 0, 2, 0])
    """
    from .._native import sharing

    trace.require_chained()
    count = count_holders(trace, holder)
    few = (count > 1) & (count < k)
    if not few.any():
        return trace
    ids = sharing.split(_parts(trace), holder, few, trace.distinct)
    columns = replace_columns(trace, hash_ids=ids[0], output_ids=ids[1] if len(ids) > 1 else None)
    return Trace.from_columns(columns, block_size=trace.block_size, tail=trace.tail, meta=trace.meta)


def share_by_k(trace: Trace, k: int, find: Callable[[Trace], Holders]) -> tuple[Trace, Holders]:
    """The trace after splitting, and its holders; `find` says who they are.

    Where holders are inferred from the blocks, splitting changes what can be inferred: it is done again until whoever
    infers them from the result finds no block of 2 to k - 1 holders.
    """
    while True:
        found = find(trace)
        after = split_below(trace, found.holder, k)
        if after is trace or found.kind != "inferred":
            return after, found
        trace = after


def exposed(trace: Trace, holder: np.ndarray, k: int) -> np.ndarray:
    """Whether each request holds a block that 2 to k - 1 holders share.

    >>> from kvtrace.trace.building import toy
    >>> exposed(toy("0 1", "0 1", "0"), np.array([0, 1, 2]), 3)
    array([ True,  True, False])
    """
    count = count_holders(trace, holder)
    few, found = (count > 1) & (count < k), np.zeros(len(trace), dtype=bool)
    for ids, offsets in _parts(trace):
        found[np.repeat(np.arange(len(trace)), np.diff(offsets))[few[ids]]] = True
    return found


def _parts(trace):
    parts = [(trace.hash_ids, trace.offsets)]
    return parts if trace.output_ids is None else [*parts, (trace.output_ids, trace.output_offsets)]
