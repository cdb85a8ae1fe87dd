"""Our model of SGLang's scheduler, and its plain twin, take the steps that SGLang's own Scheduler takes.

KVTRACE_CLIENTS names a folder of environments (see test_load.py); `sglang` needs `pip install --no-deps sglang` and
`pip install torch numpy transformers triton einops xxhash zstandard setproctitle prometheus-client pillow fastapi
uvloop aiohttp partial_json_parser numba scipy orjson psutil pybase64 requests msgspec pyzmq pydantic`.
`KVTRACE_CLIENTS=... python -m tests.clients.test_sglang_scheduler` writes the vectors anew.
"""

import itertools
import json
import os
import random
import subprocess
import tempfile
from pathlib import Path

import pytest

from kvtrace import read
from tests.reference.sglang_scheduler import serve
from tests.serving.scheduler_cases import sglang_case
from tests.serving.test_sglang_kernel import require_equal

PYTHON = Path(os.environ.get("KVTRACE_CLIENTS", "no-such-folder")) / "sglang/bin/python"
VECTORS = Path(__file__).parents[1] / "vectors/scheduler_sglang.json"
ROWS = int(os.environ.get("KVTRACE_ROWS", 300))  # of the conversation trace
needs_sglang = pytest.mark.skipif(not PYTHON.exists(), reason="no environment sglang in KVTRACE_CLIENTS")


def twin(case):
    """The twin's answer, or None where SGLang 0.5.23 ends: a chunk goes on although nothing is free."""
    try:
        return serve(case)
    except MemoryError:
        return None


def served(cases, folder):
    """What SGLang's own Scheduler does with each case."""
    path = Path(folder) / "cases.jsonl"
    path.write_text("".join(json.dumps(case) + "\n" for case in cases))
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [PYTHON, "-W", "ignore", Path(__file__).parent / "sglang_scheduler.py", path]
    done = subprocess.run(command, capture_output=True, text=True, env=plain)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@needs_sglang
@pytest.mark.parametrize("drafter", [{}, {"bigram": True}], ids=["plain", "with a drafter"])
def test_random_cases_take_the_steps_that_sglang_takes(drafter, tmp_path):
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    cases = [case for case in (sglang_case(rng) | drafter for _ in range(100)) if twin(case) is not None]
    for case, real in zip(cases, served(cases, tmp_path), strict=True):
        del real["version"]
        assert twin(case) == real, f"seed {seed}: {case}"
        if all(row[3] is not None for row in real["requests"]):  # else SGLang goes on for ever
            require_equal(case, real, f"seed {seed}: {case}")


SERVED = [  # blocks of 512, and settings
    (5000, {"page_size": 512}),
    (1000, {"page_size": 512, "schedule_conservativeness": 0.3}),
    (300, {"page_size": 512, "disable_overlap_schedule": True, "max_running_requests": 64}),
    (1000, {"page_size": 1, "chunked_prefill_size": 2048, "schedule_policy": "lpm"}),
    (300, {"page_size": 64, "chunked_prefill_size": 2048, "enable_mixed_chunk": True, "max_running_requests": 64}),
]


@needs_sglang
@pytest.mark.parametrize("speed", [1.0, 2.0])
def test_the_conversation_trace_takes_the_steps_of_sglang(shared, tmp_path, speed):
    trace = read(next(shared.rglob("conversation_trace.jsonl")))
    rows = [
        {
            "arrival": float(trace.timestamp[row]) / 1000 / speed, "ids": trace.prompt(row).tolist(),
            "tokens": int(trace.input_length[row]), "output": int(trace.output_length[row]),
        }
        for row in range(ROWS)
    ]  # fmt: skip
    cost = {"token_s": 2e-5, "pair_s": 1e-10, "step_s": 0.006, "read_s": 2e-8, "overhead_s": 0.002}
    common = {"chunked_prefill_size": 8192, "max_running_requests": 256}
    cases = [
        {
            "block_size": trace.block_size, "capacity": blocks * trace.block_size, "cost": cost, "requests": rows,
            "settings": common | settings,
        }
        for blocks, settings in SERVED
    ]  # fmt: skip
    for case, real in zip(cases, served(cases, tmp_path), strict=True):
        require_equal(case, real, f"{case['capacity']} tokens, {case['settings']}")


@needs_sglang
def test_the_vectors_are_what_sglang_says(tmp_path):
    vectors = json.loads(VECTORS.read_text())
    cases = [vector["case"] for vector in vectors["vectors"]]
    for vector, real in zip(vectors["vectors"], served(cases, tmp_path), strict=True):
        assert real == vector["served"] | {"version": vectors["version"]}, vector["name"]


# -- vectors ---------------------------------------------------------------------------------------------------------


def has(**settings):
    return lambda case, _: all(case["settings"].get(name) == value for name, value in settings.items())


def retracts(_, answer):
    return any(row[4] for row in answer["requests"])


def mixes(_, answer):
    return any(kind == "mixed" and len(parts) > 2 for _, kind, parts, _ in answer["steps"])


def hits(_, answer):
    return sum(row[0] > 0 for row in answer["requests"]) > 1


def hits_after_retraction(_, answer):
    gone = {row for step in answer["steps"] for row in step[3]}
    return any(
        kind != "decode" and row in gone and before > 0
        for _, kind, parts, _ in answer["steps"][1:] for row, before, _ in parts
    )  # fmt: skip


def chunks(_, answer):
    first = [parts[0][0] for _, kind, parts, _ in answer["steps"] if kind != "decode"]
    return any(a == b == c for a, b, c in zip(first, first[1:], first[2:], strict=False))


def preempts(_, answer):
    return any(kind != "decode" and gone for _, kind, _, gone in answer["steps"])


def stops_early(case, _):
    return sum(row.get("limit", 0) > row["output"] for row in case["requests"]) > 2


def looks_late(case, answer):
    often = case | {"settings": case["settings"] | {"scheduler_recv_interval": 1}}
    return case["settings"]["scheduler_recv_interval"] in (5, 10) and twin(often) != answer


def ignores_eos(case, _):
    return case["ignore_eos"]


OVERLAP, NORMAL = has(disable_overlap_schedule=False), has(disable_overlap_schedule=True)
WISHES = {  # name -> what the case must show
    "prefixes hit, one step late": [OVERLAP, hits],
    "prefixes hit, step by step": [NORMAL, hits],
    "a long prompt is computed in chunks": [OVERLAP, chunks],
    "chunks and step by step": [NORMAL, chunks],
    "prompts are not divided": [has(chunked_prefill_size=-1), hits],
    "retraction, one step late": [OVERLAP, retracts],
    "retraction, step by step": [NORMAL, retracts],
    "retraction with pages of 16": [has(page_size=16), retracts],
    "a retracted request hits what is cached": [OVERLAP, retracts, hits_after_retraction],
    "the longest prefix first": [has(schedule_policy="lpm", enable_priority_scheduling=None), hits, retracts],
    "mixed steps, one step late": [OVERLAP, mixes],
    "mixed steps, step by step": [NORMAL, mixes],
    "mixed steps and retraction": [mixes, retracts],
    "few prompt tokens a step": [has(max_prefill_tokens=16), hits],
    "one request at a time": [has(max_running_requests=1), hits],
    "outputs end before their limit": [OVERLAP, stops_early, hits],
    "outputs of a known length": [ignores_eos, hits],
    "new requests are seen late": [OVERLAP, looks_late],
    "new requests are seen late, step by step": [NORMAL, looks_late],
    "priority preempts": [has(schedule_low_priority_values_first=False), preempts],
    "low values first": [has(schedule_low_priority_values_first=True), preempts],
    "the least priority is retracted": [has(retraction_policy="priority"), retracts],
}


def wished(wishes, used):
    """The first small random case that shows what is wished, and was not used before."""
    for seed in itertools.count():
        if seed in used:
            continue
        case = sglang_case(random.Random(seed), max_requests=9, max_output=40)
        answer = twin(case) if len(case["requests"]) > 3 else None
        if answer and len(answer["steps"]) < 60 and all(wish(case, answer) for wish in wishes):
            del case["max_plans"]
            used.add(seed)
            return case


def make_vectors():
    """A case for each wish, with what SGLang does."""
    used = set()  # seeds
    cases = [wished(wishes, used) for wishes in WISHES.values()]
    with tempfile.TemporaryDirectory() as folder:
        answers = served(cases, folder)
    version = answers[0]["version"]
    lines = [
        json.dumps({"name": name, "case": case, "served": {key: answer[key] for key in ("steps", "requests")}})
        for name, case, answer in zip(WISHES, cases, answers, strict=True)
    ]
    head = json.dumps({"engine": "sglang", "version": version, "cache": "UnifiedRadixCache"})[:-1]
    VECTORS.write_text(head + ', "vectors": [\n' + ",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    make_vectors()
