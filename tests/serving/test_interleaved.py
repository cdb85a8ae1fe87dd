"""The loop of instances that affect each other: as `Serving` if they do not, and events between their turns."""

import random

import numpy as np
import pytest

from kvtrace.cache.demand import block_demand
from kvtrace.cache.simulation import Setting
from kvtrace.serving.instances import make_router
from kvtrace.serving.schedulers.dynamo import DynamoCost, DynamoScheduler
from tests.serving.scheduler_cases import dynamo_case, trace_of

NAMES = ("instance", "cached", "started", "first", "ended", "preempted")


def run_of(case, router, interleaved):
    """The outcomes of a case, and the simulation."""
    from kvtrace.serving.core.instance import Requests
    from kvtrace.serving.core.interleaved import InterleavedServing
    from kvtrace.serving.core.serving import DynamoRouter, Serving

    trace, capacity, scheduler = trace_of(case), case["capacity"], DynamoScheduler(**case["settings"])
    setting = scheduler.setting_of(Setting(capacity, engine="dynamo"))
    demand = block_demand(trace, *setting.demand_options)
    requests = Requests(trace.timestamp / 1000, *scheduler.lengths(trace), demand.max_blocks)
    caches = [scheduler.engine(setting, demand, ()) for _ in range(3)]
    terms = DynamoCost().terms(capacity * trace.block_size)
    instances = [scheduler.instance(cache, requests, terms, prefetch=True) for cache in caches]
    if router == "dynamo":
        chooser = DynamoRouter(caches, requests, demand.blocks, trace.block_size)
    else:
        chooser = make_router(trace, router, caches)
    run = (InterleavedServing if interleaved else Serving)(instances, chooser, requests, capacity)
    run.advance(len(trace))
    run.close()
    return np.array([requests.outcomes[name] for name in NAMES], dtype=float).T, run


@pytest.mark.parametrize("router", ["round-robin", "kv-aware", "dynamo"])
def test_instances_that_do_not_affect_each_other_run_as_in_serving(router):
    for seed in range(40):
        case = dynamo_case(random.Random(seed))
        (alone, _), (together, run) = (run_of(case, router, interleaved) for interleaved in (False, True))
        assert together[:, [0, 1, 5]].tolist() == alone[:, [0, 1, 5]].tolist(), seed
        assert together[:, 2:5] == pytest.approx(alone[:, 2:5], abs=1e-9), seed
        assert run.turns > 0
