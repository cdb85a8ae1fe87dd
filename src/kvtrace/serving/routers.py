"""The names of the routers, whose choices `core/serving.py` computes. docs/cache/simulate.md explains them."""

from __future__ import annotations

from typing import Literal

from .._base.errors import UsageError

RouterName = Literal["round-robin", "sticky", "overlap", "least-loaded", "kv-aware", "dynamo", "lmetric"]
ROUTERS: dict[RouterName, str] = {
    "round-robin": "each instance in turn",
    "sticky": "the instance of the session, or of the prompt's second block if the trace has no sessions",
    "overlap": "the instance with the most hit blocks; of equal ones the first",
    "least-loaded": "the instance with the fewest prompt tokens of active requests; then with fewest requests so far",
    "kv-aware": "the lowest sum of blocks to compute and active blocks, as Dynamo's router with a weight of 1",
    "dynamo": "Dynamo's KV router, in time only: tokens to compute in blocks, and distinct blocks of active prompts",
    "lmetric": "the lowest product of tokens to compute and (active requests + 1): LMetric (arXiv 2603.15202)",
}
TIMED = ("dynamo",)  # routers that need a simulation in time
FULL_ATTENTION = ("kv-aware", "dynamo")  # routers that count the blocks of one group of full attention
UNPLANNED = ("overlap", *TIMED)  # overlap sends all requests to one instance; dynamo is one product's kv-aware
PLANNED: tuple[RouterName, ...] = tuple(name for name in ROUTERS if name not in UNPLANNED)


def check_router(name: str, *, in_time: bool = True) -> None:
    """Raise UsageError if the name is not a router, or is not one of a simulation without times."""
    if name not in ROUTERS:
        raise UsageError(f"{name!r} is not a router. Try {', '.join(ROUTERS)}.")
    if name in TIMED and not in_time:
        raise UsageError(
            f"--router {name} needs a simulation in time. Add --engine dynamo, or --model and --gpu; or try kv-aware."
        )
