"""SGLang's prefix cache: a radix tree of pages, whole unlocked leaves evicted first.

Semantics: SGLang 0.5.23, RadixCache and its eviction orders (sglang/srt/mem_cache/radix_cache.py, evict_policy.py).
Checked: against that code, unmodified, over SGLang's page allocators: each request's hits and all early frees, in
23 settings of the Mooncake conversation trace that take in each mode, schedule and order, and on random traces in any
setting (tests/clients/test_sglang_cache.py, tests/vectors/engine_sglang.json). The default, UnifiedRadixCache, was not
run here.

What stays out: pages set aside beyond those needed (at page sizes over 1 SGLang evicts as if each request took one page
more); prompts prefilled in chunks, which cut nodes where chunks end; waiting requests that refresh what they will hit;
host memory (HiCache); the order tlru. SGLang lets a request wait where we free the oldest live one early.
"""

from __future__ import annotations

import numpy as np

from ..._base.errors import UsageError
from ...trace.trace import Trace
from ..core.radix import Radix
from ..demand import Jobs
from ..policies.base import Context


def build(jobs: Jobs, context: Context, policy: str = "lru") -> Radix:
    """SGLang's cache of `context.capacity` blocks for the jobs, with one of its eviction orders.

    `priority` takes each request's from the trace's extra column of that name: whole numbers, higher ones go later, one
    that is missing is 0. UsageError for an order that SGLang does not have, or where there are no priorities.

    >>> from kvtrace.cache.demand import jobs
    >>> from kvtrace.trace.building import toy
    >>> asked = jobs(toy("0 1 2", "3", "0 1 2"), recompute_last=True)
    >>> cache = build(asked, Context(blocks=asked.blocks, capacity=5, jobs=asked))
    >>> cache.advance(3)
    >>> cache.hits.tolist()
    [0, 0, 2]
    """
    return Radix(context, jobs, policy, priorities(jobs.trace) if policy == "priority" else None)


def priorities(trace: Trace) -> np.ndarray:
    """Each request's priority, int64, by the trace's extra column; UsageError where that is missing or not whole."""
    if "priority" not in trace.extra:
        raise UsageError("the trace has no column 'priority'. Try another policy, or give its rows one.")
    column = trace.extra["priority"]
    if column.dtype.kind == "O":  # rows without a value hold None
        column = np.array([0 if value is None else value for value in column])
    if column.dtype.kind == "f":
        column = np.where(np.isnan(column), 0.0, column)
    if column.dtype.kind not in "if" or not np.isfinite(column).all() or (column != np.trunc(column)).any():
        raise UsageError("the trace's column 'priority' holds values that are no whole numbers. Try another policy.")
    return column.astype(np.int64)
