"""The routers, by name. docs/serving/instances.md explains them; core/router.py computes their choices."""

from __future__ import annotations

from .._base.errors import UsageError

ROUTERS = {
    "round-robin": "each instance in turn",
    "sticky": "the instance of the session, or of the prompt's second block if the trace has no sessions",
    "overlap": "the instance with the most hit blocks; of equal ones the first",
    "least-loaded": "the instance with the fewest active tokens; of equal ones the one with the fewest requests so far",
    "kv-aware": "the lowest sum of blocks to compute and active blocks, as Dynamo's router with a weight of 1",
    "lmetric": "the lowest product of tokens to compute and (active requests + 1): LMetric (arXiv 2603.15202)",
}
PLANNED = tuple(name for name in ROUTERS if name != "overlap")  # overlap sends all requests to one instance


def check_router(name: str) -> None:
    """Raise UsageError if the name is not a router."""
    if name not in ROUTERS:
        raise UsageError(f"{name!r} is not a router. Try {', '.join(ROUTERS)}.")
