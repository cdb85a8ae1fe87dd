"""Requests hit in our model of SGLang's HiCache what they hit in SGLang's own, from the same tier, request by request.

As tests/clients/test_sglang_cache.py. `KVTRACE_CLIENTS=... python -m tests.clients.test_sglang_hicache` writes the
vectors anew.
"""

import json
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest

from kvtrace import read
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace
from tests.cache.test_engine_sglang import vector_trace
from tests.cache.test_engine_sglang_hicache import drawn_case, drawn_vector, serve
from tests.clients.test_sglang_cache import needs_sglang, served, wanted
from tests.reference import sglang_hicache_scheduler, sglang_storage_scheduler
from tests.reference.sglang_hicache import THRESHOLD
from tests.serving.storage_cases import fits_blocks, is_served, storage_case
from tests.serving.test_sglang_hicache_kernel import hosted_case, require_equal

SCHEDULER, STORAGE = "sglang_hicache_scheduler.py", "sglang_storage_scheduler.py"
CORES = ("rust", "python")


def asked(trace, case, core="rust"):
    """The case in the words of sglang_hicache.py."""
    words = wanted(trace, *(case[name] for name in ("mode", "schedule", "policy", "capacity")), "unified")
    for row, request in enumerate(words["requests"]):
        request["instance"] = row % case["instances"]
    if case["storage"]:
        words["storage"] = {"capacity": case["storage"], "prefetch_threshold": case["prefetch_tokens"]}
    return words | {"host": case["host"], "write_policy": case["write_policy"], "core": core}


def answers(asked_cases, folder):
    """(hits by source, early frees, evicted) of each case."""
    real = served(asked_cases, folder, "sglang_hicache.py")
    return [(answer["hits"], answer["early_frees"], answer["evicted"]) for answer in real]


@needs_sglang
@pytest.mark.parametrize("storage", [False, True], ids=["two tiers", "three tiers"])
def test_random_traces_hit_as_in_sglang(storage, tmp_path):
    seed = int(np.random.default_rng().integers(1 << 32))
    rng, tried = np.random.default_rng(seed), []
    for number in range(100):
        trace = vector_trace(drawn_vector(str(number), rng))
        tried.append((trace, drawn_case(trace, rng, storage=storage)))
    cases = [asked(trace, case, CORES[number % 2]) for number, (trace, case) in enumerate(tried)]
    for (trace, case), real in zip(tried, answers(cases, tmp_path), strict=True):
        assert serve(trace, case) == real, (seed, case)


def short_blocks(whole, rows, tokens):
    """The first rows of a trace with blocks of so many tokens, for block mode."""
    part = whole[:rows]
    columns = Columns(
        part.timestamp, part.prompt_blocks * tokens, np.ones(rows, dtype=int), part.hash_ids, part.offsets,
        extra={"priority": np.zeros(rows, dtype=int)},
    )  # fmt: skip
    return Trace.from_columns(columns, block_size=tokens)


@needs_sglang
@pytest.mark.parametrize("write_policy", ["write_through", "write_through_selective", "write_back"])
def test_the_conversation_trace_hits_as_in_sglang(write_policy, shared, tmp_path):
    trace = short_blocks(read(shared / "data/mooncake/conversation_trace.jsonl"), 2_000, 10)
    case = {
        "mode": "block", "schedule": "serial", "policy": "lru", "capacity": 1_000, "host": 5_000,
        "write_policy": write_policy, "storage": 20_000, "prefetch_tokens": 20, "instances": 2,
    }  # fmt: skip
    (real,) = answers([asked(trace, case)], tmp_path)
    assert serve(trace, case) == real


@needs_sglang
def test_random_cases_take_the_steps_that_sglang_takes(tmp_path):
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    cases = [case for case in (hosted_case(rng) for _ in range(60)) if case is not None]
    for case, real in zip(cases, served(cases, tmp_path, SCHEDULER), strict=True):
        del real["version"]
        assert sglang_hicache_scheduler.serve(case) == real, f"seed {seed}: {case}"
        if case["host"] % case["block_size"] == 0:
            require_equal(case, real, f"seed {seed}: {case}")


@needs_sglang
def test_random_cases_with_a_storage_take_the_steps_that_sglang_takes(tmp_path):
    from tests.serving.test_sglang_storage_kernel import require_equal as require_same_steps

    seed = random.randrange(1 << 32)
    drawn = [storage_case(random.Random(seed + number)) for number in range(30)]
    cases = [case for case in drawn if case is not None]
    for case, real in zip(cases, served(cases, tmp_path, STORAGE), strict=True):
        if real["instances"] is None:  # SGLang would end, or abort a request
            with pytest.raises(MemoryError):
                sglang_storage_scheduler.serve(case)
            continue
        del real["version"]
        assert sglang_storage_scheduler.serve(case) == real, f"seed {seed}: {case}"
        if fits_blocks(case) and is_served(real):
            require_same_steps(case, real, f"seed {seed}: {case}")


def make_storage_vectors(folder, count=9):
    """Short cases with a storage in which pages come from it, with what SGLang's scheduler does."""
    chosen, number = [], 0
    while len(chosen) < count:
        case, number = storage_case(random.Random(number)), number + 1
        if case is None or not fits_blocks(case) or len(case["requests"]) > 16:
            continue
        try:
            answer = sglang_storage_scheduler.serve(case)
        except MemoryError:
            continue
        rows = [row for one in answer["instances"] for row in one["requests"]]
        if sum(len(one["steps"]) for one in answer["instances"]) < 120 and any(row[6] for row in rows):
            chosen.append({"name": f"{case['storage']['policy']} {len(chosen)}", "case": case})
    for vector, real in zip(chosen, served([each["case"] for each in chosen], folder, STORAGE), strict=True):
        version = real.pop("version")
        vector["served"] = real
    return {"engine": "sglang", "version": version, "vectors": chosen}


def make_scheduler_vectors(folder):
    """Cases in which requests load from the host, two of each write policy, with what SGLang's scheduler does."""
    rng, vectors = random.Random(41), []
    while len(vectors) < 6:
        case, policy = hosted_case(rng), [*THRESHOLD][len(vectors) // 2]
        if case is None or case["host"] % case["block_size"] or len(case["requests"]) > 30:
            continue
        case["write_policy"] = policy
        try:
            answer = sglang_hicache_scheduler.serve(case)
        except MemoryError:
            continue
        if 40 < len(answer["steps"]) < 300 and any(answer["loaded"]):
            vectors.append({"name": f"{policy} {len(vectors)}", "case": case})
    answers = served([each["case"] for each in vectors], folder, SCHEDULER)
    version = answers[0]["version"]
    for vector, real in zip(vectors, answers, strict=True):
        del real["version"]
        vector["served"] = real
    return {"engine": "sglang", "version": version, "vectors": vectors}


def make_vectors(folder):
    """Drawn cases, half of them with storage, with what SGLang says of each."""
    rng, vectors = np.random.default_rng(41), []
    for number in range(40):
        vectors.append(drawn_vector(f"case {number}", rng))
        vectors[-1]["case"] = drawn_case(vector_trace(vectors[-1]), rng, storage=number % 2 == 1)
    cases = [asked(vector_trace(vector), vector["case"]) for vector in vectors]
    for vector, real in zip(vectors, answers(cases, folder), strict=True):
        vector |= dict(zip(("hits", "early_frees", "evicted"), real, strict=True))
    return {
        "engine": "sglang",
        "version": "0.5.23",
        "cache": "UnifiedRadixCache with HybridCacheController and HiCacheFile, page size = block size",
        "vectors": vectors,
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        made, scheduled = make_vectors(Path(folder)), make_scheduler_vectors(Path(folder))
        stored = make_storage_vectors(Path(folder))
    text = json.dumps(stored).replace('{"name"', '\n{"name"')
    (Path(__file__).parents[1] / "vectors/scheduler_sglang_storage.json").write_text(text + "\n")
    text = json.dumps(scheduled).replace('{"name"', '\n{"name"')
    (Path(__file__).parents[1] / "vectors/scheduler_sglang_hicache.json").write_text(text + "\n")
    text = (
        json.dumps(made)
        .replace('{"name"', '\n{"name"')
        .replace('"case":', '\n "case":')
        .replace('"hits":', '\n "hits":')
    )
    (Path(__file__).parents[1] / "vectors/engine_sglang_hicache.json").write_text(text + "\n")
