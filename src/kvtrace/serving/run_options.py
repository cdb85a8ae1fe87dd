"""What a run is made of beside its cache: its instances, and what serves it in time.

Two frozen records, as `cache/setup.py` has that of the cache. The fields with help are options of commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from .._base.options import option
from .deployment import TIME as TIME
from .deployment import Deployment
from .fleet_schedule import FleetSchedule, read_fleet
from .routers import ROUTERS, RouterName

if TYPE_CHECKING:
    from ..cache.engines import EngineName
    from ..cache.layout import CacheLayout, Drafting
    from ..cache.tiers import Tier
    from .calibration.costs import Costs
    from .hardware.roofline import Roofline
    from .schedulers.base import Scheduler
    from .schedulers.dynamo import DynamoCost
    from .simulation import StepCost


LOOKAHEAD_FROM = (0, 27)  # vLLM 0.26.0 drops a hit's last block, 0.33.0 hashes the token after a block too


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
        "Seed of the routers that draw, dynamo and vllm-dp, and of --start-inside.  [default: 0]",
        name="seed", metavar="N", minimum=0, group=TIME,
    )  # fmt: skip
    router_options: str | None = option(
        None,
        "With --router sglang-cache-aware: options of the gateway, with its own names. Example: "
        "cache_threshold=0.5,balance_abs_threshold=32.",
        metavar="K=V,...", group=TIME,
    )  # fmt: skip
    instances_per_host: int | None = option(
        None, "With a tier of a host (--tiers NAME=C@host): the instances that share it.  [default: all]", metavar="N",
        minimum=1, group=TIME,
    )  # fmt: skip
    fleet: FleetSchedule | None = option(
        None,
        "With --instances: changes of the fleet, as CSV (time,start,drain,replace,startup) or JSON lines; each setting "
        "also runs without them.",
        metavar="FILE", group=TIME, parse=read_fleet,
    )  # fmt: skip
    lockstep: bool = False  # in time: data-parallel ranks that begin and end their steps together
    lower: Sequence[Tier] = ()  # in time: the tiers of an instance below the first one, which has the capacities

    @property
    def is_routed(self) -> bool:
        """Whether a router has a choice."""
        return (self.instances or 1) > 1


@dataclass(frozen=True)
class TimeSetup:
    """What serves the requests: a deployment; in time, the cost of its steps and its schedulers. No cost: no times."""

    costs_file: str | None = option(
        None,
        "Costs that kvtrace calibrate wrote, in place of --gpu. --model then names another model than the measured "
        "one.",
        name="costs", metavar="FILE", group=TIME,
    )  # fmt: skip
    kernels: str | None = option(
        None, "With --gpu: steps take what kernel tables say, in place of the roofline: aiconfigurator, as kvtrace "
        "calibrate --from.", choices=("aiconfigurator",), metavar="P", group=TIME,
    )  # fmt: skip
    extrapolate: bool = option(
        False,
        "With --costs: allow runs with larger steps, batches or contexts than were measured, with a warning.",
        group=TIME,
    )  # fmt: skip
    scheduler: str | None = option(
        None,
        "In time, with --engine vllm, sglang or dynamo: options of its scheduler, with the engine's own names. "
        "Example: watermark=0.01,async_scheduling=off.",
        metavar="K=V,...", group=TIME,
    )  # fmt: skip
    deployment: Deployment = field(default_factory=Deployment)
    cost: StepCost | DynamoCost | None = None  # the time of a step
    schedulers: Mapping[str, Scheduler] | None = None  # engine -> its scheduler; the default is `scheduler_of(engine)`
    roofline: Roofline | None = None
    costs: Costs | None = None

    def resolved(self, engines: Sequence[EngineName]) -> TimeSetup:
        """The setup with the cost of a step and the schedulers of these engines, if there are times.

        UsageError if the model is missing, or the costs were measured with another engine.
        """
        deployment, costs = self.deployment, self.costs
        cost: StepCost | DynamoCost | None
        if costs is not None:
            for engine in engines:
                costs.require_engine(engine)
            roofline: Roofline | None = costs.for_deployment(deployment)
        elif deployment.gpu is not None:
            from .hardware.roofline import roofline_of

            roofline = roofline_of(deployment)
        else:
            roofline = None
        if roofline is None:
            from .schedulers import cost_of

            cost = cost_of(engines)
        else:
            from .calibration.costs import step_cost

            cost = step_cost(roofline)
        schedulers: dict[str, Scheduler] = {engine: self._scheduler_of(engine) for engine in engines} if cost else {}
        return replace(self, roofline=roofline, cost=cost, schedulers=schedulers or None)

    def with_roofline(self, roofline: Roofline) -> TimeSetup:
        """The setup on GPUs with other figures."""
        from .calibration.costs import step_cost

        return replace(self, roofline=roofline, cost=step_cost(roofline))

    def with_steps(self, factor: float) -> TimeSetup:
        """The setup with steps that take so many times as long."""
        from .simulation import StepCost

        assert isinstance(self.cost, StepCost)
        terms = {name: factor * value for name, value in vars(self.cost).items() if name.endswith("_s")}
        return replace(self, cost=replace(self.cost, **terms))

    def unfitted(self, engine: EngineName) -> Deployment | None:
        """The deployment in an engine, if the costs of its steps are those of its roofline alone."""
        if self.roofline is None or self.costs is not None:
            return None
        return replace(self.deployment, engine=engine)

    def drafting(self, engines: Sequence[EngineName]) -> dict[str, Drafting] | None:
        """Engine -> what the drafter changes in its cache; None without one. UsageError if it is not modelled there."""
        deployment, drafter = self.deployment, self.deployment.speculative
        if drafter is None:
            return None
        from ..cache.engines import drafting
        from .hardware.vllm_memory import version_of
        from .models.layers import require_one_module

        if deployment.model is not None:
            require_one_module(deployment)
        old = deployment.engine == "vllm" and version_of(deployment.engine_version) < LOOKAHEAD_FROM
        rules = {"vllm": "drop"} if old else {}
        return {engine: drafting(engine, drafter.tokens, rules.get(engine)) for engine in engines}

    def blocks_of(self, engine: EngineName, block_size: int, layout: CacheLayout | None = None) -> int:
        """Blocks of `block_size` tokens, or of the pool of a layout, that the GPUs of an instance hold.

        UsageError if the weights do not fit.
        """
        from .hardware.room import kv_room
        from .models.layers import growing_bytes, rank_layers

        deployment = self.in_memory(engine)
        if self.costs and layout is None and (tokens := self.costs.measured_tokens(deployment)):
            return max(tokens // block_size, 1)
        available = kv_room(deployment).available_bytes
        assert available is not None  # there is a GPU
        if layout is not None:
            return max(available // layout.block_bytes, 1)
        shards = deployment.decode_context_parallel_size * deployment.prefill_context_parallel_size
        return max(shards * available // (block_size * growing_bytes(rank_layers(deployment))), 1)

    @property
    def kv_bytes_per_token(self) -> int | None:
        """Bytes of a token on all GPUs of an instance, copies included; None without a model."""
        if self.deployment.model is None:  # the catalog of models need not be loaded
            return None
        from .models.layers import growing_bytes, rank_layers

        whole = replace(self.in_memory(self.deployment.engine), pipeline_parallel_size=1)
        return whole.tensor_parallel_size * growing_bytes(rank_layers(whole))

    def in_memory(self, engine: EngineName) -> Deployment:
        """The deployment in one of the engines of a run, with the limits of its scheduler there.

        Engines whose rules for memory are not modelled have vLLM's.
        """
        rules = replace(self.deployment, engine=engine).in_memory
        if not self.schedulers or engine not in self.schedulers:
            return rules
        limits = self.schedulers[engine].limits
        return replace(rules, max_num_batched_tokens=limits.step_tokens, max_num_seqs=limits.requests)

    @property
    def limits_steps(self) -> bool:
        """Whether an option that needs times is given."""
        deployment = self.deployment
        return bool(deployment.max_num_batched_tokens or deployment.max_num_seqs or self.scheduler)

    def _scheduler_of(self, engine: EngineName) -> Scheduler:
        from .hardware.room import step_limits
        from .schedulers import scheduler_of
        from .schedulers.base import with_options

        scheduler = scheduler_of(engine, step_limits(replace(self.deployment, engine=engine)))
        return with_options(scheduler, self.scheduler) if self.scheduler else scheduler
