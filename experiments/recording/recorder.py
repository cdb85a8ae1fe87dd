"""Serve a trace with a model that runs, in a time that is measured: arrivals of the trace, seconds of real steps.

Between steps the clock jumps to the next arrival, so that idle time costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from experiments.model import Transformer
from experiments.paged import BlockStore
from kvtrace.cache.demand import block_demand
from kvtrace.cache.simulation import Setting
from kvtrace.serving.schedulers.vllm import VllmScheduler
from kvtrace.serving.simulation import StepCost
from kvtrace.trace.trace import Trace

from .batch import Batch
from .executor import Executor, Step
from .prompts import Tokens

PROBED = 32  # requests of the decode step that is timed
NO_COST = asdict(StepCost(token_s=0.0))  # a step_timer takes its place


@dataclass(frozen=True, eq=False)
class Recorded:
    """The requests that were served, with their times in seconds, and the steps."""

    trace: Trace
    outcomes: dict[str, np.ndarray]  # as of `Requests.outcomes`, of the requests of `trace`
    steps: list[Step]
    rejected: int  # requests that did not fit into the cache
    left_out: int  # requests that came after the budget was spent
    wall_s: float

    @property
    def busy_s(self) -> float:
        """Seconds of all steps."""
        return sum(step.seconds for step in self.steps)


def serve(
    trace: Trace,
    model: Transformer,
    store: BlockStore,
    scheduler: VllmScheduler,
    *,
    way: str = "gathered",
    clock: Callable[[], float] = time.perf_counter,
    estimate_s: np.ndarray | None = None,
    budget_s: float = float("inf"),
    on_step: Callable | None = None,
    progress: Callable[[int], None] | None = None,
) -> Recorded:
    """Serve a trace; no more requests arrive when those that are active will use up the budget.

    Args:
        trace: The requests.
        model: The model that runs.
        store: Its KV.
        scheduler: What plans the steps.
        way: The way of attention.
        clock: What measures the seconds of a step.
        estimate_s: The estimated seconds of each request.
        budget_s: Seconds of wall-clock time.
        on_step: Receives each batch and its logits.
        progress: Receives the number of requests that have arrived.
    """
    run, instance, requests, cache = served_by(scheduler, trace, store.slots)
    executor = Executor(model, store, Tokens(trace, model.shape.vocabulary), cache, way, clock, on_step)
    instance.step_timer = executor
    start = time.perf_counter()
    while run.row < len(trace):
        spent = time.perf_counter() - start
        if estimate_s is not None and spent + _pending(requests, estimate_s, spent) > budget_s:
            break
        run.advance(1)
        if progress is not None:
            progress(run.row)
    arrived = run.row
    run.close()
    outcomes = requests.outcomes
    served = np.flatnonzero(~np.isnan(outcomes["ended"]))
    return Recorded(
        trace[served], {name: values[served] for name, values in outcomes.items()}, executor.steps,
        arrived - len(served), len(trace) - arrived, time.perf_counter() - start,
    )  # fmt: skip


def served_by(scheduler: VllmScheduler, trace: Trace, blocks: int) -> tuple[Any, Any, Any, Any]:
    """A run of a trace on one instance, the instance, whose `step_timer` is to be set, its requests and its cache."""
    from kvtrace.serving.core.instance import Requests
    from kvtrace.serving.core.serving import Router, Serving

    setting = scheduler.setting_of(Setting(blocks, engine="vllm"))
    demand = block_demand(trace, *setting.demand_options)
    requests = Requests(trace.timestamp / 1000, *scheduler.lengths(trace), scheduler.needs(demand, setting))
    cache = scheduler.engine(setting, demand, ())
    instance = scheduler.instance(cache, requests, NO_COST, prefetch=False)
    router = Router([cache], "round-robin", np.zeros(len(trace), np.int64), trace.input_length, trace.block_size)
    return Serving([instance], router, requests, blocks), instance, requests, cache


def _pending(requests, estimate_s, spent):
    """Seconds that the active requests still take, corrected by what the ended ones took of the wall-clock time."""
    outcomes = requests.outcomes
    ended = ~np.isnan(outcomes["ended"])
    active = (outcomes["instance"] >= 0) & ~ended
    done = estimate_s[ended].sum()
    return estimate_s[active].sum() * (max(spent / done, 1.0) if done > 0 else 1.0)


@dataclass(frozen=True)
class Probe:
    """Seconds of two steps on this device."""

    token_s: float  # of a prompt token, in a step of prompts
    output_s: float  # of an output token, in a step of PROBED requests

    def seconds(self, tokens: np.ndarray, output: np.ndarray) -> np.ndarray:
        """The seconds of requests that compute so many tokens of their prompts."""
        return tokens * self.token_s + output * self.output_s


def probe(
    model: Transformer,
    store: BlockStore,
    scheduler: VllmScheduler,
    context: int,
    way: str,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Probe:
    """Time a step of one prompt and a step of decodes, each with a context; the first of each warms up."""
    vocabulary, size = model.shape.vocabulary, store.block_size
    context = max(min(context, (store.slots - 1) * size // 2), 1)
    chunk = min(scheduler.max_num_batched_tokens, 2048)
    executor = Executor(model, store, None, None, way, clock)  # type: ignore[arg-type]  # it plans nothing
    requests = min(PROBED, store.slots)

    def least(contexts, counts):
        batch = Batch.made_up(contexts, counts, store.slots, size, vocabulary)
        return min([executor.measured(batch) for _ in range(4)][1:])

    return Probe(least([context], [chunk]) / chunk, least([context] * requests, [1] * requests) / requests)
