"""Data-parallel ranks in lockstep take the ranks and the times of Dynamo's offline replay, and its router's choices.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `dynamo` among them.
`KVTRACE_CLIENTS=... python -m tests.clients.test_dynamo_ranks` writes the vectors anew.
"""

import random

import numpy as np
import pytest

from benchmarks.dynamo_replay import at_load, replay
from kvtrace import read
from kvtrace.serving.schedulers.dynamo import DynamoScheduler
from tests.clients import dynamo_cases
from tests.clients.dynamo_cases import needs_dynamo, write_vectors
from tests.serving.scheduler_cases import dynamo_case
from tests.serving.test_dynamo_times import require_equal, served


def rank_case(rng):
    workers, ranks = rng.choice([(1, 2), (1, 3), (1, 4), (2, 2), (2, 3), (3, 2)])
    return dynamo_case(rng) | {"workers": workers * ranks, "ranks": ranks}


def replayed(case, folder):
    """As `dynamo_cases.replayed`: a worker of the case is a rank."""
    return dynamo_cases.replayed(case, folder, workers=case["workers"] // case["ranks"], ranks=case["ranks"])


@needs_dynamo
def test_random_ranks_take_the_times_of_the_replay(tmp_path):
    seed = random.SystemRandom().randrange(1 << 30)
    for number in range(seed, seed + 40):
        case = rank_case(random.Random(number))
        require_equal(case, replayed(case, tmp_path)[1], f"seed {number}")


@needs_dynamo
@pytest.mark.parametrize("load", [1, 4])
@pytest.mark.parametrize("router", ["round_robin", "kv_router"])
@pytest.mark.parametrize("workers", [1, 2])
def test_four_ranks_serve_the_conversation_trace_in_the_times_of_the_replay(shared, workers, router, load):
    path = shared / "data/mooncake/conversation_trace.jsonl"
    trace = at_load(read(path), load)
    settings = {"num_workers": workers, "router_mode": router, "arrival_speedup_ratio": float(load)}
    case = {"path": str(path), "engine": {"num_gpu_blocks": 3_000}, "settings": settings,
            "ranks": 4 // workers}  # fmt: skip
    (seen,) = replay(trace, [case])
    name = {"round_robin": "round-robin", "kv_router": "dynamo"}[router]
    ours, _ = served(trace, 3_000, DynamoScheduler(), 4, name, seen.worker, ranks=4 // workers)
    theirs = np.array([seen.worker, seen.first_reused, seen.admit, seen.first, seen.end, seen.readmitted]).T
    assert (ours[:, [0, 1, 5]] == theirs[:, [0, 1, 5]]).all()
    assert np.abs(ours[:, 2:5] * 1000 - theirs[:, 2:5]).max() < 1e-3


def make_vectors(folder, count=10):
    """Short cases of both routers, half of them with several workers."""
    chosen = []
    for seed in range(50_000, 60_000):
        case = rank_case(random.Random(seed))
        if len(chosen) == count:
            break
        wanted = len(chosen) % 2 == 0, len(chosen) // 2 % 2 == 0
        if 6 < len(case["requests"]) <= 16 and wanted == (case["router"] == "dynamo", case["workers"] > case["ranks"]):
            version, requests = replayed(case, folder)
            chosen.append({"case": case, "requests": requests})
    return {"engine": "dynamo", "version": version, "vectors": chosen}


if __name__ == "__main__":
    write_vectors("dynamo_ranks", make_vectors)
