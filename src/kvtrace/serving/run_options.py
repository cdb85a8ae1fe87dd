"""What a run is made of beside its cache: its instances, and the deployment that serves it in time.

Two frozen records, as `cache/setup.py` has that of the cache. The fields with help are options of commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .._base.options import option
from .routers import ROUTERS, RouterName

if TYPE_CHECKING:
    from ..cache.engines import EngineName
    from .calibration.costs import Costs
    from .hardware.roofline import Roofline
    from .schedulers.base import BatchLimits, Scheduler, Tier
    from .schedulers.dynamo import DynamoCost
    from .simulation import StepCost

TIME = "Instances and time"  # a group of --help


@dataclass(frozen=True)
class InstanceSetup:
    """Instances of a serving engine behind a router, each with a cache of its own; None is one cache and no router."""

    instances: int | None = option(
        None, "Number of instances behind a router, each with its own cache.", metavar="N", minimum=1, group=TIME
    )
    routers: Iterable[RouterName] | None = option(
        None, f"With --instances: {', '.join(ROUTERS)}.  [default: round-robin]", name="router", metavar="R,...",
        group=TIME,
    )  # fmt: skip
    router_seed: int = option(
        0,
        "Seed of --router dynamo, which draws among instances of equal cost, and of --start-inside.  [default: 0]",
        name="seed", metavar="N", minimum=0, group=TIME,
    )  # fmt: skip
    lower: Sequence[Tier] = ()  # in time: the tiers of an instance below the first one, which has the capacities

    @property
    def is_routed(self) -> bool:
        """Whether a router has a choice."""
        return (self.instances or 1) > 1


@dataclass(frozen=True)
class TimeSetup:
    """What serves the requests in time: the GPUs and the schedulers. Without a cost there are no times."""

    gpu: str | None = option(
        None, "With --model: simulate serving in time on {rows}, or a JSON file; prints TTFT and TPOT.", metavar="G",
        group=TIME,
    )  # fmt: skip
    gpus: int | None = option(
        None, "With --gpu or --costs: GPUs per instance.  [default: 1; with --costs as many as were measured]",
        metavar="N", minimum=1, group=TIME,
    )  # fmt: skip
    costs_file: str | None = option(
        None,
        "Costs that kvtrace calibrate wrote, in place of --gpu. --model then names another model than the measured "
        "one.",
        name="costs", metavar="FILE", group=TIME,
    )  # fmt: skip
    extrapolate: bool = option(
        False,
        "With --costs: allow runs with larger steps, batches or contexts than were measured, with a warning.",
        group=TIME,
    )  # fmt: skip
    step_tokens: int | None = option(
        None,
        "Largest number of tokens in a step: of an instance in time, or of a prompt for a --model with windows or "
        "states.  [default: 8192; with --costs as measured]",
        metavar="N", minimum=1, group=TIME,
    )  # fmt: skip
    max_requests: int | None = option(
        None,
        "In time: largest number of requests that an instance serves at once.  "
        "[default: 1024 for vllm, 2048 for sglang, else 256; with --costs as measured]",
        metavar="N", minimum=1, group=TIME,
    )  # fmt: skip
    scheduler: str | None = option(
        None,
        "In time, with --engine vllm, sglang or dynamo: options of its scheduler, with the engine's own names. "
        "Example: watermark=0.01,async_scheduling=off.",
        metavar="K=V,...", group=TIME,
    )  # fmt: skip
    model: Any = None  # a name of the catalog, or a config.json
    cost: StepCost | DynamoCost | None = None  # the time of a step
    schedulers: Mapping[str, Scheduler] | None = None  # engine -> its scheduler; the default is `scheduler_of(engine)`
    roofline: Roofline | None = None
    costs: Costs | None = None

    @property
    def timed(self) -> bool:
        """Whether the options name GPUs, or costs that were measured on some."""
        return bool(self.gpu or self.costs_file)

    @property
    def limits_steps(self) -> bool:
        """Whether an option that needs times is given."""
        return bool(self.step_tokens or self.max_requests or self.scheduler)

    def scheduled(self, engines: Sequence[EngineName]) -> TimeSetup:
        """The deployment with the schedulers of these engines, if it has a cost."""
        if not self.cost:
            return self
        return replace(self, schedulers={engine: self._scheduler_of(engine) for engine in engines})

    @property
    def capacity_tokens(self) -> int:
        """The tokens that the GPUs of an instance hold."""
        return min(self._held(scheduler.limits) for scheduler in (self.schedulers or {}).values())

    def _held(self, limits: BatchLimits) -> int:
        assert self.roofline is not None
        if self.costs:
            return self.costs.capacity_tokens(self.roofline, limits)
        return self.roofline.capacity_tokens(limits.step_tokens, limits.requests)

    def _scheduler_of(self, engine: EngineName) -> Scheduler:
        from .schedulers import BatchLimits, scheduler_of
        from .schedulers.base import with_options

        scheduler = scheduler_of(engine)
        limits = self.costs.batch_limits if self.costs else scheduler.limits
        scheduler = scheduler.limited(
            BatchLimits(self.step_tokens or limits.step_tokens, self.max_requests or limits.requests)
        )
        return with_options(scheduler, self.scheduler) if self.scheduler else scheduler
