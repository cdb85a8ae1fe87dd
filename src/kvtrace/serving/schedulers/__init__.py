"""Who gets tokens in a step, who is admitted, and who is preempted: one file and one row for each scheduler."""

from __future__ import annotations

from collections.abc import Iterable

from ...cache.engines import EngineName
from .base import BatchLimits, Scheduler
from .dynamo import DynamoCost, DynamoScheduler
from .sglang import SglangScheduler
from .simple import ReserveScheduler
from .vllm import VllmScheduler

# engine -> its own scheduler; the others are served by ReserveScheduler
SCHEDULERS: dict[str, type[Scheduler]] = {"vllm": VllmScheduler, "sglang": SglangScheduler, "dynamo": DynamoScheduler}

COSTS = {"dynamo": DynamoCost}  # engine -> the step times that it has without a GPU


def cost_of(engines: Iterable[str]) -> DynamoCost | None:
    """The step times of the engine that has some of its own; None if none of these engines does.

    >>> cost_of(["vllm", "dynamo"]) == DynamoCost(), cost_of(["vllm"])
    (True, None)
    """
    return next((COSTS[engine]() for engine in engines if engine in COSTS), None)


def scheduler_of(engine: EngineName, limits: BatchLimits | None = None) -> Scheduler:
    """The scheduler of an engine, with its defaults or with the limits of a batch.

    >>> scheduler_of("vllm").name, scheduler_of("reference", BatchLimits(512, 4)).limits.requests
    ('vllm', 4)
    """
    scheduler = SCHEDULERS.get(engine, ReserveScheduler)()
    return scheduler if limits is None else scheduler.limited(limits)
