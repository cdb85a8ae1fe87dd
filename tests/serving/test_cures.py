"""What would help: each cure agrees with a fresh simulation of the changed setting."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import UsageError
from kvtrace.cache.engines import ENGINES
from kvtrace.cache.layout import CacheGroup, CacheLayout
from kvtrace.cache.setup import CacheSetup
from kvtrace.cache.simulation import Setting, simulate
from kvtrace.cache.tiered import simulate_tiers
from kvtrace.report.explanation_tables import cure_notes
from kvtrace.serving.deployment import Deployment
from kvtrace.serving.hardware import roofline_of
from kvtrace.serving.instances import simulate_instances
from kvtrace.serving.lanes import ClosedLoop
from kvtrace.serving.misses.baseline import prefill_by_cause
from kvtrace.serving.misses.cures import cures_of, is_lru_one_by_one
from kvtrace.serving.misses.explanation import explain
from kvtrace.serving.run import Run
from kvtrace.serving.run_options import TimeSetup
from kvtrace.serving.schedulers.base import Tier
from kvtrace.serving.simulation import StepCost, open_loop
from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.domains import in_domains
from kvtrace.trace.trace import Trace
from tests.conftest import drawn
from tests.docs import ROOT
from tests.serving.session_forests import random_forest
from tests.serving.test_explain import forests

ROOFLINE = roofline_of(Deployment("llama-3.1-8b", gpu="h100"))
SLOW = StepCost(token_s=0.4)


def longest(trace):
    return max(1, int(trace.prompt_blocks.max()))


def tokens_of(run):
    return run.hits.hit_tokens


def computed_s(run):
    """Seconds of prefill of all tokens that were not hits, request by request."""
    cached = np.minimum(run.hit_blocks * run.trace.block_size, run.trace.input_length)
    pairs = zip((run.trace.input_length - cached).tolist(), cached.tolist(), strict=True)
    return sum(float(ROOFLINE.compute_s(new, old)) for new, old in pairs)


def named(done, name, **options):
    """The cure of a name; None if there is none."""
    cures = cures_of(done, **options)
    return next((one for one in (*cures, *cures.in_vain) if one.name == name), None)


@given(forests(), st.integers(0, 3))
@settings(max_examples=drawn(200))
def test_more_blocks_reach_their_shares_of_the_evicted_tokens(trace, extra):
    capacity = longest(trace) + extra
    done = explain(trace, capacity)
    cure = named(done, "more_blocks", roofline=ROOFLINE)
    evicted = done.totals["evicted"]
    assert (cure is None) == (evicted == 0)
    for amount in cure.amounts if cure else ():
        run = simulate(trace, capacity + amount.blocks)
        assert tokens_of(run) == done.totals["hit"] + amount.tokens
        assert amount.tokens >= amount.share * evicted
        assert tokens_of(simulate(trace, capacity + amount.blocks - 1)) - done.totals["hit"] < amount.share * evicted
    if cure:
        assert cure.tokens == cure.amounts[-1].tokens and cure.basis == "simulated"
        assert cure.prefill_s == pytest.approx(computed_s(done.simulation) - computed_s(run))
        assert cure.usd == pytest.approx(ROOFLINE.usd(cure.prefill_s))


@given(forests(), st.integers(0, 3))
def test_a_lower_tier_has_the_hits_of_a_larger_cache(trace, extra):
    capacity = longest(trace) + extra
    done = explain(trace, capacity)
    cure = named(done, "lower_tier")
    for amount in cure.amounts if cure else ():
        run = simulate_tiers(trace, {"hbm": capacity, "dram": amount.blocks})
        assert tokens_of(run) == done.totals["hit"] + amount.tokens


def test_a_model_without_times_leaves_a_larger_lru_cache_exact():
    run = Run(CacheSetup([9]))
    assert is_lru_one_by_one(replace(run, time=TimeSetup(deployment=Deployment("llama-3.1-8b"))))
    assert not is_lru_one_by_one(replace(run, time=TimeSetup(cost=ROOFLINE)))


@given(forests(), st.sampled_from(["vllm", "sglang", "tensorrt-llm"]), st.sampled_from(["block", "token", "grow"]))
def test_more_blocks_of_an_engine_are_simulated(trace, engine, mode):
    capacity = longest(trace) + 2
    try:
        done = explain(trace, capacity, engine=engine, mode=mode)
    except UsageError:  # a request does not fit
        return
    cure = named(done, "more_blocks")
    for amount in cure.amounts if cure else ():
        run = simulate(trace, capacity + amount.blocks, engine=engine, mode=mode)
        assert tokens_of(run) == done.totals["hit"] + amount.tokens


@given(forests(), st.integers(0, 6000), st.integers(0, 40))
@settings(max_examples=drawn(200))
def test_a_longer_time_to_live_is_simulated(trace, ttl_ms, extra):
    capacity = longest(trace) + extra
    done = explain(trace, capacity, ttl=f"{ttl_ms}ms")
    cure, expired = named(done, "longer_ttl", roofline=ROOFLINE), done.totals["expired"]
    assert (cure is None) == (expired == 0)
    if cure is None:
        return
    run = simulate(trace, capacity)
    assert cure.tokens == tokens_of(run) - done.totals["hit"]
    assert cure.prefill_s == pytest.approx(computed_s(done.simulation) - computed_s(run))
    for amount in cure.amounts:
        longer = simulate(trace, capacity, f"ttl:{amount.ttl_ms}ms")
        assert amount.tokens == tokens_of(longer) - done.totals["hit"]
        assert amount.ttl_ms >= ttl_ms
        if simulate(trace, 1 << 16).hits.hit_blocks == run.hits.hit_blocks:  # nothing is evicted
            assert amount.tokens >= amount.share * expired


@given(forests(), st.integers(2, 4), st.sampled_from(["round-robin", "sticky", "least-loaded", "kv-aware"]))
def test_routing_is_simulated(trace, instances, router):
    setting = Setting(longest(trace) * 4)
    done = explain(trace, setting.capacity, instances=instances, router=router)
    for name, other in (("sticky_routing", "sticky"), ("aware_routing", "kv-aware")):
        cure = named(done, name)
        assert (cure is None) == (router == other)
        if cure is not None:
            run = simulate_instances(trace, instances, other, setting=setting)
            assert cure.tokens == tokens_of(run) - done.totals["hit"]


@given(forests(domains=True), st.sampled_from([None, "shared:3", "merge"]))
def test_merging_domains_is_simulated(trace, view):
    capacity = longest(trace) * 2
    done = explain(trace, capacity, domains=view)
    cure = named(done, "merged_domains")
    assert (cure is None) == (view == "merge" or len(set(trace.domain.tolist())) == 1)
    if cure is not None:
        run = simulate(in_domains(trace, "merge"), capacity)
        assert cure.tokens == tokens_of(run) - tokens_of(simulate(trace, capacity, domains=view))


@given(forests(), st.sampled_from(["lru", "fifo", "lfu", "sieve", "mru"]), st.integers(0, 3))
def test_policies_are_simulated_and_bounded(trace, policy, extra):
    capacity = longest(trace) + extra
    done = explain(trace, capacity, policy)
    lru, best = named(done, "lru"), named(done, "best_policy", roofline=ROOFLINE)
    assert (best is None) == (done.totals["evicted"] == 0)
    assert (lru is None) == (policy == "lru" or best is None)
    if best is not None:
        belady = tokens_of(simulate(trace, capacity, "belady"))
        assert best.basis == "bound" and best.tokens == belady - done.totals["hit"]
        assert (best.prefill_s > 0) == (best.tokens > 0)
    if lru is not None:
        assert lru.tokens == tokens_of(simulate(trace, capacity)) - done.totals["hit"] <= best.tokens


@given(forests(), st.sampled_from(["reference", "vllm", "dynamo"]), st.integers(1, 3), st.sampled_from([8, 24]))
@settings(max_examples=drawn(100))
def test_cures_of_simulations_in_time_are_simulated(trace, engine, instances, capacity):
    common = {"cost": SLOW, "instances": instances}
    done = explain(trace, capacity, engine=engine, **common)

    def gain(capacity, router="round-robin"):
        setting = Setting(capacity, engine=engine)
        run = open_loop(trace, SLOW, setting=setting, instances=instances, router=router)
        return tokens_of(run) - done.totals["hit"]

    cures = cures_of(done, roofline=ROOFLINE)
    for cure in (*cures, *cures.in_vain):
        if cure.name == "more_blocks":
            assert all(amount.tokens == gain(capacity + amount.blocks) for amount in cure.amounts)
        elif cure.name == "sticky_routing":
            assert cure.tokens == gain(capacity, "sticky")
        elif cure.name == "one_after_another":
            assert cure.tokens == done.totals["in_flight"] and cure.basis == "bound"
        elif cure.name == "smaller_blocks":
            assert cure.tokens == done.totals["rounding"] and cure.basis == "bound"


@given(
    forests(domains=True), st.sampled_from(sorted(ENGINES)), st.sampled_from(["block", "token", "grow"]),
    st.sampled_from(["lru", "ttl:2s", "arc"]), st.sampled_from([None, 2]), st.booleans(), st.integers(0, 5),
)  # fmt: skip
@settings(max_examples=drawn(200))
def test_every_setting_that_can_be_explained_has_cures(trace, engine, mode, policy, instances, in_time, warm_up):
    options = {"engine": engine, "mode": mode, "instances": instances, "warm_up": min(warm_up, len(trace))}
    try:
        done = explain(trace, longest(trace) * 2 + 16, policy, cost=SLOW if in_time else None, **options)
    except UsageError:  # the block size does not divide a chunk, a policy that the engine does not have, ...
        return
    cures = cures_of(done, roofline=ROOFLINE)
    assert [one.tokens > 0 for one in cures] == [True] * len(cures)
    assert all(one.tokens <= 0 for one in cures.in_vain)
    sure = [one.tokens for one in cures if one.basis != "bound"]
    assert sure == sorted(sure, reverse=True) and [one.basis for one in cures][: len(sure)].count("bound") == 0
    assert all(one.share == pytest.approx(one.tokens / max(done.tokens, 1)) for one in cures)


@given(forests(), st.booleans())
def test_more_blocks_go_to_the_lowest_tier(trace, inclusive):
    first = longest(trace)
    done = explain(trace, tiers={"hbm": first, "dram": first + 2}, inclusive=inclusive)
    cure = named(done, "more_blocks")
    for amount in cure.amounts if cure else ():
        tiers = {"hbm": first, "dram": first + 2 + amount.blocks}
        assert tokens_of(simulate_tiers(trace, tiers, exclusive=not inclusive)) == done.totals["hit"] + amount.tokens
        assert amount.tokens >= amount.share * done.totals["evicted"]
    assert named(done, "lower_tier") is None


@given(forests())
def test_more_blocks_go_to_the_lowest_tier_in_time(trace):
    done = explain(trace, longest(trace) + 4, cost=SLOW, lower=[Tier("dram", 2, 0.01)])
    cure = named(done, "more_blocks")
    for amount in cure.amounts if cure else ():
        run = open_loop(trace, SLOW, setting=done.simulation.setting, tiers=[Tier("dram", 2 + amount.blocks, 0.01)])
        assert tokens_of(run) == done.totals["hit"] + amount.tokens


@given(forests(), st.integers(1, 5))
def test_amounts_leave_out_the_warm_up(trace, warm_up):
    capacity = longest(trace) + 1
    done = explain(trace, capacity, warm_up=warm_up)
    cure = named(done, "more_blocks")
    for amount in cure.amounts if cure else ():
        run = simulate(trace, capacity + amount.blocks)
        later = np.minimum(run.hit_blocks * trace.block_size, trace.input_length)[warm_up:]
        assert later.sum() == done.totals["hit"] + amount.tokens
        assert amount.tokens >= amount.share * done.totals["evicted"]


@given(forests(), st.integers(0, 4))
def test_the_prefill_of_the_causes_is_that_of_the_computed_tokens(trace, extra):
    done = explain(trace, longest(trace) + extra, instances=2)
    seconds = prefill_by_cause(done, ROOFLINE)
    assert seconds["hit"] == 0
    assert sum(seconds.values()) == pytest.approx(computed_s(done.simulation))
    assert all((seconds[cause] > 0) == (tokens > 0) for cause, tokens in done.totals.items() if cause != "hit")


def test_closed_loops_have_cures():
    trace = random_forest(1)
    done = explain(trace, 7, cost=SLOW, loop=ClosedLoop(lanes=2))
    cure = cures_of(done, roofline=ROOFLINE)["more_blocks"]
    larger = explain(trace, 7 + cure.amounts[-1].blocks, cost=SLOW, loop=ClosedLoop(lanes=2))
    assert 0 < cure.tokens == larger.totals["hit"] - done.totals["hit"]


def test_sizes_are_in_gib_where_the_bytes_of_a_token_are_known():
    done = explain(toy("0 1", "2 3", "0 1", block_size=16), 2)
    (amount, _) = named(done, "more_blocks", kv_bytes_per_token=1 << 20).amounts
    assert amount.blocks == 1 and amount.gib == 1 / 64
    assert amount.to_dict() == {"share": 0.5, "tokens": 16, "blocks": 1, "gib": 1 / 64}
    assert named(done, "more_blocks").amounts[0].gib is None
    assert named(done, "more_blocks", roofline=ROOFLINE).amounts[0].gib == 16 * 131072 / 2**30


def test_fetching_from_a_lower_tier_takes_time():
    done = explain(toy("0 1", "2 3", "0 1", block_size=512), 2)
    larger, tier = (named(done, name, roofline=ROOFLINE) for name in ("more_blocks", "lower_tier"))
    assert tier.prefill_s == pytest.approx(larger.prefill_s - 1024 * 131072 / 25e9)
    slow = named(done, "lower_tier", roofline=ROOFLINE, tier_bytes_per_s=1e9)
    assert slow.prefill_s < 0  # computing is faster


def test_a_cure_states_its_figures_in_one_sentence():
    cures = cures_of(explain(toy("0 1", "2 3", "0 1", block_size=512), 2), roofline=ROOFLINE)
    assert [one.name for one in cures] == ["more_blocks", "lower_tier", "best_policy"]
    assert cures["more_blocks"].sentence == (
        "Add 2 blocks (0.1 GiB) to the cache: 100 % of the evicted tokens become hits; 50 % with 1 block (0.1 GiB). "
        "Gain: 1,024 prompt tokens (33.3 %), 0.0203 s of prefill, 0.00 USD of GPUs."
    )
    for one in cures:
        assert f"{one.tokens:,} prompt tokens" in one.sentence and one.to_dict()["sentence"] == one.sentence
    with pytest.raises(KeyError):
        cures["nothing"]


def test_nothing_helps_where_nothing_repeats():
    cures = cures_of(explain(toy("0 1", "2 3"), 2))
    assert repr(cures) == "Cures(no cure)" and not cures and not cures.in_vain


def test_the_conversation_trace_needs_the_blocks_that_the_hit_curve_states(shared):
    """At 10,000 blocks: the amounts for 50, 80 and 90 % of the evicted tokens, each checked by a simulation."""
    trace = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")
    done = explain(trace, 10_000)
    amounts = named(done, "more_blocks").amounts
    assert [(one.share, one.blocks) for one in amounts] == [(0.5, 10_174), (0.8, 23_183), (0.9, 28_802)]
    curve = kvtrace.analysis.hit_curve(trace)
    for one in amounts:
        (hits,) = curve.hits([10_000 + one.blocks])
        assert hits.hit_tokens == done.totals["hit"] + one.tokens


def test_the_page_has_the_figures_of_the_conversation_trace(shared):
    trace, capacity = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl"), 10_000
    done = explain(trace, capacity, engine="vllm")
    page = (ROOT / "docs/serving/explain.md").read_text(encoding="utf-8")
    figures = [capacity, *(done.totals[cause] for cause in ("hit", "evicted", "rounding", "first_use")), done.tokens]
    assert f"| {' | '.join(f'{figure:,}' for figure in figures)} |" in page
    half, most, all_but_a_tenth = (f"{one.blocks:,}" for one in named(done, "more_blocks").amounts)
    text = f"{all_but_a_tenth} more make 90 % of the evicted tokens hits, {most} more 80 %, and {half} more 50 %"
    assert text in " ".join(page.split())


def test_domains_of_a_trace_are_kept_for_the_cures():
    trace = toy("0 1", "0 1", "0 1")
    columns = replace_columns(trace, domain=np.array([0, 1, 0]))
    done = explain(Trace.from_columns(columns, block_size=1), 9)
    assert done.totals["other_domain"] == 2 and done.totals["hit"] == 2
    assert named(done, "merged_domains").tokens == 2


def test_a_provider_bills_written_and_read_tokens():
    """512 tokens more are read (0.1) and not written (1.25): 1.15 of an input token each."""
    prices = kvtrace.serving.Prices(input_per_token=1e-3)
    done = explain(toy("0 1", "2 3", "0 1", block_size=512), 2)
    assert named(done, "more_blocks").provider_usd is None
    assert named(done, "more_blocks", prices=prices).provider_usd == pytest.approx(1024 * 1.15e-3)


def test_a_longer_time_to_live_costs_more_to_write():
    """At 5 minutes all 1,536 tokens are written, at 1.25 each; at an hour 1,024 at 2, and 512 are read at 0.1."""
    prices = kvtrace.serving.Prices(input_per_token=1.0)
    done = explain(toy("0", "1", "0", block_size=512, gap_ms=200_000), 2, ttl="5m")
    cure = named(done, "longer_ttl", prices=prices)
    assert cure.tokens == 512 and cure.provider_usd == pytest.approx(1536 * 1.25 - (1024 * 2 + 51.2))


def test_policies_other_than_lru_name_the_smallest_amount_of_equal_ones():
    done = explain(toy(*["0 1", "2 3", "4 5", "6 7"] * 4), 3, "mru")
    tokens = [one.tokens for one in named(done, "more_blocks").amounts]
    assert tokens == sorted(set(tokens))


def test_a_change_that_cannot_be_simulated_is_named_with_its_reason():
    """Sticky routing sends all prompts that begin with block 0 to one instance, which is too small for them."""
    prompts = ("0 1 2 3", "0 1 2", "0 1 2 3", "4", "0 5 6 7", "0 5 6 8 9", "0 1 2 3 10 11 12")
    layout = CacheLayout((CacheGroup("full", 1, 1), CacheGroup("window", 1, 1, 2)))
    cures = cures_of(explain(toy(*prompts, gap_ms=0), 12, engine="vllm", layout=layout, instances=2))
    assert cures.refused == ("sticky routing: a capacity of 12 blocks is too small for request 6 alone.",)
    assert "sticky_routing" not in [one.name for one in (*cures, *cures.in_vain)]
    assert cure_notes(cures)[-1] == f"Not possible in this setting: {cures.refused[0]}"
