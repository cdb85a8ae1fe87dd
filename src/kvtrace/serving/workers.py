"""What the workers of one kind are, where prefill and decode are on different ones."""

from __future__ import annotations

from dataclasses import dataclass

from .._base.errors import UsageError
from ..cache.simulation import Setting
from .instances import Cost
from .models.shape import ModelShape
from .routers import RouterName, check_router
from .schedulers import scheduler_of
from .schedulers.base import Scheduler

ENGINES = ("vllm", "sglang")  # whose workers of one kind are modelled


@dataclass(frozen=True)
class Workers:
    """Workers of one kind: so many servers, each with as many data-parallel ranks as its deployment has."""

    cost: Cost
    setting: Setting  # the cache of each rank
    scheduler: Scheduler | None = None  # None: the engine's, with its defaults
    workers: int = 1
    ranks: int = 1
    lockstep: bool = False  # the ranks of a worker begin and end their steps together
    shape: ModelShape | None = None  # the model as a worker holds it
    router: RouterName = "round-robin"  # over all ranks of all workers: with round-robin, each worker in turn

    def __post_init__(self) -> None:
        check_router(self.router)
        if min(self.workers, self.ranks) < 1:
            raise UsageError("--prefill-workers and --decode-workers must be at least 1.")
        if self.setting.engine not in ENGINES:
            raise UsageError(
                f"Prefill and decode on different workers: engine {self.setting.engine} is not modelled. "
                f"Use --engine {' or '.join(ENGINES)}."
            )
        if self.setting.layout is not None:
            raise UsageError("Prefill and decode on different workers do not support cache groups yet.")
        if self.setting.drafting is not None:
            raise UsageError(
                "Prefill and decode on different workers do not support a drafter. Leave out --speculative."
            )
        if self.router in ("dynamo", "vllm-dp", "sglang-total-requests", "sglang-total-tokens"):
            raise UsageError(f"--router {self.router} is not modelled for workers of one kind. Try round-robin.")

    @property
    def own_scheduler(self) -> Scheduler:
        """The scheduler of each rank."""
        return self.scheduler or scheduler_of(self.setting.engine)
