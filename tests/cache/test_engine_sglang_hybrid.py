"""SGLang's tree for models of two kinds of layers: hand-worked traces, its twin, and vectors from SGLang itself."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace import read
from kvtrace._base.errors import UsageError
from kvtrace.cache import simulate
from kvtrace.cache.demand import block_demand
from kvtrace.cache.engines import sglang
from kvtrace.cache.layout import CacheGroup, CacheLayout, Drafting
from kvtrace.cache.policies.base import Context
from kvtrace.cache.simulation import Setting
from kvtrace.serving.instances import simulate_instances
from kvtrace.trace.building import toy
from tests.cache.test_engine_sglang import POLICIES, made, plan, vector_trace
from tests.reference import radix, sglang_hybrid

VECTORS = json.loads((Path(__file__).parents[1] / "vectors/engine_sglang_hybrid.json").read_text())
SCHEDULES = ("serial", "concurrency:2", "concurrency:4", "open-loop:0.5", "open-loop:4")


def windows(block_size, window, ratio=0.0, prefill=0):
    """A layout of full attention and windows of so many tokens, as the model's config.json counts them."""
    full, other = CacheGroup("full", 1, block_size), CacheGroup("window", 1, block_size, window)
    return CacheLayout((full, other), second_ratio=ratio, step_tokens=prefill * block_size)


def states(block_size, every, ratio, prefill=0):
    """A layout of full attention and states, which a prefill can record every so many blocks."""
    full, other = CacheGroup("full", 1, block_size), CacheGroup("state", 1, every * block_size)
    return CacheLayout((full, other), second_ratio=ratio, step_tokens=prefill * block_size)


def serve(trace, capacity, layout, policy="lru", mode="block", schedule="serial", drafting=None):
    """The engine after the whole trace."""
    setting = Setting(capacity, policy, "sglang", mode, layout=layout, drafting=drafting)
    demand = block_demand(trace, *setting.demand_options)
    engine = sglang.build(demand, Context(demand.blocks, capacity, trace, demand), policy, layout=layout)
    kind, _, figure = schedule.partition(":")
    engine.schedule(kind, **plan(trace, kind, figure))
    engine.advance(len(trace))
    engine.close()
    return engine


def requests_of(trace, mode):
    """The trace's requests for a twin."""
    demand = block_demand(trace, mode, recompute_last=True)
    return [
        radix.Request(
            path=demand.ids[demand.start[row] : demand.start[row] + demand.full[row]].tolist(),
            limit=int(demand.limit[row]),
            tail=int(demand.tail[row]),
            priority=int(trace.extra["priority"][row]),
        )
        for row in range(len(trace))
    ]


def serve_slowly(trace, cache, mode, schedule):
    """(hits, evicted blocks, early frees) of a twin."""
    kind, _, figure = schedule.partition(":")
    arrival = trace.timestamp.tolist()
    return radix.serve_with(cache, requests_of(trace, mode), **plan(trace, kind, figure), arrival=arrival)


def served_case(trace, case):
    """The engine of a vector's case; its `second` is a number, and a `window` what SGLang looks back."""
    layout = layout_of(trace, case)
    drafting = Drafting("bigram") if case.get("bigram") else None
    return serve(trace, case["capacity"], layout, case["policy"], case["mode"], case["schedule"], drafting)


def layout_of(trace, case):
    ratio = (case["second"] + 0.5) / case["capacity"]
    if "window" in case:
        return windows(trace.block_size, case["window"] + 1, ratio, case["prefill"])
    return states(trace.block_size, case["every"], ratio, case["prefill"])


def twin_of(trace, case):
    if "window" in case:
        window = -(-case["window"] // trace.block_size)
        return sglang_hybrid.WindowRadix(case["capacity"], case["second"], window, case["policy"], case["prefill"])
    return sglang_hybrid.StateRadix(case["capacity"], case["second"], case["every"], case["policy"], case["prefill"])


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["name"])
def test_vectors_of_sglang_itself_are_met_by_both(vector):
    trace = vector_trace(vector)
    for case in vector["cases"]:
        engine = served_case(trace, case)
        assert (engine.hits.tolist(), engine.early_frees) == (case["hits"], case["early_frees"])
        slow_hits, _, slow_early = serve_slowly(trace, twin_of(trace, case), case["mode"], case["schedule"])
        assert (slow_hits, slow_early) == (case["hits"], case["early_frees"])


drawn_traces = st.builds(
    lambda seed, size: vector_trace(made("", np.random.default_rng(seed), rows=40, block_size=size)),
    st.integers(0, 1 << 32), st.integers(1, 4),
)  # fmt: skip
drawn_settings = st.fixed_dictionaries({
    "mode": st.sampled_from(["block", "token"]), "schedule": st.sampled_from(SCHEDULES),
    "policy": st.sampled_from(POLICIES), "prefill": st.integers(0, 6),
})  # fmt: skip


def require_equal_to_twin(trace, case):
    engine, twin = served_case(trace, case), twin_of(trace, case)
    found = engine.hits.tolist(), engine.evictions, engine.early_frees
    assert found == serve_slowly(trace, twin, case["mode"], case["schedule"])


@given(drawn_traces, drawn_settings, st.integers(0, 40), st.floats(0, 1), st.integers(1, 24))
def test_the_tree_of_windows_equals_its_twin(trace, case, spare, share, window):
    longest = int(block_demand(trace, case["mode"]).max_blocks.max())
    step, reach = case["prefill"], -(-window // trace.block_size)
    enough = min(longest, step + 3 * reach + 4) if step else longest  # a lone request must fit
    capacity = longest + spare
    second = int(enough + (capacity - enough) * share)
    require_equal_to_twin(trace, case | {"capacity": capacity, "second": second, "window": window})


@given(drawn_traces, drawn_settings, st.integers(0, 40), st.integers(5, 60), st.integers(1, 3))
def test_the_tree_of_states_equals_its_twin(trace, case, spare, second, every):
    capacity = int(block_demand(trace, case["mode"]).max_blocks.max()) + spare
    own = {"capacity": capacity, "second": second, "every": every}
    require_equal_to_twin(trace, case | own)


def hits(*prompts, capacity=100, layout):
    return serve(toy(*prompts), capacity, layout).hits.tolist()


def test_a_request_resumes_where_the_last_window_is_resident():
    #  0 1 2 3 4 5 keeps the windows of 4 5 and one more, 3; the next prompt shares all but 5 and has 3 4 behind it
    #  the third shares 0 1 2, whose windows are gone: it starts anew, and leaves windows at 1 2
    #  the fourth resumes there
    prompts = "0 1 2 3 4 5", "0 1 2 3 4 6", "0 1 2 7", "0 1 2 8"
    assert hits(*prompts, layout=windows(1, 3)) == [0, 5, 0, 3]
    assert hits(*prompts, layout=None) == [0, 5, 3, 3]


def test_a_short_prefix_has_no_window_to_lose():
    #  SGLang looks 4 tokens back; 0 1 has windows from the prompt's begin on, and that is as good
    assert hits("0 1 2", "0 1 3", layout=windows(1, 5)) == [0, 2]


def test_windows_alone_are_evicted_where_blocks_have_room():
    #  the second pool has 5 blocks: 3 4 5 6 takes the windows of 0 1 2, not its blocks in a first pool of 100
    #  the third prompt cannot resume, though 0 1 2 is resident
    engine = serve(toy("0 1 2", "3 4 5 6", "7 8 9 10", "0 1 2 11"), 100, windows(1, 3, 0.05))
    assert engine.hits.tolist() == [0, 0, 0, 0] and engine.evictions < 11


def test_a_state_is_recorded_at_the_end_of_a_prompt_and_where_paths_part():
    #  the state of 0 1 2 3 lies at its end: the second prompt shares 0 1 without a state, and records one there
    #  the third resumes there
    prompts = "0 1 2 3", "0 1 4 5", "0 1 6 7", "0 1 2 3 8"
    assert hits(*prompts, layout=states(1, 1, 0.5)) == [0, 0, 2, 4]


def test_states_lie_at_multiples():
    #  a state each two blocks: the first prompt's lies after 1, and its last block is not kept
    assert hits("0 1 2", "0 1 2 3 4", "0 1 2 3 4 5", layout=states(1, 2, 0.5)) == [0, 2, 4]


def test_steps_leave_more_places_to_resume():
    #  in one step 0 .. 7 has a state at its end; in steps of four, one after 3 too
    prompts = "0 1 2 3 4 5 6 7", "0 1 2 3 8 9"
    assert hits(*prompts, layout=states(1, 1, 0.5)) == [0, 0]
    assert hits(*prompts, layout=states(1, 1, 0.5, prefill=4)) == [0, 4]
    prompts = "0 1 2 3 4 5 6 7", "0 1 2 3 8 9"
    assert hits(*prompts, layout=windows(1, 3)) == [0, 0]
    assert hits(*prompts, layout=windows(1, 3, prefill=4)) == [0, 4]


@pytest.mark.parametrize("kind", [{"window": 3}, {"every": 2}])
def test_a_router_sees_what_a_request_would_hit(kind):
    trace = vector_trace(made("", np.random.default_rng(3), rows=200, block_size=1))
    case = {"mode": "block", "schedule": "serial", "policy": "lru", "prefill": 0, "capacity": 40, "second": 30} | kind
    layout = layout_of(trace, case)
    fleet = simulate_instances(
        trace, 3, "overlap", setting=Setting(40, engine="sglang", layout=layout), schedule="serial"
    )
    caches, chosen, hit_blocks = [twin_of(trace, case) for _ in range(3)], [], []
    for row, request in enumerate(requests_of(trace, "block")):
        would_hit = [
            sum(len(node.run) for node in copy.deepcopy(cache).match(request.path[: request.limit])[0])
            for cache in caches
        ]
        chosen.append(int(np.argmax(would_hit)))
        hit_blocks.append(caches[chosen[-1]].admit(row, request))
        caches[chosen[-1]].finish(row, request, False)
        assert hit_blocks[-1] == max(would_hit)
    assert (fleet.instance.tolist(), fleet.hit_blocks.tolist()) == (chosen, hit_blocks)


def test_five_states_let_one_request_run():
    #  concurrency of two, but states for one: the first request ends early
    engine = serve(toy("0 1", "2 3", "4 5"), 10, states(1, 1, 0.9), schedule="concurrency:3")
    assert engine.early_frees == 2


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (states(1, 1, 0.4), "SGLang needs 5 states to run a request; these are 4"),
        (windows(1, 3, 0.2), "A step of the longest request needs 3 blocks of windows; the second pool has 2"),
        (windows(2, 3), "as long as the trace's .1 tokens"),
        (CacheLayout((CacheGroup("window", 1, 1, 3),)), "SGLang's tree has full attention and one other kind"),
        (
            CacheLayout((CacheGroup("full", 1, 1), CacheGroup("window", 1, 1, 3), CacheGroup("state", 1, 1))),
            "SGLang's tree has full attention and one other kind",
        ),
    ],
)
def test_layouts_that_cannot_be_run_are_refused(layout, message):
    with pytest.raises(UsageError, match=message):
        simulate(toy("0 1 2"), 10, engine="sglang", layout=layout)


def test_what_is_not_modelled_is_refused():
    trace, layout = toy("0 1 2"), windows(1, 3)
    for options, message in (
        ({"mode": "grow"}, "outputs of full attention only"),
        ({"tree": "radix"}, "SGLang's older tree"),
        (
            {"engine": "dynamo"},
            "Engine dynamo models full attention only",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            simulate(trace, 10, **{"engine": "sglang", "layout": layout} | options)


def test_full_attention_as_a_layout_changes_nothing():
    trace = vector_trace(made("", np.random.default_rng(2), rows=60, block_size=2))
    full = CacheLayout((CacheGroup("full", 1, 2),))
    for engine in ("sglang", "vllm", "reference"):
        plain, same = (simulate(trace, 30, engine=engine, layout=layout) for layout in (None, full))
        assert plain.hit_blocks.tolist() == same.hit_blocks.tolist() and plain.evictions == same.evictions


@pytest.mark.parametrize(
    ("window", "every", "prefill", "hit_blocks"),
    [
        (128, None, 0, 56_744),
        (128, None, 8192, 59_174),
        (1024, None, 0, 56_646),
        (None, 1, 0, 29_319),
        (None, 1, 8192, 31_004),
    ],
)
def test_hits_of_the_conversation_trace(shared, window, every, prefill, hit_blocks):
    trace = read(shared / "data/mooncake/conversation_trace.jsonl")
    layout = windows(512, window, 0.8, prefill // 512) if window else states(512, every, 0.05, prefill // 512)
    assert int(serve(trace, 10_000, layout).hits.sum()) == hit_blocks
