"""The cache of Lin's report: hash(prefix, own tokens) names a block, and idle blocks wait in a pool for reuse.

Version: Ziyuan Lin, "Hashing Table Prefixing Implementation Report", 2024-03-17. In vLLM's RFC #2614, which is
otherwise the same, active and idle blocks share the capacity. Source of the semantics: that report and
docs/cache/simulate.md. Checked: against its twin tests/reference/pool.py, request by request, and against the hit
curve.
"""

from __future__ import annotations

from ..core.pool import Pool
from ..policies import make


def build(demand, context, policy="lru", *, capacity_counts="total", pool="flat"):
    """Build a pool: the capacity limits all blocks or the idle ones; the victims are any idle blocks or leaves."""
    return Pool(
        context, demand, make(policy, context), total=capacity_counts == "total", leaf_first=pool == "leaf-first"
    )
