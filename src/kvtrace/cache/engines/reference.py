"""The founding document's cache: hash(prefix, own tokens) names a block, idle blocks wait in a pool for reuse.

Version: Ziyuan Lin, "Hashing Table Prefixing Implementation Report", 2024-03-17; vLLM's RFC #2614 is the same but for
the capacity, which live and idle blocks share there. Source of the semantics: that report and docs/cache/simulate.md.
Checked: against its twin tests/reference/pool.py, request by request, and against the hit curve.
"""

from __future__ import annotations

from ..._base.errors import UsageError
from ..core.pool import Pool
from ..policies import make

COUNTS = ("total", "idle")
POOLS = ("flat", "leaf-first")


def build(jobs, context, policy="lru", *, capacity_counts="total", pool="flat"):
    """A pool whose capacity bounds all blocks or the idle ones, in which any idle block or only a leaf may go."""
    for name, value, known in (("capacity-counts", capacity_counts, COUNTS), ("pool", pool, POOLS)):
        if value not in known:
            raise UsageError(f"there is no {name} {value!r}. Try {' or '.join(known)}.")
    order = make(policy, context)
    return Pool(context, jobs, order, total=capacity_counts == "total", leaf_first=pool == "leaf-first")
