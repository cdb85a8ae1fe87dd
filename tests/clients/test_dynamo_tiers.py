"""Our simulation in time takes the times of Dynamo's offline replay with a tier of each worker, or one that all share.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `dynamo` among them.
`KVTRACE_CLIENTS=... python -m tests.clients.test_dynamo_tiers` writes the vectors anew.
"""

import random

import numpy as np
import pytest

from benchmarks.dynamo_replay import at_load, replay
from kvtrace import read
from tests.clients.dynamo_cases import needs_dynamo, require_vectors, rows_of, seen_of, write_vectors
from tests.serving.scheduler_cases import dynamo_tier_case
from tests.serving.test_dynamo_tiers import COUNTS, TIMES, VECTORS, require_equal, served

SCOPES = {"rank": "dp_rank_local", "cluster": "cluster_shared"}
TOKEN_BYTES = 1_000_000
OLD_PLACE = 721_927  # a seed: preempted requests find their old places among those that wait for transfers
# the replay stops by itself: requests that were loaded hold all blocks; its router gets news of a block it lacks
STOPS = ("effect-free zero-duration pass", "Failed to find block", "failed to apply replay KV event")


def tier_of(case):
    """The fields of its mocked engine for its tier."""
    host, block = case["host"], TOKEN_BYTES * case["block_size"]

    def gbps(seconds):
        return block / seconds / 1e9 if seconds else 0.0

    offload = {
        "num_host_blocks": host["capacity"], "scope": SCOPES[host["scope"]],
        "h2d_bandwidth_gbps": gbps(host["fetch_s"]), "d2h_bandwidth_gbps": gbps(host["store_s"]),
        "latency_to_first_byte_ms": host["latency_s"] * 1000,
    }  # fmt: skip
    if host["scope"] == "cluster":
        offload |= {
            "shared_h2d_bandwidth_gbps": gbps(host["shared_fetch_s"]),
            "shared_d2h_bandwidth_gbps": gbps(host["shared_store_s"]), "kv_layout_id": "one",
        }  # fmt: skip
    return {"native_host_offload": offload, "kv_cache_bytes_per_token": TOKEN_BYTES}


def replayed(case, folder, **fields):
    """Its version, and the rows of the requests as in `served`; None if the replay stops by itself."""
    try:
        seen = seen_of(case, folder, engine=(tier_of(case) if "host" in case else {}) | fields)
    except AssertionError as stopped:
        assert any(reason in str(stopped) for reason in STOPS), stopped
        return "", None
    return seen.version, rows_of(seen, seen.from_tier)


@needs_dynamo
def test_random_cases_take_the_times_of_the_replay(tmp_path):
    seed = random.SystemRandom().randrange(1 << 30)
    compared = 0
    for number in range(seed, seed + 40):
        case = dynamo_tier_case(random.Random(number))
        _, requests = replayed(case, tmp_path)
        if requests is not None:
            require_equal(case, requests, f"seed {number}")
            compared += 1
    assert compared > 20


@needs_dynamo
def test_the_vectors_are_what_the_replay_says(tmp_path):
    require_vectors(VECTORS, replayed, tmp_path)


@needs_dynamo
@pytest.mark.parametrize("load", [0.5, 1, 4])
@pytest.mark.parametrize("scope", SCOPES)
def test_four_workers_with_tiers_serve_the_conversation_trace_in_the_times_of_the_replay(shared, scope, load):
    path, block = shared / "data/mooncake/conversation_trace.jsonl", 131_072 * 512
    trace = at_load(read(path), load)
    own, common = block / 32e9, block / 80e9  # Dynamo's defaults
    host = {"scope": scope, "capacity": 5_000, "latency_s": 0.0, "fetch_s": own, "store_s": own}
    host |= {"shared_fetch_s": common, "shared_store_s": common} if scope == "cluster" else {}
    offload = {"num_host_blocks": 5_000, "scope": SCOPES[scope]}
    offload |= {"kv_layout_id": "one"} if scope == "cluster" else {}
    engine = {"num_gpu_blocks": 2_000, "kv_cache_bytes_per_token": 131_072, "native_host_offload": offload}
    for router in ("round_robin", "kv_router") if scope == "rank" else ("round_robin",):  # its KV router stops there
        settings = {"num_workers": 4, "router_mode": router, "arrival_speedup_ratio": float(load)}
        (seen,) = replay(trace, [{"path": str(path), "engine": engine, "settings": settings}])
        name = {"round_robin": "round-robin", "kv_router": "dynamo"}[router]
        case = {"host": host, "capacity": 2_000, "workers": 4, "router": name, "settings": {}}
        ours = served(trace, case, seen.worker.astype(np.int32))
        times = [seen.admit / 1000, seen.first / 1000, seen.end / 1000]
        theirs = np.array([seen.worker, seen.first_reused, *times, seen.readmitted, seen.from_tier]).T
        assert (ours[:, COUNTS] == theirs[:, COUNTS]).all()
        assert np.abs(ours[:, TIMES] - theirs[:, TIMES]).max() < 1e-6


def make_vectors(folder, count=16):
    """Short cases that differ: both scopes, one worker and several, both routers, all with loads."""
    chosen = []
    for seed in range(20_000, 40_000):
        case = dynamo_tier_case(random.Random(seed))
        number = len(chosen)
        if number == count:
            break
        wanted = ("rank", "cluster")[number % 2], ("round-robin", "dynamo")[number // 2 % 2]
        if len(case["requests"]) > 12 or (case["host"]["scope"], case["router"]) != wanted:
            continue
        if case["router"] == "dynamo" and case["workers"] == 1:
            continue
        version, requests = replayed(case, folder)
        if requests and any(request[6] for request in requests):
            chosen.append({"case": case, "requests": requests})
    case = dynamo_tier_case(random.Random(OLD_PLACE))
    chosen.append({"case": case, "requests": replayed(case, folder)[1]})
    return {"engine": "dynamo", "version": version, "vectors": chosen}


if __name__ == "__main__":
    write_vectors("dynamo_tiers", make_vectors)
