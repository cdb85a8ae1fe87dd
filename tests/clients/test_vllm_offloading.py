"""Our model of vLLM's scheduler with a lower tier takes the steps of vLLM's own Scheduler and OffloadingConnector.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `vllm` among them.
`KVTRACE_CLIENTS=... python -m tests.clients.test_vllm_offloading` writes the vectors anew.
"""

import random

import pytest

from kvtrace import read
from tests.clients.in_vllm import needs_vllm
from tests.clients.test_vllm_scheduler import ROWS, require_what_vllm_says, served, write_vectors
from tests.serving.scheduler_cases import rows_of, tier_case
from tests.serving.test_vllm_offloading import VECTORS
from tests.serving.test_vllm_scheduler import require_equal

SCRIPT = "vllm_offloading.py"
LOADS = 5  # the column of loaded blocks


@needs_vllm
def test_random_cases_take_the_steps_of_vllm_with_its_connector(tmp_path):
    seed = random.SystemRandom().randrange(1 << 30)
    cases = [tier_case(random.Random(seed + number)) for number in range(100)]
    loaded = 0
    for number, (case, real) in enumerate(zip(cases, served(cases, tmp_path, SCRIPT), strict=True)):
        require_equal(case, real, f"seed {seed + number}: {case['settings']}, {case['tier']}")
        loaded += sum(row[LOADS] for row in real["requests"])
    assert loaded > len(cases)


@needs_vllm
def test_the_vectors_are_what_vllm_says(tmp_path):
    require_what_vllm_says(VECTORS, tmp_path, SCRIPT)


@needs_vllm
@pytest.mark.parametrize(
    ("speed", "capacity", "tier", "tokens", "seats", "policy", "is_async"),
    [(1, 300, 2000, 2048, 64, "lru", True), (2, 1000, 10_000, 8192, 256, "lru", True),
     (2, 300, 1000, 8192, 256, "arc", False), (1, 1000, 3000, 2048, 64, "lru", False)],
)  # fmt: skip
def test_the_conversation_trace_takes_the_steps_of_vllm_with_its_connector(
    shared, tmp_path, speed, capacity, tier, tokens, seats, policy, is_async
):
    trace = read(next(shared.rglob("conversation_trace.jsonl")))
    case = {
        "block_size": trace.block_size, "capacity": capacity, "requests": rows_of(trace, ROWS, speed),
        "cost": {"token_s": 2e-5, "pair_s": 1e-10, "step_s": 0.006, "read_s": 2e-8, "overhead_s": 0.002},
        "settings": {"max_num_batched_tokens": tokens, "max_num_seqs": seats, "async": is_async},
        "tier": {"capacity": tier, "fetch_s": 0.0027, "store_s": 0.0027, "policy": policy},
    }  # fmt: skip
    (real,) = served([case], tmp_path, SCRIPT)
    require_equal(case, real, f"{capacity} blocks, {tier} below")


if __name__ == "__main__":
    drawn = (tier_case(random.Random(seed)) for seed in range(20_000, 20_900))
    write_vectors(
        "scheduler_vllm_tiers.json", [case for case in drawn if len(case["requests"]) <= 14], script=SCRIPT, steps=120,
        others=16, needs=lambda real: sum(row[LOADS] for row in real["requests"]) > 0,
    )  # fmt: skip
