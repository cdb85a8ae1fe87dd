"""Prefill and decode workers, and their plain twin, take the steps of SGLang's own disaggregated schedulers.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `sglang` among them (see test_sglang_scheduler.py).
`KVTRACE_CLIENTS=... python -m tests.clients.test_sglang_apart` writes the vectors anew.
"""

import itertools
import json
import random
import tempfile
from pathlib import Path

from kvtrace import read
from tests.clients import in_engine
from tests.reference.sglang_apart import played, serve
from tests.serving.apart_cases import require_steps, sglang_apart_case
from tests.serving.test_apart import SGLANG

needs_sglang = in_engine.needs("sglang")
ROWS = 200  # of the conversation trace


def answers(cases, folder):
    """What SGLang's own schedulers do with each case."""
    return in_engine.answers(cases, folder, "sglang", "sglang_apart.py")


def twin(case):
    """The twin's answer, or None where SGLang 0.5.23 aborts a request, or transfers of one moment have no order."""
    try:
        if played(case).tied and case["byte_s"]:
            return None
        return json.loads(json.dumps(serve(case)))
    except MemoryError:
        return None


def compared(seeds, folder):
    """The number of cases in which twin and kernel take SGLang's steps; others are left out."""
    cases = {seed: sglang_apart_case(random.Random(seed)) for seed in seeds}
    cases = {seed: case for seed, case in cases.items() if twin(case) is not None}
    for (seed, case), real in zip(cases.items(), answers(cases.values(), folder), strict=True):
        del real["version"]
        assert twin(case) == real, f"seed {seed}"
        require_steps(case, real, f"seed {seed}")
    return len(cases)


@needs_sglang
def test_random_cases_take_the_steps_of_sglang(tmp_path):
    seed = random.SystemRandom().randrange(1 << 30)
    assert compared(range(seed, seed + 60), tmp_path) > 40


@needs_sglang
def test_the_conversation_trace_takes_the_steps_of_sglang(shared, tmp_path):
    trace = read(next(shared.rglob("conversation_trace.jsonl")))
    rows = [
        {
            "arrival": float(trace.timestamp[row]) / 1000 + 1e-6 * row, "ids": trace.prompt(row).tolist(),
            "tokens": int(trace.input_length[row]), "output": int(trace.output_length[row]),
        }
        for row in range(ROWS)
    ]  # fmt: skip
    cost = {"token_s": 2e-5, "pair_s": 1e-10, "step_s": 0.006, "read_s": 2e-8, "overhead_s": 0.002}
    settings = {"page_size": 64, "chunked_prefill_size": 8192, "max_running_requests": 256}
    cases = [
        {
            "block_size": trace.block_size, "capacity": 512_000, "cost": cost, "requests": rows, "settings": settings,
            "workers": workers, "byte_s": 1 / 50e9, "latency": 1e-3, "bytes_per_token": 131_072.0,
            "decode": {"capacity": capacity, "settings": settings | options},
        }
        for workers, capacity, options in (
            ([2, 1], 512_000, {}),
            ([1, 2], 256_000, {"disaggregation_decode_enable_radix_cache": True, "max_running_requests": 16}),
        )
    ]  # fmt: skip
    for case, real in zip(cases, answers(cases, tmp_path), strict=True):
        require_steps(case, real, f"{case['workers']}")


@needs_sglang
def test_the_vectors_are_what_sglang_says(tmp_path):
    vectors = SGLANG["vectors"]
    for vector, real in zip(vectors, answers([one["case"] for one in vectors], tmp_path), strict=True):
        assert real == vector["served"] | {"version": SGLANG["version"]}, vector["name"]


# -- vectors ---------------------------------------------------------------------------------------------------------


def decode_is(**settings):
    return lambda case, _: all(case["decode"]["settings"].get(name) == value for name, value in settings.items())


def prefill_is(**settings):
    return lambda case, _: all(case["settings"].get(name) == value for name, value in settings.items())


def retracts(_, answer):
    return any(row[-1] for row in answer["requests"])


def waits(case, answer):
    """A request waits for room on the decode worker."""
    alone = case | {"decode": case["decode"] | {"capacity": 100_000}}
    return [row[2] for row in twin(alone)["requests"]] != [row[2] for row in answer["requests"]]


def sends_early(_, answer):
    return any(row[4] < row[3] for row in answer["requests"])


def holds(_, answer):
    return sum(row[1] > 0 for row in answer["requests"]) > 1


def hits(_, answer):
    return sum(row[0] > 0 for row in answer["requests"]) > 1


def workers(prefill, decode):
    return lambda case, _: case["workers"] == [prefill, decode]


def slow(case, _):
    return case["byte_s"] > 1e-4


LATE, NORMAL = {"disable_overlap_schedule": False}, {"disable_overlap_schedule": True}
RADIX = {"disaggregation_decode_enable_radix_cache": True}
WISHES = {  # name -> what the case must show
    "one step late on both sides": [prefill_is(**LATE), decode_is(**LATE), hits],
    "step by step on both sides": [prefill_is(**NORMAL), decode_is(**NORMAL), hits],
    "a chunk is sent before the prompt is computed": [prefill_is(**LATE), sends_early, slow],
    "chunks and step by step": [prefill_is(**NORMAL), sends_early, slow],
    "prompts are not divided": [prefill_is(chunked_prefill_size=-1), hits],
    "pages of 16": [prefill_is(page_size=16), hits],
    "requests wait for the decode worker": [waits, decode_is(**LATE)],
    "one request at a time": [decode_is(max_running_requests=1), waits],
    "retraction, one step late": [retracts, decode_is(**LATE)],
    "retraction, step by step": [retracts, decode_is(**NORMAL)],
    "a radix cache on the decode worker": [decode_is(**RADIX), holds, waits],
    "retraction with a radix cache": [decode_is(**RADIX), holds, retracts],
    "two prefill workers": [workers(2, 1), slow, hits],
    "two decode workers": [workers(1, 2), slow, hits],
    "two of each": [workers(2, 2), slow, waits],
    "priorities": [decode_is(enable_priority_scheduling=True), waits],
}


def wished(wishes, used):
    """The first small random case that shows what is wished, and was not used before."""
    for seed in itertools.count(40_000):
        case = sglang_apart_case(random.Random(seed), max_requests=9, max_output=30)
        answer = twin(case) if seed not in used and len(case["requests"]) > 3 else None
        if answer and sum(map(len, answer["prefill"] + answer["decode"])) < 70 and all(
            wish(case, answer) for wish in wishes
        ):  # fmt: skip
            used.add(seed)
            return case


def make_vectors(folder):
    """A case for each wish, with what SGLang does."""
    used = set()
    cases = [wished(wishes, used) for wishes in WISHES.values()]
    found = answers(cases, folder)
    lines = [
        json.dumps({"name": name, "case": case, "served": {key: real[key] for key in real if key != "version"}})
        for name, case, real in zip(WISHES, cases, found, strict=True)
    ]  # fmt: skip
    return json.dumps({"version": found[0]["version"]})[:-1] + ', "vectors": [\n' + ",\n".join(lines) + "\n]}\n"


if __name__ == "__main__":
    from tests.serving.test_apart import SGLANG_PATH

    with tempfile.TemporaryDirectory() as path:
        SGLANG_PATH.write_text(make_vectors(Path(path)))
