"""Our simulation in time takes the times of Dynamo's offline replay, with its costs and its router.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `dynamo` among them.
`KVTRACE_CLIENTS=... python -m tests.clients.test_dynamo_times` writes the vectors anew.
"""

import random

import numpy as np
import pytest

from benchmarks.dynamo_replay import at_load, in_time, replay
from kvtrace import read
from tests.clients.dynamo_cases import needs_dynamo, replayed, require_vectors, write_vectors
from tests.serving.scheduler_cases import dynamo_case
from tests.serving.test_dynamo_times import VECTORS, require_equal


@needs_dynamo
def test_random_cases_take_the_times_of_the_replay(tmp_path):
    seed = random.SystemRandom().randrange(1 << 30)
    for number in range(seed, seed + 40):
        case = dynamo_case(random.Random(number))
        require_equal(case, replayed(case, tmp_path)[1], f"seed {number}")


@needs_dynamo
def test_the_vectors_are_what_the_replay_says(tmp_path):
    require_vectors(VECTORS, replayed, tmp_path)


@needs_dynamo
@pytest.mark.parametrize("load", [1, 8])
@pytest.mark.parametrize("router", ["round_robin", "kv_router"])
def test_four_workers_serve_the_conversation_trace_in_the_times_of_the_replay(shared, router, load):
    path = shared / "data/mooncake/conversation_trace.jsonl"
    trace = at_load(read(path), load)
    settings = {"num_workers": 4, "router_mode": router, "arrival_speedup_ratio": float(load)}
    for capacity in (1_000, 5_000):
        (seen,) = replay(trace, [{"path": str(path), "engine": {"num_gpu_blocks": capacity}, "settings": settings}])
        ours, _ = in_time(trace, capacity, router, seen)
        theirs = [seen.worker, seen.first_reused, seen.admit, seen.first, seen.end, seen.readmitted]
        assert (ours[:, [0, 1, 5]] == np.array(theirs).T[:, [0, 1, 5]]).all()
        assert np.abs(ours[:, 2:5] * 1000 - np.array(theirs).T[:, 2:5]).max() < 1e-3


def make_vectors(folder, count=16):
    """Short cases that differ: one worker and several, both routers, most of them with preemptions."""
    chosen = []
    for seed in range(20_000, 30_000):
        case = dynamo_case(random.Random(seed))
        if len(chosen) == count:
            break
        if len(case["requests"]) > 14 or (len(chosen) % 2 == 0) != (case["router"] == "dynamo"):
            continue
        if case["router"] == "dynamo" and case["workers"] == 1:
            continue
        version, requests = replayed(case, folder)
        if sum(request[5] for request in requests) or len(chosen) % 4 == 0:
            chosen.append({"case": case, "requests": requests})
    return {"engine": "dynamo", "version": version, "vectors": chosen}


if __name__ == "__main__":
    write_vectors("dynamo_times", make_vectors)
