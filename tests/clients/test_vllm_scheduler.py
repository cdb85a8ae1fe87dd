"""Our model of vLLM's scheduler takes the steps of vLLM's own, step by step.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `vllm` among them.
`KVTRACE_CLIENTS=... python -m tests.clients.test_vllm_scheduler` writes the vectors anew.
"""

import itertools
import json
import os
import random
import tempfile
from pathlib import Path

import pytest

from kvtrace import read
from tests.clients.in_vllm import answers, needs_vllm
from tests.conftest import ROOT
from tests.serving.scheduler_cases import rows_of, vllm_case, with_drafter
from tests.serving.test_vllm_scheduler import VECTORS, require_equal

ROWS = int(os.environ.get("KVTRACE_ROWS", 300))  # of the conversation trace


def served(cases, folder, script="vllm_scheduler.py"):
    """What vLLM's own scheduler says of each case."""
    return answers(cases, folder, script)


def require_what_vllm_says(vectors, folder, script="vllm_scheduler.py"):
    """vLLM's own scheduler still takes the steps of all vectors."""
    cases = [vector["case"] for vector in vectors["vectors"]]
    for vector, real in zip(vectors["vectors"], served(cases, folder, script), strict=True):
        assert vector["served"] == {name: real[name] for name in ("steps", "requests")}
        assert real["version"] == vectors["version"]


@needs_vllm
def test_random_cases_take_the_steps_of_vllm(tmp_path):
    seed = random.SystemRandom().randrange(1 << 30)
    cases = [vllm_case(random.Random(seed + number)) for number in range(100)]
    for number, (case, real) in enumerate(zip(cases, served(cases, tmp_path), strict=True)):
        require_equal(case, real, f"seed {seed + number}: {case['settings']}")


@needs_vllm
def test_with_a_drafter_random_cases_take_the_steps_of_vllm(tmp_path):
    seed = random.SystemRandom().randrange(1 << 30)
    cases = []
    for number in range(100):
        case = vllm_case(random.Random(seed + number))
        cases.append(with_drafter(random.Random(seed + number), case))
    for number, (case, real) in enumerate(zip(cases, served(cases, tmp_path), strict=True)):
        require_equal(case, real, f"seed {seed + number}: {case['settings']}, {case['drafting']}")


@needs_vllm
def test_the_vectors_are_what_vllm_says(tmp_path):
    require_what_vllm_says(VECTORS, tmp_path)


@needs_vllm
@pytest.mark.parametrize("speed", [1.0, 2.0])
def test_the_conversation_trace_takes_the_steps_of_vllm(shared, tmp_path, speed):
    trace = read(next(shared.rglob("conversation_trace.jsonl")))
    rows = rows_of(trace, ROWS, speed)
    cost = {"token_s": 2e-5, "pair_s": 1e-10, "step_s": 0.006, "read_s": 2e-8, "overhead_s": 0.002}
    cases = [
        {
            "block_size": trace.block_size, "capacity": capacity, "cost": cost, "requests": rows,
            "settings": {"max_num_batched_tokens": tokens, "max_num_seqs": seats, "async": seats == 64},
        }
        for capacity, (tokens, seats) in itertools.product((300, 1000, 5000), ((2048, 64), (8192, 256)))
    ]  # fmt: skip
    for case, real in zip(cases, served(cases, tmp_path), strict=True):
        require_equal(case, real, f"{case['capacity']} blocks, {case['settings']}")


def make_vectors(cases, folder, script="vllm_scheduler.py", count=24, *, steps=150, others=12, needs=lambda real: True):
    """Short cases that differ, all but `others` of them with preemptions, and what vLLM says of each."""
    chosen, preempting = [], 0
    for case, real in zip(cases, served(cases, folder, script), strict=True):
        if len(chosen) == count:
            break
        preempts = any(step[2] for step in real["steps"])
        if len(real["steps"]) > steps or not needs(real) or (not preempts and len(chosen) - preempting >= others):
            continue
        preempting += preempts
        chosen.append({"case": case, "served": {name: real[name] for name in ("steps", "requests")}})
    return {"engine": "vllm", "version": real["version"], "vectors": chosen}


def write_vectors(name, cases, **choice):
    """Write a file of vectors: a case a line."""
    with tempfile.TemporaryDirectory() as folder:
        found = make_vectors(cases, Path(folder), **choice)
    text = json.dumps(found, separators=(",", ":")).replace('{"case"', '\n{"case"')
    (ROOT / "tests/vectors" / name).write_text(text + "\n")


if __name__ == "__main__":
    drawn = (vllm_case(random.Random(seed)) for seed in range(10_000, 10_600))
    write_vectors("scheduler_vllm.json", [case for case in drawn if len(case["requests"]) <= 12])
