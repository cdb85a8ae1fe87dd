"""Our model of vLLM's scheduler takes the steps of vLLM's own for hybrid models, whose blocks slide and hold states.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `vllm` among them; KVTRACE_CASES is the number of
random cases, KVTRACE_ROWS the number of requests of the conversation trace.
`KVTRACE_CLIENTS=... python -m tests.clients.test_vllm_hybrid_scheduler` writes the vectors anew.
"""

import itertools
import os
import random
from dataclasses import asdict

import pytest

from kvtrace import read
from tests.clients.in_vllm import needs_vllm
from tests.clients.test_vllm_hybrid import LAYOUTS
from tests.clients.test_vllm_scheduler import ROWS, require_what_vllm_says, served, write_vectors
from tests.serving.scheduler_cases import hybrid_case, rows_of, with_drafter
from tests.serving.test_vllm_hybrid_scheduler import VECTORS
from tests.serving.test_vllm_scheduler import require_equal


@needs_vllm
def test_random_cases_take_the_steps_of_vllm(tmp_path):
    seed = random.SystemRandom().randrange(1 << 30)
    cases = [hybrid_case(random.Random(seed + number)) for number in range(int(os.environ.get("KVTRACE_CASES", 100)))]
    for number, (case, real) in enumerate(zip(cases, served(cases, tmp_path), strict=True)):
        require_equal(case, real, f"seed {seed + number}: {case['groups']}, {case['settings']}")


@needs_vllm
def test_with_a_drafter_random_cases_take_the_steps_of_vllm(tmp_path):
    seed = random.SystemRandom().randrange(1 << 30)
    drawn = [random.Random(seed + number) for number in range(int(os.environ.get("KVTRACE_CASES", 100)))]
    cases = [with_drafter(rng, hybrid_case(rng), ["lookahead"]) for rng in drawn]
    for number, (case, real) in enumerate(zip(cases, served(cases, tmp_path), strict=True)):
        require_equal(case, real, f"seed {seed + number}: {case['groups']}, {case['settings']}, {case['drafting']}")


@needs_vllm
def test_the_vectors_are_what_vllm_says(tmp_path):
    require_what_vllm_says(VECTORS, tmp_path)


@needs_vllm
@pytest.mark.parametrize(
    ("model", "checkpoint"), [("gpt-oss-120b", 0), ("gemma-3-27b", 0), ("qwen3-next-80b", 0), ("qwen3-next-80b", 1)]
)
def test_the_conversation_trace_takes_the_steps_of_vllm(shared, tmp_path, model, checkpoint):
    trace = read(next(shared.rglob("conversation_trace.jsonl")))
    groups, share = LAYOUTS[model]
    cost = {"token_s": 2e-5, "pair_s": 1e-10, "step_s": 0.006, "read_s": 2e-8, "overhead_s": 0.002}
    cases = [
        {
            "block_size": trace.block_size, "capacity": int(blocks * share), "cost": cost,
            "groups": [asdict(group) for group in groups], "retention_interval": 0,
            "internal_checkpoint": bool(checkpoint), "requests": rows_of(trace, ROWS, speed),
            "settings": {"max_num_batched_tokens": 8192, "max_num_seqs": 256, "async": is_async},
        }
        for speed, blocks, is_async in itertools.product((1.0, 3.0), (300, 1000), (False, True))
    ]  # fmt: skip
    for case, real in zip(cases, served(cases, tmp_path), strict=True):
        require_equal(case, real, f"{model}: {case['capacity']} blocks, {case['settings']}")


if __name__ == "__main__":
    drawn = (hybrid_case(random.Random(seed)) for seed in range(20_000, 20_900))
    write_vectors("scheduler_vllm_hybrid.json", [case for case in drawn if len(case["requests"]) <= 12], steps=120)
