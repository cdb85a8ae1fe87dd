"""Requests hit in our model of SGLang's cache what they hit in SGLang's own, request by request.

KVTRACE_CLIENTS names a folder of environments (see test_load.py); `sglang` needs `pip install --no-deps sglang` and
`pip install torch numpy`. `KVTRACE_CLIENTS=... python -m tests.clients.test_sglang_cache` writes the vectors anew.
"""

import itertools
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from kvtrace import read
from kvtrace.cache.demand import block_demand
from kvtrace.cache.layout import Drafting
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace
from tests.cache.test_engine_sglang import POLICIES, VECTORS, drawn, made, plan, serve, vector_trace

PYTHON = Path(os.environ.get("KVTRACE_CLIENTS", "no-such-folder")) / "sglang/bin/python"
MODES, SCHEDULES = (
    ("block", "token", "grow"),
    ("serial", "concurrency:2", "concurrency:4", "open-loop:0.5", "open-loop:4"),
)
TREES = ("unified", "radix")
needs_sglang = pytest.mark.skipif(not PYTHON.exists(), reason="no environment sglang in KVTRACE_CLIENTS")

DRAWN = {  # name -> prompts of full blocks
    "a split refreshes the part that did not match": ["0 1 2 3", "4 5", "0 1", "6 7", "0 1 2 3"],
    "whole nodes go": ["0 1 2", "3 4", "0 1"],
    "a parent becomes a leaf": ["0 1", "0 2", "3 4 5 6", "0 1"],
    "two requests protect": ["0 1", "0 1", "2 3", "4 5", "0 1 6"],
    "always the same": ["0 1 2", "0 1 2", "0 1 2"],
    "a split passes the priority on": ["0 1 2", "0 3", "4 5", "0 3", "6 7 8 9", "0 10"],
}
PRIORITIES = [2, 0, 2, 0, 3, 0]


def wanted(trace, mode, schedule, policy, capacity, tree, drafting=None):
    """The case in the words of sglang_cache.py: pages of tokens, equal where the ids are."""
    demand, size = block_demand(trace, mode, recompute_last=True), trace.block_size
    kind, _, figure = schedule.partition(":")
    when = {name: np.asarray(value).tolist() for name, value in plan(trace, kind, figure).items()}
    requests = []
    for row in range(len(trace)):
        pages = demand.ids[demand.start[row] : demand.start[row] + demand.full[row]]
        rest = trace.input_length[row] % size if mode != "block" else 0
        tokens = (pages[:, None].astype(np.int64) * size + np.arange(size)).ravel()
        tail = 10**9 + row * size + np.arange(rest)  # tokens of nobody else
        if drafting is not None and demand.full[row] < trace.prompt_blocks[row]:
            tail = trace.prompt(row)[demand.full[row]] * size + np.arange(rest)
        requests.append({
            "tokens": [*tokens.tolist(), *tail.tolist()],
            "more": max(int(trace.output_length[row]) - 1, 0) if mode == "grow" else 0,
            "priority": int(trace.extra["priority"][row]),
        })  # fmt: skip
    return {
        "tree": tree, "page_size": size, "capacity": capacity, "policy": policy, "grow": mode == "grow",
        "requests": requests,
        "schedule": {"kind": kind, "arrival": trace.timestamp.tolist(), **when}, "bigram": drafting is not None,
    }  # fmt: skip


def served(cases, folder, script="sglang_cache.py"):
    """What SGLang's own cache says of each case."""
    path = folder / "cases.jsonl"
    path.write_text("".join(json.dumps(case) + "\n" for case in cases))
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [PYTHON, "-W", "ignore", Path(__file__).parent / script, path]
    done = subprocess.run(command, capture_output=True, text=True, env=plain)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def cases_of(trace, kinds, spare, **drafter):
    """Cases of a trace: mode, schedule and policy by turns, and a capacity with so much to spare for each."""
    for (mode, schedule, policy, tree), more in zip(kinds, itertools.cycle(spare), strict=False):
        capacity = int(block_demand(trace, mode).max_blocks.max()) + more
        yield {"mode": mode, "schedule": schedule, "policy": policy, "capacity": capacity, "tree": tree, **drafter}


@needs_sglang
@pytest.mark.parametrize("drafter", [{}, {"drafting": Drafting("bigram")}], ids=["plain", "with a drafter"])
def test_random_traces_hit_as_in_sglang(drafter, tmp_path):
    seed = int(np.random.default_rng().integers(1 << 32))
    rng = np.random.default_rng(seed)
    kinds = list(itertools.product(MODES, SCHEDULES, POLICIES, TREES))
    tried = []
    for number in range(20):
        trace = vector_trace(made(str(number), rng, rows=40, block_size=int(rng.integers(1, 5))))
        some = [kinds[k] for k in rng.permutation(len(kinds))[:20]]  # of both trees
        tried += [(trace, case) for case in cases_of(trace, some, rng.integers(0, 40, size=20).tolist(), **drafter)]
    for (trace, case), real in zip(tried, served([wanted(t, **case) for t, case in tried], tmp_path), strict=True):
        engine = serve(trace, **case)
        found = {"hits": engine.hits.tolist(), "early_frees": engine.early_frees, "version": real["version"]}
        assert found == real, f"seed {seed}: {case}"


ON_THE_CONVERSATION_TRACE = [  # blocks, policy, schedule, tree
    (1_000, "lru", "serial", "unified"), (10_000, "lru", "serial", "unified"), (10_000, "lru", "serial", "radix"),
    (1_000, "fifo", "serial", "unified"), (10_000, "fifo", "serial", "unified"), (10_000, "fifo", "serial", "radix"),
    (10_000, "lfu", "serial", "unified"),
    (3_000, "slru", "concurrency:4", "unified"),
]  # fmt: skip


def block_per_token(whole):
    """A trace with a token for each block of another one, for block mode."""
    columns = Columns(
        whole.timestamp, whole.prompt_blocks, np.ones(len(whole), dtype=int), whole.hash_ids, whole.offsets,
        extra={"priority": np.zeros(len(whole), dtype=int)},
    )  # fmt: skip
    return Trace.from_columns(columns, block_size=1)


@needs_sglang
def test_the_conversation_trace_hits_as_in_sglang(shared, tmp_path):
    trace = block_per_token(read(shared / "data/mooncake/conversation_trace.jsonl"))
    cases = [
        {"mode": "block", "schedule": schedule, "policy": policy, "capacity": capacity, "tree": tree}
        for capacity, policy, schedule, tree in ON_THE_CONVERSATION_TRACE
    ]
    for case, real in zip(cases, served([wanted(trace, **case) for case in cases], tmp_path), strict=True):
        engine = serve(trace, **case)
        assert (engine.hits.tolist(), engine.early_frees) == (real["hits"], real["early_frees"]), case


@needs_sglang
def test_the_vectors_are_what_sglang_says(tmp_path):
    expected = [
        wanted(vector_trace(vector), *(case[name] for name in ("mode", "schedule", "policy", "capacity", "tree")))
        for vector in VECTORS["vectors"]
        for case in vector["cases"]
    ]
    cases = [case for vector in VECTORS["vectors"] for case in vector["cases"]]
    for case, real in zip(cases, served(expected, tmp_path), strict=True):
        assert (case["hits"], case["early_frees"]) == (real["hits"], real["early_frees"])


def make_vectors(folder):
    """Every mode, schedule and order, on drawn traces and on made ones, with what SGLang says of each."""
    rng = np.random.default_rng(5)
    kinds = list(itertools.product(MODES, SCHEDULES, POLICIES, TREES))
    vectors = [drawn(name, prompts, PRIORITIES[: len(prompts)]) for name, prompts in DRAWN.items()]
    vectors += [made(f"conversations, blocks of {size}", rng, rows=40, block_size=size) for size in (1, 4)]
    version = None
    for vector in vectors:
        trace = vector_trace(vector)
        if vector["name"] in DRAWN:
            some = [("block", "serial", policy, tree) for tree in TREES for policy in POLICIES for _ in range(4)]
            cases = list(cases_of(trace, some, spare=range(4)))
        else:
            cases = list(cases_of(trace, kinds, spare=(1, 0, 2, 5, 9, 14, 20, 3)))
        real = served([wanted(trace, **case) for case in cases], folder)
        vector["cases"] = [
            case | {name: r[name] for name in ("hits", "early_frees")} for case, r in zip(cases, real, strict=True)
        ]
        version = real[0]["version"]
    return {
        "engine": "sglang",
        "version": version,
        "cache": "UnifiedRadixCache and RadixCache, page size = block size",
        "vectors": vectors,
    }


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        found = make_vectors(Path(name))
    text = json.dumps(found).replace('{"name"', '\n{"name"').replace('{"mode"', '\n {"mode"')
    (Path(__file__).parent.parent / "vectors/engine_sglang.json").write_text(text + "\n")
