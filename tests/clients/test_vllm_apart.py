"""Prefill and decode workers take the steps of vLLM's own schedulers with its NixlConnector.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `vllm` among them.
`KVTRACE_CLIENTS=... python -m tests.clients.test_vllm_apart` writes the vectors anew.
"""

import json
import random
import tempfile
from pathlib import Path

from tests.clients.in_vllm import answers, needs_vllm
from tests.serving.apart_cases import decider_case, require_equal, vllm_apart_case
from tests.serving.test_apart import PATH, VECTORS

DRIVER = "vllm_apart.py"


@needs_vllm
def test_random_cases_have_the_times_of_vllm(tmp_path):
    seed = random.SystemRandom().randrange(1 << 30)
    cases = [vllm_apart_case(random.Random(seed + number), number % 4 == 3) for number in range(40)]
    for number, (case, real) in enumerate(zip(cases, answers(cases, tmp_path, DRIVER), strict=True)):
        require_equal(case, real, f"seed {seed + number}: {case['settings']}")


@needs_vllm
def test_requests_that_a_decider_keeps_on_a_decode_worker_have_the_times_of_vllm(tmp_path):
    seed = random.SystemRandom().randrange(1 << 30)
    cases = [decider_case(random.Random(seed + number)) for number in range(40)]
    for number, (case, real) in enumerate(zip(cases, answers(cases, tmp_path, DRIVER), strict=True)):
        require_equal(case, real, f"seed {seed + number}: {case['decider']}")


@needs_vllm
def test_the_vectors_are_what_vllm_says(tmp_path):
    vectors = VECTORS["vectors"]
    for vector, real in zip(vectors, answers([one["case"] for one in vectors], tmp_path, DRIVER), strict=True):
        assert real["version"] == VECTORS["version"]
        assert real["requests"] == vector["requests"]


def make_vectors(folder, count=16):
    """Short cases that differ, half of them with preemptions, and what vLLM says of each.

    Before them one in which a request has its KV cache, and does not fit for three steps.
    """
    cases = [vllm_apart_case(random.Random(number)) for number in (5074, *range(30_000, 30_200))]
    cases = [case for case in cases if len(case["requests"]) <= 12 or case is cases[0]]
    vectors, plain = [], 0
    for case, real in zip(cases, answers(cases, folder, DRIVER), strict=True):
        preempted = any(row[-1] for row in real["requests"])
        if len(vectors) < count and (preempted or plain < count // 2):
            plain += not preempted
            vectors.append({"case": case, "requests": real["requests"]})
    cases = [decider_case(random.Random(number)) for number in range(40_000, 40_100)]
    cases, kinds = [case for case in cases if len(case["requests"]) <= 12], set()
    for case, real in zip(cases, answers(cases, folder, DRIVER), strict=True):
        local = sum(row[4] is None for row in real["requests"])  # whose KV cache is not read
        kind = tuple(case["decider"])[:2] + (case["decider"].get("policy"),)
        if 0 < local < len(case["requests"]) and kind not in kinds:
            kinds.add(kind)
            vectors.append({"case": case, "requests": real["requests"]})
    return {"version": real["version"], "vectors": vectors}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        PATH.write_text(json.dumps(make_vectors(Path(folder)), separators=(",", ":")) + "\n")
