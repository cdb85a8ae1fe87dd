"""Our simulation in time draws the accepted tokens of Dynamo's multi-token prediction, and takes its times.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `dynamo` among them.
`KVTRACE_CLIENTS=... python -m tests.clients.test_dynamo_mtp` writes the vectors anew.
"""

import random

import numpy as np
import pytest

from benchmarks.dynamo_replay import at_load, replay
from kvtrace import read
from tests.clients import test_dynamo_tiers as tiers
from tests.clients.dynamo_cases import needs_dynamo, require_vectors, write_vectors
from tests.serving.scheduler_cases import dynamo_mtp_case
from tests.serving.test_dynamo_mtp import VECTORS
from tests.serving.test_dynamo_tiers import COUNTS, TIMES, require_equal, served


def fields_of(case):
    """The fields of its mocked engine."""
    rates, seed = case["mtp"]["rates"], case["mtp"]["seed"]
    return {"aic_nextn": len(rates), "aic_nextn_accept_rates": ",".join(map(str, rates)), "aic_mtp_seed": seed}


def replayed(case, folder):
    """Its version, and the rows of the requests."""
    return tiers.replayed(case, folder, **fields_of(case))


@needs_dynamo
def test_random_cases_take_the_times_of_the_replay(tmp_path):
    seed = random.SystemRandom().randrange(1 << 30)
    for number in range(seed, seed + 40):
        case = dynamo_mtp_case(random.Random(number))
        require_equal(case, replayed(case, tmp_path)[1], f"seed {number}")


@needs_dynamo
def test_the_vectors_are_what_the_replay_says(tmp_path):
    require_vectors(VECTORS, replayed, tmp_path)


@needs_dynamo
@pytest.mark.parametrize("load", [0.5, 1, 4])
@pytest.mark.parametrize("rates", [[0.85], [0.85, 0.3, 0.1]])
def test_four_workers_serve_the_conversation_trace_in_the_times_of_the_replay(shared, rates, load):
    path = shared / "data/mooncake/conversation_trace.jsonl"
    trace = at_load(read(path), load)
    for router, name in (("round_robin", "round-robin"), ("kv_router", "dynamo")):
        case = {"capacity": 2_000, "workers": 4, "router": name, "settings": {}, "mtp": {"rates": rates, "seed": 42}}
        settings = {"num_workers": 4, "router_mode": router, "arrival_speedup_ratio": float(load)}
        engine = {"num_gpu_blocks": 2_000, **fields_of(case)}
        (seen,) = replay(trace, [{"path": str(path), "engine": engine, "settings": settings}])
        ours = served(trace, case, seen.worker.astype(np.int32))
        times = [seen.admit / 1000, seen.first / 1000, seen.end / 1000]
        theirs = np.array([seen.worker, seen.first_reused, *times, seen.readmitted, seen.from_tier]).T
        assert (ours[:, COUNTS] == theirs[:, COUNTS]).all()
        assert np.abs(ours[:, TIMES] - theirs[:, TIMES]).max() < 1e-6


def make_vectors(folder, count=12):
    """Short cases that differ: one worker and several, both routers, half of them with preemptions."""
    chosen = []
    for seed in range(20_000, 40_000):
        case = dynamo_mtp_case(random.Random(seed))
        number = len(chosen)
        if number == count:
            break
        if len(case["requests"]) > 12 or (number % 2 == 0) != (case["router"] == "dynamo"):
            continue
        if case["router"] == "dynamo" and case["workers"] == 1:
            continue
        version, requests = replayed(case, folder)
        if requests and bool(sum(request[5] for request in requests)) == (number % 4 < 2):
            chosen.append({"case": case, "requests": requests})
    return {"engine": "dynamo", "version": version, "vectors": chosen}


if __name__ == "__main__":
    write_vectors("dynamo_mtp", make_vectors)
