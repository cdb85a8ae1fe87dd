"""Drafters in the caches: golden counts of the engines' own code, their twins, and what is refused."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace._base.errors import UsageError
from kvtrace.cache import engines
from kvtrace.cache.layout import CacheGroup, CacheLayout, Drafting
from kvtrace.cache.setup import CacheSetup
from kvtrace.cache.simulation import Setting, optimum_of, run, simulate_settings
from kvtrace.serving import explain
from kvtrace.serving.schedulers.base import Tier
from kvtrace.serving.schedulers.vllm import VllmScheduler
from kvtrace.serving.simulation import StepCost, open_loop
from kvtrace.trace.building import toy
from tests.cache import test_engine_sglang as sglang
from tests.cache import test_engine_sglang_hybrid as sglang_hybrid
from tests.cache import test_engine_vllm as vllm
from tests.cache.hybrid_cases import engine_run, twin_run
from tests.conftest import ROOT
from tests.reference import sglang_scheduler
from tests.serving import test_sglang_kernel, test_vllm_scheduler
from tests.strategies import traces

PATH = ROOT / "tests/vectors/drafters.json"
VECTORS = json.loads(PATH.read_text())
LOOKAHEAD, DROP, BIGRAM = (Drafting(rule) for rule in ("lookahead", "drop", "bigram"))


def hits(trace, drafting, engine="vllm", capacity=100, **options):
    return run(Setting(capacity, engine=engine, drafting=drafting, **options), trace).hit_blocks.tolist()


def require_said(serve, trace, vector):
    """The engine serves every case of a vector as the real engine did."""
    for case in vector["cases"]:
        options, said = case_of(case)
        engine = serve(trace, **options)
        assert (engine.hits.tolist(), engine.early_frees) == said


def case_of(case):
    """A vector's case as the engines' tests take it, and what the engine said."""
    said = case["hits"], case["early_frees"]
    options = {name: value for name, value in case.items() if name not in ("hits", "early_frees")}
    return options | {"drafting": Drafting(**case["drafting"])}, said


# ---- vectors


@pytest.mark.parametrize("vector", VECTORS["vllm"], ids=lambda vector: vector["name"])
def test_vectors_of_vllm_are_met_by_both(vector):
    trace = vllm.vector_trace(vector)
    require_said(vllm.serve, trace, vector)
    for case in vector["cases"]:
        options, said = case_of(case)
        slow_hits, _, slow_early = vllm.serve_slowly(trace, **options)
        assert (slow_hits, slow_early) == said


@pytest.mark.parametrize("case", VECTORS["vllm_hybrid"], ids=range(len(VECTORS["vllm_hybrid"])))
def test_vectors_of_vllm_with_cache_groups_are_met_by_both(case):
    assert engine_run(case) == twin_run(case) == (case["hits"], case["early_frees"])


@pytest.mark.parametrize("vector", VECTORS["sglang"], ids=lambda vector: vector["name"])
def test_vectors_of_sglang(vector):
    require_said(sglang.serve, sglang.vector_trace(vector), vector)


@pytest.mark.parametrize("vector", VECTORS["sglang_hybrid"], ids=lambda vector: vector["name"])
def test_vectors_of_sglang_with_two_pools(vector):
    trace = sglang.vector_trace(vector)
    for case in vector["cases"]:
        engine = sglang_hybrid.served_case(trace, case)
        assert (engine.hits.tolist(), engine.early_frees) == (case["hits"], case["early_frees"])


@pytest.mark.parametrize("vector", VECTORS["vllm_scheduler"], ids=range(len(VECTORS["vllm_scheduler"])))
def test_the_steps_are_those_of_vllm(vector):
    test_vllm_scheduler.require_equal(vector["case"], vector["served"], str(vector["case"]["drafting"]))


@pytest.mark.parametrize("vector", VECTORS["sglang_scheduler"], ids=range(len(VECTORS["sglang_scheduler"])))
def test_the_steps_are_those_of_sglang(vector):
    assert json.loads(json.dumps(sglang_scheduler.serve(vector["case"]))) == vector["served"]
    test_sglang_kernel.require_equal(vector["case"], vector["served"], "a vector")


# ---- the rules, by hand


def test_a_block_hits_only_before_the_same_block():
    """1 is followed by 2, then by 3: only the second 0 1 2 finds it."""
    trace = toy("0 1 2", "0 1 3", "0 1 2")
    assert hits(trace, None) == [0, 2, 2]
    assert hits(trace, LOOKAHEAD) == [0, 1, 2]
    assert hits(trace, DROP) == [0, 1, 1]


def test_sglang_loses_a_token_at_both_ends():
    """Blocks of one token: of four tokens three have a next one, and the prompt's last is not looked up."""
    trace = vllm.trace_of(1, ["0 1 2 3", "0 1 2 3"], [4, 4], [1, 1])
    assert hits(trace, None, "sglang") == [0, 3] and hits(trace, BIGRAM, "sglang") == [0, 2]
    pages = vllm.trace_of(4, ["0 1 2", "0 1 2"], [12, 12], [1, 1])
    assert hits(pages, None, "sglang") == hits(pages, BIGRAM, "sglang") == [0, 2]


def test_trees_with_states_keep_single_tokens():
    layout = CacheLayout((CacheGroup("full", 1, 16), CacheGroup("state", 1, 16)), second_ratio=0.5)
    trace = toy("0 1 2 3", "0 1 2 3 4", "0 1 5", block_size=16)
    found = [hits(trace, drafting, "sglang", layout=layout, mode="token") for drafting in (None, BIGRAM)]
    assert found[0] == found[1] and sum(found[0]) > 0


def test_lookahead_slots_take_room():
    """A prompt of two tokens and a drafter of three hold five slots: three blocks of two tokens."""
    trace = vllm.trace_of(2, ["0", "1", "0"], [2, 2, 2], [1, 1, 1])
    with pytest.raises(UsageError, match="needs 3 blocks"):
        hits(trace, Drafting("lookahead", 3), capacity=2, mode="token")


def test_states_run_ahead_in_blocks_of_their_own():
    layout = CacheLayout((CacheGroup("full", 1, 2), CacheGroup("state", 1, 2)))
    trace = vllm.trace_of(2, ["0 1 2", "3 4 5", "0 1 2"], [5, 5, 5], [1, 1, 1])
    rooms = {
        tokens: hits(trace, Drafting("lookahead", tokens), capacity=12, mode="token", layout=layout)
        for tokens in (0, 4)
    }
    assert rooms[0] == [0, 0, 2] and rooms[4] == [0, 0, 0]


@given(traces(), st.sampled_from(["block", "token", "grow"]), st.sampled_from([LOOKAHEAD, DROP]))
def test_with_room_for_all_a_drafter_loses_a_block_at_most(trace, mode, drafting):
    capacity = 3 * int(trace.prompt_blocks.sum() + trace.output_length.sum()) + 100
    plain, drafted = (np.array(hits(trace, rule, mode=mode, capacity=capacity)) for rule in (None, drafting))
    lost = plain - drafted
    assert ((lost >= 0) & (lost <= 1)).all()
    if drafting is DROP:
        assert (lost == np.minimum(plain, 1)).all()


# ---- settings


def test_each_engine_has_its_rule():
    assert engines.drafting("vllm", 2) == Drafting("lookahead", 2)
    assert engines.drafting("vllm", 2, "drop") == Drafting("drop", 2)
    assert engines.drafting("sglang", 2) == Drafting("bigram", 0)


@pytest.mark.parametrize("engine", ["reference", "dynamo", "nano-vllm", "tensorrt-llm", "lmcache"])
def test_an_engine_whose_drafters_are_not_modelled_refuses_them(engine):
    with pytest.raises(UsageError, match=f"not modelled with --engine {engine}. Leave it out, or use vllm or sglang"):
        engines.drafting(engine, 1)
    with pytest.raises(UsageError, match="not modelled"):
        Setting(4, engine=engine, drafting=LOOKAHEAD)


def test_a_rule_of_another_engine_is_refused():
    with pytest.raises(UsageError, match="does not have the rule 'bigram'"):
        Setting(4, engine="vllm", drafting=BIGRAM)
    with pytest.raises(UsageError, match="'guess' is not a rule of drafters"):
        Drafting("guess")
    with pytest.raises(UsageError, match="1 to 64 tokens"):
        Drafting("lookahead", 65)


def test_what_is_not_modelled_is_refused():
    layout = CacheLayout((CacheGroup("full", 1, 1), CacheGroup("window", 1, 1, 4)))
    with pytest.raises(UsageError, match="modelled for full attention only"):
        hits(toy("0 1"), DROP, layout=layout)
    setting = Setting(8, engine="vllm", drafting=LOOKAHEAD)
    with pytest.raises(UsageError, match="not modelled with lower tiers"):
        open_loop(
            toy("0 1"), StepCost(token_s=1e-3), setting=setting, scheduler=VllmScheduler(), tiers=[Tier("dram", 8, 0.1)]
        )


def test_a_setting_says_what_a_trace_does_not():
    warned = [Setting(9, engine="vllm", drafting=rule).warning for rule in (LOOKAHEAD, DROP, None)]
    assert "lie between these and those without a drafter" in warned[0] and warned[1:] == [None, None]


def test_bounds_have_no_drafter_and_the_setup_gives_each_engine_its_own():
    setting = Setting(8, engine="vllm", drafting=LOOKAHEAD)
    assert optimum_of(setting).drafting is None
    rules = {"vllm": LOOKAHEAD, "sglang": BIGRAM}
    found = CacheSetup([8], ["lru", "belady"], ["vllm", "sglang"], drafting=rules).settings()
    assert [(each.engine, each.drafting) for each in found] == [
        ("vllm", LOOKAHEAD), ("reference", None), ("sglang", BIGRAM)
    ]  # fmt: skip


def test_a_result_states_its_drafter():
    (drafted, plain) = simulate_settings(
        toy("0 1 2", "0 1 3"), [Setting(9, engine="vllm", drafting=rule) for rule in (LOOKAHEAD, None)]
    )
    assert drafted.to_dict()["drafting"] == {"rule": "lookahead", "tokens": 0}
    assert "drafting" not in plain.to_dict() and (drafted.hit_blocks.sum(), plain.hit_blocks.sum()) == (1, 2)


@given(traces(), st.sampled_from(["block", "token", "grow"]), st.sampled_from([LOOKAHEAD, DROP]), st.integers(1, 2))
def test_with_room_for_all_an_explanation_has_no_evicted_tokens(trace, mode, drafting, instances):
    room = 3 * int(trace.prompt_blocks.sum() + trace.output_length.sum()) + 100
    behind = {} if instances == 1 else {"instances": instances, "router": "round-robin"}
    found = explain(trace, room, engine="vllm", mode=mode, drafting=drafting, **behind)
    assert found.totals["evicted"] == 0 and sum(found.totals.values()) == found.tokens
