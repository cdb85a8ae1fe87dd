"""SGLang's prefix cache: a radix tree of pages that evicts whole unlocked leaves.

Semantics: SGLang 0.5.23, UnifiedRadixCache with full attention, the tree of a default server since
(srt/mem_cache/registry.py, unified_cache/unified_tree_core.py), and its eviction policies (evict_policy.py). With
`tree` "radix" RadixCache (radix_cache.py), the default of earlier versions; they differ in recency and creation times.
Checked: against the unmodified code of both with SGLang's page allocators: each request's hits and all early frees, on
random traces in any setting and on the Mooncake conversation trace (tests/clients/test_sglang_cache.py,
tests/vectors/engine_sglang.json).

Not modelled: spare pages (at page sizes above 1 SGLang evicts as if each request took one page more); chunked prefill,
which splits nodes at chunk ends; waiting requests, which refresh the blocks they will hit; host memory (HiCache); the
policy tlru. If blocks run out, SGLang lets a request wait; this model ends the oldest active request early.
"""

from __future__ import annotations

import numpy as np

from ..._base.errors import UsageError
from ...trace.trace import Trace
from ..core.radix import Radix
from ..demand import BlockDemand
from ..layout import CacheLayout
from ..policies.base import Context
from .sglang_hybrid import hybrid_tree


def build(
    demand: BlockDemand,
    context: Context,
    policy: str = "lru",
    *,
    tree: str = "unified",
    layout: CacheLayout | None = None,
) -> Radix:
    """Build SGLang's cache of `context.capacity` blocks, with one of its eviction policies and of its trees.

    A `layout` with windows adds a pool for them (sglang_hybrid.py).

    The policy `priority` reads the trace's extra column of that name: whole numbers; higher ones are evicted later, and
    a missing one is 0. UsageError for a policy that SGLang does not have, or a trace without priorities.

    >>> from kvtrace.cache.demand import block_demand
    >>> from kvtrace.trace.building import toy
    >>> demand = block_demand(toy("0 1 2", "3", "0 1 2"), recompute_last=True)
    >>> cache = build(demand, Context(blocks=demand.blocks, capacity=5, demand=demand))
    >>> cache.advance(3)
    >>> cache.hits.tolist()
    [0, 0, 2]
    """
    priority = priorities(demand.trace) if policy == "priority" else None
    if layout is None or layout.is_full:
        return Radix(context, demand, policy, priority, tree == "unified")
    if tree != "unified":
        raise UsageError("SGLang's older tree has no windows and states. Leave --tree out.")
    return hybrid_tree(demand, context, policy, priority, layout)


def priorities(trace: Trace) -> np.ndarray:
    """Each request's priority, int64, from the trace's extra column; UsageError if it is missing or not whole."""
    if "priority" not in trace.extra:
        raise UsageError("The trace has no column 'priority'. Add one, or try another --policy.")
    column = trace.extra["priority"]
    if column.dtype.kind == "O":  # rows without a value hold None
        column = np.array([0 if value is None else value for value in column])
    if column.dtype.kind == "f":
        column = np.where(np.isnan(column), 0.0, column)
    if column.dtype.kind not in "if" or not np.isfinite(column).all() or (column != np.trunc(column)).any():
        raise UsageError("The trace's column 'priority' must hold whole numbers. Try another --policy.")
    return column.astype(np.int64)
