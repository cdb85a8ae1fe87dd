"""Who gets tokens in a step, who is admitted, and who is preempted: one file and one row for each scheduler."""

from __future__ import annotations

from .base import BatchLimits, Scheduler
from .dynamo import DynamoScheduler
from .reserve import ReserveScheduler
from .sglang import SglangScheduler
from .vllm import VllmScheduler

# engine -> its own scheduler; the others are served by ReserveScheduler
SCHEDULERS: dict[str, type[Scheduler]] = {"vllm": VllmScheduler, "sglang": SglangScheduler, "dynamo": DynamoScheduler}


def scheduler_of(engine: str, limits: BatchLimits | None = None) -> Scheduler:
    """The scheduler of an engine, with its defaults or with the limits of a batch.

    >>> scheduler_of("vllm").name, scheduler_of("reference", BatchLimits(512, 4)).limits.requests
    ('vllm', 4)
    """
    scheduler = SCHEDULERS.get(engine, ReserveScheduler)()
    return scheduler if limits is None else scheduler.limited(limits)
