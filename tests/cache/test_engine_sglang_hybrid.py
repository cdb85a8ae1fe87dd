"""SGLang's tree for models of two kinds of layers: hand-worked traces, its twin, and vectors from SGLang itself."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.cache.demand import block_demand
from kvtrace.cache.engines import sglang
from kvtrace.cache.layout import CacheGroup, CacheLayout
from kvtrace.cache.policies.base import Context
from tests.cache.test_engine_sglang import POLICIES, made, plan, vector_trace
from tests.reference import radix, sglang_hybrid

VECTORS = json.loads((Path(__file__).parents[1] / "vectors/engine_sglang_hybrid.json").read_text())
SCHEDULES = ("serial", "concurrency:2", "concurrency:4", "open-loop:0.5", "open-loop:4")


def windows(block_size, window, ratio=0.0):
    """A layout of full attention and windows of so many tokens, as the model's config.json counts them."""
    full, other = CacheGroup("full", 1, block_size), CacheGroup("window", 1, block_size, window)
    return CacheLayout((full, other), second_ratio=ratio)


def states(block_size, every, ratio):
    """A layout of full attention and states, which a prefill can record every so many blocks."""
    full, other = CacheGroup("full", 1, block_size), CacheGroup("state", 1, every * block_size)
    return CacheLayout((full, other), second_ratio=ratio)


def serve(trace, capacity, layout, policy="lru", mode="block", schedule="serial"):
    """The engine after the whole trace."""
    demand = block_demand(trace, mode, recompute_last=True)
    engine = sglang.build(demand, Context(demand.blocks, capacity, trace, demand), policy, layout=layout)
    kind, _, figure = schedule.partition(":")
    engine.schedule(kind, **plan(trace, kind, figure))
    engine.advance(len(trace))
    engine.close()
    return engine


def serve_slowly(trace, cache, mode, schedule):
    """(hits, evicted blocks, early frees) of a twin."""
    demand = block_demand(trace, mode, recompute_last=True)
    requests = [
        radix.Request(
            path=demand.ids[demand.start[row] : demand.start[row] + demand.full[row]].tolist(),
            limit=int(demand.limit[row]),
            tail=int(demand.tail[row]),
            priority=int(trace.extra["priority"][row]),
        )
        for row in range(len(trace))
    ]
    kind, _, figure = schedule.partition(":")
    return radix.serve_with(cache, requests, **plan(trace, kind, figure), arrival=trace.timestamp.tolist())


def served_case(trace, case):
    """The engine of a vector's case; its `second` is a number, and a `window` what SGLang looks back."""
    ratio = (case["second"] + 0.5) / case["capacity"]
    if "window" in case:
        layout = windows(trace.block_size, case["window"] + 1, ratio)
    else:
        layout = states(trace.block_size, case["every"], ratio)
    return serve(trace, case["capacity"], layout, case["policy"], case["mode"], case["schedule"])


def twin_of(trace, case):
    if "window" in case:
        window = -(-case["window"] // trace.block_size)
        return sglang_hybrid.WindowRadix(case["capacity"], case["second"], window, case["policy"])
    return sglang_hybrid.StateRadix(case["capacity"], case["second"], case["every"], case["policy"])


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["name"])
def test_vectors_of_sglang_itself_are_met_by_both(vector):
    trace = vector_trace(vector)
    for case in vector["cases"]:
        engine = served_case(trace, case)
        assert (engine.hits.tolist(), engine.early_frees) == (case["hits"], case["early_frees"])
        slow_hits, _, slow_early = serve_slowly(trace, twin_of(trace, case), case["mode"], case["schedule"])
        assert (slow_hits, slow_early) == (case["hits"], case["early_frees"])


@given(
    st.integers(0, 1 << 32), st.integers(1, 4), st.integers(0, 40), st.floats(0, 1), st.integers(2, 24),
    st.sampled_from(POLICIES), st.sampled_from(["block", "token"]), st.sampled_from(SCHEDULES),
)  # fmt: skip
def test_the_tree_of_windows_equals_its_twin(seed, size, spare, share, window, policy, mode, schedule):
    trace = vector_trace(made("", np.random.default_rng(seed), rows=40, block_size=size))
    needed = int(block_demand(trace, mode).max_blocks.max())
    capacity = needed + spare
    second = int(needed + spare * share)
    layout = windows(size, window, (second + 0.5) / capacity)
    engine = serve(trace, capacity, layout, policy, mode, schedule)
    twin = sglang_hybrid.WindowRadix(capacity, second, -(-(window - 1) // size), policy)
    assert (engine.hits.tolist(), engine.evictions, engine.early_frees) == serve_slowly(trace, twin, mode, schedule)


@given(
    st.integers(0, 1 << 32), st.integers(1, 4), st.integers(0, 40), st.integers(5, 60), st.integers(1, 3),
    st.sampled_from(POLICIES), st.sampled_from(["block", "token"]), st.sampled_from(SCHEDULES),
)  # fmt: skip
def test_the_tree_of_states_equals_its_twin(seed, size, spare, second, every, policy, mode, schedule):
    trace = vector_trace(made("", np.random.default_rng(seed), rows=40, block_size=size))
    capacity = int(block_demand(trace, mode).max_blocks.max()) + spare
    engine = serve(trace, capacity, states(size, every, (second + 0.5) / capacity), policy, mode, schedule)
    twin = sglang_hybrid.StateRadix(capacity, second, every, policy)
    assert (engine.hits.tolist(), engine.evictions, engine.early_frees) == serve_slowly(trace, twin, mode, schedule)
