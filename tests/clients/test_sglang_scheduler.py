"""Our plain twin of SGLang's scheduler takes the steps that SGLang's own Scheduler takes, at the same times.

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

from tests.reference.sglang_scheduler import CONSTANTS, serve

PYTHON = Path(os.environ.get("KVTRACE_CLIENTS", "no-such-folder")) / "sglang/bin/python"
VECTORS = Path(__file__).parents[1] / "vectors/scheduler_sglang.json"
needs_sglang = pytest.mark.skipif(not PYTHON.exists(), reason="no environment sglang in KVTRACE_CLIENTS")


# -- random cases ----------------------------------------------------------------------------------------------------


def conversations(rng, count, block_size, max_output):
    """Requests whose prompts go on from an earlier one, or part of it, and end anywhere in a block."""
    rows, said, number, now = [], [[]], {}, 0.0
    gap = rng.choice([0.0, 0.001, 0.01, 0.1])
    for _ in range(count):
        before = rng.choice(said)
        words = (before[: rng.randrange(len(before) + 1)] + [rng.randrange(3) for _ in range(rng.randrange(1, 8))])[:9]
        said.append(words)
        tokens, output = len(words) * block_size - rng.randrange(block_size), rng.randrange(1, max_output)
        last = ("tail", tokens) if tokens % block_size else None  # a partial block is not the full one
        names = [tuple(words[: i + 1]) for i in range(len(words) - 1)] + [(*words, last)]
        now += gap * rng.random()
        row = {"arrival": now, "ids": [number.setdefault(name, len(number)) for name in names], "tokens": tokens}
        row |= {"output": output, "priority": rng.randrange(30)}
        if rng.random() < 0.3:
            row["limit"] = output + rng.choice([0, 1, 2, 20, 100])
        rows.append(row)
    return rows


def settings_of(rng, page):
    settings = {
        "page_size": page, "chunked_prefill_size": rng.choice([-1, page, 4 * page, 16 * page, 256 // page * page]),
        "max_prefill_tokens": rng.choice([16, 64, 256, 16384]), "max_running_requests": rng.choice([1, 2, 3, 4, 8, 64]),
        "schedule_policy": rng.choice(["fcfs", "lpm"]), "disable_overlap_schedule": rng.random() < 0.4,
        "schedule_conservativeness": rng.choice([0.05, 0.1, 0.3, 1.0, 2.0]),
    }  # fmt: skip
    if rng.random() < 0.5 and settings["chunked_prefill_size"] > 1:
        settings["enable_mixed_chunk"] = True
        # SGLang 0.5.23 ends where more requests run than a chunk has tokens
        settings["max_running_requests"] = min(settings["max_running_requests"], settings["chunked_prefill_size"] - 1)
    if rng.random() < 0.4:
        settings["enable_priority_scheduling"] = True
        settings["priority_scheduling_preemption_threshold"] = rng.choice([0, 2, 10])
        settings["schedule_low_priority_values_first"] = rng.random() < 0.5
        settings["disable_priority_preemption"] = rng.random() < 0.3
        settings["retraction_policy"] = rng.choice(["length", "priority"])
    return settings


def drawn_case(rng, max_requests=40, max_output=100):
    """A case of random requests and settings; the KV pool holds the largest request, and often little more."""
    page = rng.choice([1, 1, 2, 4, 16])
    block = rng.choice([1, 4, 16, 40] if page == 1 else [page, page, 4])
    rows = conversations(rng, rng.randrange(2, max_requests), block, rng.choice([3, 12, max_output]))
    need = max(-(-row["tokens"] // page) + -(-row["output"] // page) + 2 for row in rows)
    env = CONSTANTS | {"SGLANG_RETRACT_DECODE_STEPS": rng.choice([1, 5, 20])}
    if rng.random() < 0.4:
        env |= {
            "SGLANG_INIT_NEW_TOKEN_RATIO": rng.choice([0.05, 0.3]),
            "SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS": rng.choice([5, 60]),
            "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": rng.choice([4, 50]),
        }
    cost = {"token_s": 1e-3, "pair_s": 1e-6, "step_s": 0.01, "read_s": 1e-5}
    return {
        "block_size": block, "capacity": (need + rng.choice([0, 0, 1, 3, 10, 30, 100])) * page, "env": env,
        "settings": settings_of(rng, page),
        "ignore_eos": rng.random() < 0.1 and all("limit" not in row for row in rows),
        "cost": {name: value * rng.random() for name, value in cost.items()} | {"overhead_s": rng.choice([0, 0.002])},
        "requests": rows,
        "max_plans": 4000,  # with lpm and priorities, SGLang can preempt and admit the same request for ever
    }  # fmt: skip


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
def test_random_cases_take_the_steps_that_sglang_takes(tmp_path):
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    cases = [case for case in (drawn_case(rng) for _ in range(100)) if twin(case) is not None]
    for case, real in zip(cases, served(cases, tmp_path), strict=True):
        del real["version"]
        assert twin(case) == real, f"seed {seed}: {case}"


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
    "priority preempts": [has(schedule_low_priority_values_first=False), preempts],
    "low values first": [has(schedule_low_priority_values_first=True), preempts],
    "the least priority is retracted": [has(retraction_policy="priority"), retracts],
}


def wished(wishes, used):
    """The first small random case that shows what is wished, and was not used before."""
    for seed in itertools.count():
        if seed in used:
            continue
        case = drawn_case(random.Random(seed), max_requests=9, max_output=40)
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
