"""Requests hit in our model of SGLang's hybrid trees what they hit in SGLang's own, request by request.

The environment is that of test_sglang_cache.py. `KVTRACE_CLIENTS=... python -m tests.clients.test_sglang_hybrid` writes
the vectors anew.
"""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from kvtrace import read
from kvtrace.cache.demand import block_demand
from kvtrace.cache.layout import Drafting
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace
from tests.cache.test_engine_sglang import POLICIES, drawn, made, vector_trace
from tests.cache.test_engine_sglang_hybrid import SCHEDULES, VECTORS, served_case
from tests.clients import test_sglang_cache as plain

MODES, CORES = ("block", "token"), ("rust", "python")
SCRIPT = "sglang_hybrid.py"

DRAWN = {  # name -> prompts of full blocks
    "a window is kept where paths part": ["0 1 2 3 4 5", "0 1 2 6 7 8", "0 1 2 9", "0 1 2 3 4 5 10"],
    "windows go before blocks": ["0 1 2 3", "4 5 6 7", "8 9 10 11", "0 1 2 3 12", "0 1 2 13"],
    "a window that was lost comes back": ["0 1 2 3", "4 5 6 7", "0 1 2 3 8", "9 10 11", "0 1 2 3 8 12"],
    "always the same": ["0 1 2", "0 1 2", "0 1 2", "0 1 2"],
    "a short prompt has no window": ["0", "0 1", "0 1 2", "0 1 2 3", "0 1 2 3 4"],
}


def wanted(trace, mode, schedule, policy, capacity, tree, second, window=None, every=None, prefill=0, bigram=False):
    """The case in the words of sglang_hybrid.py: pages of tokens."""
    case = plain.wanted(trace, mode, schedule, policy, capacity, tree, Drafting("bigram") if bigram else None)
    kind = {"window": window} if window else {"every": every * trace.block_size}
    return case | {"second": second, "prefill": prefill * trace.block_size} | kind


def drawn_case(rng, trace):
    """A setting with pools that are small for the trace."""
    mode = str(rng.choice(MODES))
    longest = int(block_demand(trace, mode).max_blocks.max())
    capacity = longest + int(rng.integers(0, 40))
    case = {
        "mode": mode, "schedule": str(rng.choice(SCHEDULES)), "policy": str(rng.choice(POLICIES)),
        "capacity": capacity, "tree": str(rng.choice(CORES)),
    }  # fmt: skip
    prefill = int(rng.integers(0, 7)) * int(rng.integers(2))  # blocks that a step computes, 0 = all
    if rng.integers(2):
        window = int(rng.integers(1, 8 * trace.block_size))
        enough = min(longest, prefill + 3 * -(-window // trace.block_size) + 4) if prefill else longest
        case |= {"second": int(rng.integers(enough, capacity + 1)), "window": window}
    else:
        case |= {"second": int(rng.integers(5, 60)), "every": int(rng.integers(1, 4))}
    return case | {"prefill": prefill}


def of_engine(trace, case):
    engine = served_case(trace, case)
    return engine.hits.tolist(), engine.early_frees


@plain.needs_sglang
@pytest.mark.parametrize("drafter", [{}, {"bigram": True}], ids=["plain", "with a drafter"])
def test_random_traces_hit_as_in_sglang(drafter, tmp_path):
    seed = int(np.random.default_rng().integers(1 << 32))
    rng = np.random.default_rng(seed)
    tried = []
    for number in range(30):
        trace = vector_trace(made(str(number), rng, rows=50, block_size=int(rng.integers(1, 5))))
        tried += [(trace, drawn_case(rng, trace) | drafter) for _ in range(12)]
    real = plain.served([wanted(trace, **case) for trace, case in tried], tmp_path, SCRIPT)
    for (trace, case), one in zip(tried, real, strict=True):
        assert of_engine(trace, case) == (one["hits"], one["early_frees"]), f"seed {seed}: {case}"


LAYOUTS = {  # with blocks of 512 tokens: windows of 128 and 1,024 tokens, and states at each block
    "gpt-oss": {"window": 1}, "windows of 1,024": {"window": 2}, "Qwen3-Next": {"every": 1},
}  # fmt: skip
SETTINGS = [  # capacity, schedule, blocks that a step computes
    (1_000, "serial", 0), (5_000, "serial", 0), (10_000, "serial", 0), (10_000, "serial", 16),
    (5_000, "concurrency:4", 16),
]  # fmt: skip
SECOND = {"window": 0.8, "every": 0.05}  # of the first pool


@plain.needs_sglang
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_conversation_trace_hits_as_in_sglang(name, shared, tmp_path):
    whole = read(shared / "data/mooncake/conversation_trace.jsonl")
    columns = Columns(  # a block is a token: block mode
        whole.timestamp, whole.prompt_blocks, np.ones(len(whole), dtype=int), whole.hash_ids, whole.offsets,
        extra={"priority": np.zeros(len(whole), dtype=int)},
    )  # fmt: skip
    trace, layout = Trace.from_columns(columns, block_size=1), LAYOUTS[name]
    cases = [
        {"mode": "block", "schedule": schedule, "policy": "lru", "capacity": capacity, "tree": "rust", **layout}
        | {"second": int(capacity * SECOND[next(iter(layout))]), "prefill": prefill}
        for capacity, schedule, prefill in SETTINGS
    ]
    for case, one in zip(cases, plain.served([wanted(trace, **c) for c in cases], tmp_path, SCRIPT), strict=True):
        assert of_engine(trace, case) == (one["hits"], one["early_frees"]), case


@plain.needs_sglang
def test_the_vectors_are_what_sglang_says(tmp_path):
    cases = [(vector_trace(vector), case) for vector in VECTORS["vectors"] for case in vector["cases"]]
    asked = [
        wanted(trace, **{name: value for name, value in case.items() if name not in ("hits", "early_frees")})
        for trace, case in cases
    ]
    for (_, case), one in zip(cases, plain.served(asked, tmp_path, SCRIPT), strict=True):
        assert (case["hits"], case["early_frees"]) == (one["hits"], one["early_frees"])


def make_vectors(folder):
    """Drawn traces with windows of 1 to 3 blocks and states, and made ones, with what SGLang says of each."""
    rng = np.random.default_rng(20)
    vectors = [drawn(name, prompts, [0] * len(prompts)) for name, prompts in DRAWN.items()]
    vectors += [made(f"conversations, blocks of {size}", rng, rows=40, block_size=size) for size in (1, 2, 4)]
    for vector in vectors:
        trace = vector_trace(vector)
        if vector["name"] in DRAWN:
            common = {"mode": "block", "schedule": "serial", "policy": "lru"}
            kinds = itertools.product((8, 11), ({"window": 1}, {"window": 2}, {"window": 3}, {"every": 1}), (0, 2))
            cases = [
                common | {"capacity": capacity, "tree": "rust", "second": 7 if "window" in kind else 6} | kind
                | {"prefill": prefill}
                for capacity, kind, prefill in kinds
            ]  # fmt: skip
        else:
            cases = [drawn_case(rng, trace) for _ in range(20)]
        real = plain.served([wanted(trace, **case) for case in cases], folder, SCRIPT)
        vector["cases"] = [
            case | {name: one[name] for name in ("hits", "early_frees")} for case, one in zip(cases, real, strict=True)
        ]
    return {
        "engine": "sglang",
        "version": real[0]["version"],
        "cache": "UnifiedRadixCache with windows or states, page size = block size",
        "vectors": vectors,
    }


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        found = make_vectors(Path(name))
    text = json.dumps(found).replace('{"name"', '\n{"name"').replace('{"mode"', '\n {"mode"')
    (Path(__file__).parent.parent / "vectors/engine_sglang_hybrid.json").write_text(text + "\n")
