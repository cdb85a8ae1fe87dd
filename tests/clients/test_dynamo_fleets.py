"""Our changing fleets take the workers, the hits and the times of Dynamo's offline replay under a policy of scaling.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `dynamo` among them.
`KVTRACE_CLIENTS=... python -m tests.clients.test_dynamo_fleets` writes the vectors anew.
"""

import random

import numpy as np
import pytest

from benchmarks.dynamo_replay import at_load, replay
from kvtrace import read
from kvtrace.serving.schedulers.dynamo import DynamoScheduler
from tests.clients import dynamo_cases
from tests.clients.dynamo_cases import needs_dynamo, require_vectors, write_vectors
from tests.serving.scheduler_cases import fleet_case, fleet_of
from tests.serving.test_dynamo_fleets import VECTORS
from tests.serving.test_dynamo_times import require_equal, served


def replayed(case, folder):
    """As `dynamo_cases.replayed`, with the changes of the fleet."""
    return dynamo_cases.replayed(case, folder, targets=case["targets"], startup_s=case["startup_s"])


@needs_dynamo
def test_random_fleets_take_the_times_of_the_replay(tmp_path):
    seed = random.SystemRandom().randrange(1 << 30)
    for number in range(seed, seed + 40):
        case = fleet_case(random.Random(number))
        require_equal(case, replayed(case, tmp_path)[1], f"seed {number}", fleet_of(case))


@needs_dynamo
def test_the_vectors_are_what_the_replay_says(tmp_path):
    require_vectors(VECTORS, replayed, tmp_path)


@needs_dynamo
@pytest.mark.parametrize("load", [1, 4])
@pytest.mark.parametrize("router", ["round_robin", "kv_router"])
def test_a_night_of_the_conversation_trace_is_that_of_the_replay(shared, router, load):
    path = shared / "data/mooncake/conversation_trace.jsonl"
    trace, minute = at_load(read(path), load), 60_000 / load
    targets = [[10 * minute, 2], [25 * minute, 4], [40 * minute, 6], [50 * minute, 1], [55 * minute, 3]]
    case = {"workers": 4, "startup_s": 90 / load, "targets": targets}
    settings = {"num_workers": 4, "router_mode": router, "arrival_speedup_ratio": float(load)}
    engine = {"path": str(path), "engine": {"num_gpu_blocks": 3_000}, "settings": settings}
    name = {"round_robin": "round-robin", "kv_router": "dynamo"}[router]
    turns, _ = served(trace, 3_000, DynamoScheduler(), 4, "round-robin", fleet=fleet_of(case))
    (seen,) = replay(trace, [engine | {"targets": targets, "startup_s": 90 / load}], turns[:, 0])
    ours, _ = served(trace, 3_000, DynamoScheduler(), 4, name, seen.worker, fleet_of(case))
    theirs = np.array([seen.worker, seen.first_reused, seen.admit, seen.first, seen.end, seen.readmitted]).T
    assert (ours[:, [0, 1, 5]] == theirs[:, [0, 1, 5]]).all()
    assert np.abs(ours[:, 2:5] * 1000 - theirs[:, 2:5]).max() < 1e-3


def make_vectors(folder, count=12):
    """Short cases that differ: both routers, workers that start and drain."""
    chosen = []
    for seed in range(30_000, 40_000):
        case = fleet_case(random.Random(seed))
        if len(chosen) == count:
            break
        if len(case["requests"]) > 16 or (len(chosen) % 2 == 0) != (case["router"] == "dynamo"):
            continue
        version, requests = replayed(case, folder)
        workers = [request[0] for request in requests]
        if max(workers) >= case["workers"] and len(set(workers)) > 2:
            chosen.append({"case": case, "requests": requests})
    return {"engine": "dynamo", "version": version, "vectors": chosen}


if __name__ == "__main__":
    write_vectors("dynamo_fleets", make_vectors)
