"""Requests hit in our model of vLLM's cache what they hit in vLLM's own, request by request.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `vllm` among them.
`KVTRACE_CLIENTS=... python -m tests.clients.test_vllm_cache` writes the vectors anew.
"""

import itertools
import json
from pathlib import Path

import numpy as np

from kvtrace.cache.demand import block_demand
from kvtrace.cache.layout import Drafting
from tests.cache.test_engine_vllm import VECTORS, plan, serve, vector_trace
from tests.clients.in_vllm import answers, needs_vllm

MODES, SCHEDULES = (
    ("block", "token", "grow"),
    ("serial", "concurrency:2", "concurrency:4", "open-loop:0.5", "open-loop:4"),
)

DRAWN = {  # name -> ids, input lengths and output lengths, in blocks of two tokens
    "the deepest block goes first": (["0 1 2", "3 4", "0 1 5"], [6, 4, 6], [1, 1, 1]),
    "always the same": (["0 1 2", "0 1 2", "0 1 2"], [6, 6, 6], [1, 3, 2]),
    "two copies of a block": (["0 1", "0 1", "2 3", "0 1 4"], [4, 4, 4, 6], [1, 1, 1, 1]),
    "a long one keeps its copy": (["0 1", "0 1", "2 3", "0 1 4"], [4, 4, 4, 6], [20, 1, 1, 1]),
    "a freed block without a hash goes next": (["0", "1", "2", "3", "0 4"], [2, 1, 1, 1, 3], [1] * 5),
    "an idle hit needs its place": (["0 1", "2 3", "0 1 4"], [4, 4, 6], [1, 1, 1]),
    "an output fills the tail": (["0 1", "2 3", "0 4"], [3, 4, 3], [4, 1, 1]),
}


def wanted(trace, mode, schedule, capacity, drafting=None):
    """The case in the words of vllm_cache.py: prompts of tokens that are equal where the ids are."""
    size, tokens = trace.block_size, []
    for row in range(len(trace)):
        prompt = np.repeat(trace.prompt(row), size).tolist()
        tokens.append(prompt if mode == "block" else prompt[: trace.input_length[row]])
    more = np.maximum(trace.output_length - 1, 0).tolist() if mode == "grow" else [0] * len(trace)
    when = {name: np.asarray(value).tolist() for name, value in plan(trace, schedule).items()}
    return {
        "block_size": size, "capacity": capacity, "grow": mode == "grow",
        "schedule": {"kind": schedule.partition(":")[0], "arrival": trace.timestamp.tolist(), **when},
        "requests": [{"tokens": prompt, "more": added} for prompt, added in zip(tokens, more, strict=True)],
        "drafting": drafting and drafting.to_dict(),
    }  # fmt: skip


def served(cases, folder):
    """What vLLM's own cache says of each case."""
    return answers(cases, folder, "vllm_cache.py")


def drawn(name):
    paths, input_length, output_length = DRAWN[name]
    return {
        "name": name, "block_size": 2, "prompts": [[int(word) for word in path.split()] for path in paths],
        "input_length": input_length, "output_length": output_length, "timestamp": list(range(len(paths))),
    }  # fmt: skip


def made(name, rng, rows, block_size):
    """Conversations: prompts that go on from an earlier one, or part of it, and end anywhere in a block."""
    number, said = {}, [()]  # a prefix -> its id
    vector = {"name": name, "block_size": block_size, "prompts": [], "input_length": [], "output_length": []}
    for _ in range(rows):
        before = said[rng.integers(len(said))]
        words = before[: rng.integers(len(before) + 1)] + tuple(rng.integers(3, size=rng.integers(1, 4)).tolist())
        said.append(words)
        tokens = len(words) * block_size - int(rng.integers(block_size))
        last = (words, tokens)  # a partial block is not the full one
        prefixes = [words[: i + 1] for i in range(tokens // block_size)] + [last] * (tokens % block_size > 0)
        vector["prompts"].append([number.setdefault(prefix, len(number)) for prefix in prefixes])
        vector["input_length"].append(tokens)
        vector["output_length"].append(int(rng.integers(1, 4 * block_size)))
    vector["timestamp"] = np.cumsum(rng.integers(0, 6, size=rows)).tolist()
    return vector


def cases_of(trace, spare):
    """Each mode and schedule, with capacities that have so much to spare, by turns."""
    for (mode, schedule), more in zip(itertools.product(MODES, SCHEDULES), itertools.cycle(spare), strict=False):
        capacity = int(block_demand(trace, mode).max_blocks.max()) + more
        yield {"mode": mode, "schedule": schedule, "capacity": capacity}


@needs_vllm
def test_random_traces_hit_as_in_vllm(tmp_path):
    seed = int(np.random.default_rng().integers(1 << 32))
    rng = np.random.default_rng(seed)
    tried = []
    for number in range(40):
        vector = made(str(number), rng, rows=int(rng.integers(2, 60)), block_size=int(rng.integers(1, 5)))
        trace = vector_trace(vector)
        tried += [(trace, case) for case in cases_of(trace, rng.integers(0, 20, size=15).tolist())]
    for (trace, case), real in zip(tried, served([wanted(t, **case) for t, case in tried], tmp_path), strict=True):
        engine = serve(trace, **case)
        found = {"version": real["version"], "hits": engine.hits.tolist(), "early_frees": engine.early_frees}
        assert found == real, f"seed {seed}: {case}"


DRAFTERS = [Drafting(rule, tokens) for rule in ("lookahead", "drop") for tokens in (0, 1, 3, 9)]


def drafted(trace, spare):
    """Each mode and schedule with a drafter, by turns, with capacities that have so much to spare."""
    kinds = itertools.product(MODES, SCHEDULES, DRAFTERS)
    for (mode, schedule, drafting), more in zip(kinds, itertools.cycle(spare), strict=False):
        capacity = int(block_demand(trace, mode, True, drafting).max_blocks.max()) + more
        yield {"mode": mode, "schedule": schedule, "capacity": capacity, "drafting": drafting}


@needs_vllm
def test_with_a_drafter_random_traces_hit_as_in_vllm(tmp_path):
    seed = int(np.random.default_rng().integers(1 << 32))
    rng = np.random.default_rng(seed)
    tried = []
    for number in range(20):
        vector = made(str(number), rng, rows=int(rng.integers(2, 60)), block_size=int(rng.integers(1, 5)))
        trace = vector_trace(vector)
        tried += [(trace, case) for case in drafted(trace, rng.integers(0, 20, size=15).tolist())]
    for (trace, case), real in zip(tried, served([wanted(t, **case) for t, case in tried], tmp_path), strict=True):
        engine = serve(trace, **case)
        found = {"version": real["version"], "hits": engine.hits.tolist(), "early_frees": engine.early_frees}
        assert found == real, f"seed {seed}: {case}"


@needs_vllm
def test_the_vectors_are_what_vllm_says(tmp_path):
    tried = [(vector_trace(vector), case) for vector in VECTORS["vectors"] for case in vector["cases"]]
    asked = [wanted(trace, case["mode"], case["schedule"], case["capacity"]) for trace, case in tried]
    for (_, case), real in zip(tried, served(asked, tmp_path), strict=True):
        assert (case["hits"], case["early_frees"]) == (real["hits"], real["early_frees"])


def make_vectors(folder):
    """Every mode and schedule, on drawn traces and on made ones, with what vLLM says of each."""
    rng = np.random.default_rng(5)
    vectors = [drawn(name) for name in DRAWN]
    vectors += [made(f"conversations, blocks of {size}", rng, rows=40, block_size=size) for size in (1, 4)]
    for vector in vectors:
        trace = vector_trace(vector)
        cases = list(cases_of(trace, spare=(1, 0, 2, 5)))
        real = served([wanted(trace, **case) for case in cases], folder)
        vector["cases"] = [
            case | {"hits": said["hits"], "early_frees": said["early_frees"]}
            for case, said in zip(cases, real, strict=True)
        ]
    return {"engine": "vllm", "version": real[0]["version"], "cache": "KVCacheManager", "vectors": vectors}


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        found = make_vectors(Path(name))
    text = json.dumps(found).replace('{"name"', '\n{"name"').replace('{"mode"', '\n {"mode"')
    (Path(__file__).parent.parent / "vectors/engine_vllm.json").write_text(text + "\n")
