"""Our instances of vLLM that share a tier take the steps of vLLM's own Schedulers and TieringOffloadingManagers.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `vllm` among them.
`KVTRACE_CLIENTS=... python -m tests.clients.test_vllm_tiers` writes the vectors anew.
"""

import json
import random
import tempfile
from pathlib import Path

import pytest

from kvtrace import read
from tests.clients.in_vllm import answers, needs_vllm
from tests.conftest import ROOT
from tests.serving.scheduler_cases import pool_case, rows_of
from tests.serving.test_vllm_tiers import VECTORS, require_equal, serve

SCRIPT = "vllm_tiers.py"
FROM_POOL = 6  # the column of blocks that came from the pool


@needs_vllm
def test_random_cases_take_the_steps_of_vllm(tmp_path):
    seed = random.SystemRandom().randrange(1 << 30)
    cases = [pool_case(random.Random(seed + number)) for number in range(100)]
    hits = 0
    for number, (case, real) in enumerate(zip(cases, answers(cases, tmp_path, SCRIPT), strict=True)):
        if real["instances"] is None:  # vLLM promotes blocks for ever
            assert serve(case)["instances"] is None
            continue
        require_equal(case, real, f"seed {seed + number}")
        hits += sum(row[FROM_POOL] for one in real["instances"] for row in one["requests"])
    assert hits > len(cases)


@needs_vllm
def test_the_vectors_are_what_vllm_says(tmp_path):
    cases = [vector["case"] for vector in VECTORS["vectors"]]
    for vector, real in zip(VECTORS["vectors"], answers(cases, tmp_path, SCRIPT), strict=True):
        assert vector["served"] == {"instances": real["instances"]} and real["version"] == VECTORS["version"]


@needs_vllm
@pytest.mark.parametrize(("instances", "tier", "pool", "is_async"), [(2, 2000, 9000, True), (3, 1000, 9000, False)])
def test_the_conversation_trace_takes_the_steps_of_vllm(shared, tmp_path, instances, tier, pool, is_async):
    rows = rows_of(read(next(shared.rglob("conversation_trace.jsonl"))), 300, 1)
    case = {
        "block_size": 512, "capacity": 400,
        "requests": [row | {"instance": i % instances} for i, row in enumerate(rows)],
        "cost": {"token_s": 2e-5, "pair_s": 1e-10, "step_s": 0.006, "read_s": 2e-8, "overhead_s": 0.002},
        "settings": {"max_num_batched_tokens": 8192, "max_num_seqs": 256, "async": is_async},
        "tier": {"capacity": tier, "fetch_s": 0.0027, "store_s": 0.0027, "policy": "lru"},
        "pool": {"capacity": pool, "fetch_s": 0.002, "store_s": 0.001, "latency_s": 3e-5},
    }  # fmt: skip
    (real,) = answers([case], tmp_path, SCRIPT)
    require_equal(case, real, f"{instances} instances")
    assert sum(row[FROM_POOL] for one in real["instances"] for row in one["requests"]) > 50


def write_vectors(cases, count=16, steps=90):
    """Short cases of several instances in which blocks come from the pool."""
    chosen = []
    with tempfile.TemporaryDirectory() as folder:
        for case, real in zip(cases, answers(cases, Path(folder), SCRIPT), strict=True):
            instances = real["instances"] or []
            hits = [sum(row[FROM_POOL] for row in one["requests"]) for one in instances]
            short = sum(len(one["steps"]) for one in instances) <= steps
            if short and len(instances) > 1 and sum(hits) > 0 and len(chosen) < count:
                chosen.append({"case": case, "served": {"instances": instances}})
    found = {"engine": "vllm", "version": real["version"], "vectors": chosen}
    text = json.dumps(found, separators=(",", ":")).replace('{"case"', '\n{"case"')
    (ROOT / "tests/vectors/scheduler_vllm_pools.json").write_text(text + "\n")


if __name__ == "__main__":
    drawn = (pool_case(random.Random(seed)) for seed in range(30_000, 30_500))
    write_vectors([case for case in drawn if len(case["requests"]) <= 18])
