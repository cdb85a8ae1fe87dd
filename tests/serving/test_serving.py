"""Serving in time: who waits, what a step takes, and what the closed loop of hits and times gives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import UsageError
from kvtrace.cache.simulation import Setting, simulate
from kvtrace.serving.routers import OWN, ROUTERS, TIMED
from kvtrace.serving.simulation import BatchLimits, StepCost, Tier, open_loop
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace
from tests.reference.serving import serve as slow
from tests.strategies import traces

rates = st.builds(
    StepCost, token_s=st.sampled_from([0.25, 1.0]), pair_s=st.sampled_from([0.0, 0.125]),
    step_s=st.sampled_from([0.0, 2.0, 5.5]), read_s=st.sampled_from([0.0, 0.0625, 0.5]),
    overhead_s=st.sampled_from([0.0, 0.5]), request_s=st.sampled_from([0.0, 0.125]),
    attention_pair_s=st.sampled_from([0.0, 0.25]), attention_read_s=st.sampled_from([0.0, 0.125]),
    exchange_s=st.sampled_from([0.0, 0.25]), expert_token_s=st.sampled_from([0.0, 0.5]),
    expert_step_s=st.sampled_from([0.0, 2.0]), expert_share=st.sampled_from([0.5, 1.0]),
    window_read_s=st.sampled_from([0.0, 0.125]), window_pair_s=st.sampled_from([0.0, 0.25]),
    window_tokens=st.sampled_from([0.0, 2.0, 8.0]), bulk_exchange_s=st.sampled_from([0.0, 0.125]),
    bulk_exchange_tokens=st.sampled_from([0, 3]),
    bulk_exchange_step_s=st.sampled_from([0.25, 1.0]), launch_s=st.sampled_from([0.0, 4.0, 64.0]),
    graph_tokens=st.sampled_from([0.0, 2.0, 8.0]), front_request_s=st.sampled_from([0.0, 0.375, 3.0]),
    front_token_s=st.sampled_from([0.0, 0.1875]), front_delay_s=st.sampled_from([0.0, 0.5]),
)  # fmt: skip  # (sums of such numbers are exact, so that steps taken together end when single ones do)
untimed = sorted(set(ROUTERS) - set(TIMED))  # dynamo has a twin of its own
limits = st.builds(BatchLimits, step_tokens=st.sampled_from([1, 3, 50]), requests=st.sampled_from([1, 2, 9]))


def spread(trace, gap_s):
    """The trace with its arrivals so far apart."""
    columns = kvtrace.trace.columns.replace_columns(trace, timestamp=np.arange(len(trace)) * gap_s * 1000.0)
    return Trace.from_columns(columns, block_size=trace.block_size, tail=trace.tail)


# -- the twin and the laws -------------------------------------------------------------------------------------------


@given(traces(outputs=False), st.integers(1, 3), st.sampled_from(untimed), rates, limits, st.integers(0, 6),
       st.sampled_from([0.0, 1.0, 4.0, 64.0]))  # fmt: skip
def test_requests_are_served_as_the_twin_serves_them(trace, count, router, rate, limit, room, gap_s):
    trace = spread(trace, gap_s)
    capacity = max(1, int(trace.prompt_blocks.max(initial=1)) - 2 + room)
    done = open_loop(trace, rate, setting=Setting(capacity), instances=count, router=router, limits=limit)
    for row, expected in enumerate(slow(trace, rate, limit, count, router, capacity)):
        if expected is None:
            assert done.instance[row] == -1 and np.isnan(done.ended_s[row])
            continue
        instance, hit, *times = expected
        assert (done.instance[row], done.hit_blocks[row]) == (instance, hit)
        assert [done.started_s[row], done.first_s[row], done.ended_s[row]] == pytest.approx(times, rel=1e-12, abs=1e-9)


modes = st.sampled_from(["block", "token", "grow"])
engines = st.sampled_from(["reference", "vllm", "dynamo"])


@given(traces(), st.integers(1, 3), st.sampled_from(sorted({*ROUTERS} - {*OWN})), rates, limits, modes, engines)
def test_requests_in_are_finished_and_rejected_and_time_never_runs_back(
    trace, count, router, rate, limit, mode, engine
):
    setting = Setting(5, mode=mode, engine=engine)
    done = open_loop(
        trace, rate, setting=setting, instances=count, router=router, limits=limit
    )  # recounts pins at its end
    served = ~np.isnan(done.ended_s)
    assert served.sum() + done.rejected == len(trace) and (served == (done.instance >= 0)).all()
    arrival = trace.timestamp[served] / 1000
    assert (done.started_s[served] >= arrival).all() and (done.first_s[served] >= done.started_s[served]).all()
    assert (done.ended_s[served] >= done.first_s[served]).all()
    again = open_loop(trace, rate, setting=setting, instances=count, router=router, limits=limit)
    assert np.array_equal(again.ended_s, done.ended_s, equal_nan=True)


@given(traces(outputs=False), st.integers(0, 9))
def test_far_apart_requests_hit_what_one_pass_finds(trace, extra):
    capacity = int(trace.prompt_blocks.max(initial=1)) + extra
    done = open_loop(spread(trace, 1e6), StepCost(token_s=0.5), setting=Setting(capacity))
    assert done.hit_blocks.tolist() == simulate(trace, capacity).hit_blocks.tolist()


def test_a_hit_shortens_the_prefill_and_a_full_cache_queues():
    #  blocks of one token, 1 s a token, room for 2 blocks: the second waits for the first, and then computes one token
    done = open_loop(toy("0 1", "0 1", gap_ms=0.0), StepCost(token_s=1.0), setting=Setting(2))
    assert done.first_s.tolist() == [2.0, 3.0] and done.queued_s.tolist() == [0.0, 2.0]


def test_a_request_that_no_instance_holds_is_rejected_and_the_others_are_served():
    done = open_loop(toy("0 1 2", "0"), StepCost(token_s=1.0), setting=Setting(2))
    assert done.rejected == 1 and done.instance.tolist() == [-1, 0] and done.to_dict()["served"] == 1


# -- tiers in time ---------------------------------------------------------------------------------------------------


A_SECOND_A_TOKEN = StepCost(token_s=1.0)


def fetched(fetch_seconds, prefetch=True, gap_ms=10_000.0, cost=A_SECOND_A_TOKEN):
    """Times to first token of "0 1", "2 3", "0 1" with room for two blocks above and plenty below, 1 s a token."""
    tiers = [Tier("dram", 9, fetch_seconds)]
    trace = toy("0 1", "2 3", "0 1", gap_ms=gap_ms)
    done = open_loop(trace, cost, setting=Setting(2), tiers=tiers, prefetch=prefetch)
    return done.ttft_s.tolist(), done.lower_tier_hits.tolist(), done.cached_tokens.tolist()


def test_what_comes_up_from_a_lower_tier_costs_time_and_what_is_sooner_computed_is():
    #  the third's two blocks are in dram: one token is computed anyway, the other is fetched if that takes at most 1 s
    assert fetched(0.25) == ([2, 2, 1.5], [[0, 0, 2]], [0, 0, 1])
    assert fetched(0.75) == ([2, 2, 2], [[0, 0, 2]], [0, 0, 0])
    assert fetched(0.0)[0] == [2, 2, 1]


def test_attention_counts_when_a_block_is_computed_instead_of_fetched():
    #  the first token takes 1 s and its attention 1 s, more than 1.5 s; the second then takes 1 s and 3 pairs
    cost = StepCost(token_s=1.0, attention_pair_s=1.0)
    assert fetched(0.75, gap_ms=60_000.0, cost=cost) == ([6, 6, 5.5], [[0, 0, 2]], [0, 0, 1])


def test_a_transfer_goes_on_while_the_request_waits():
    #  all come at once: the third waits 4 s for room, in which its blocks come up
    assert fetched(0.25, gap_ms=0.0)[0] == [2, 4, 5]
    assert fetched(0.25, prefetch=False, gap_ms=0.0)[0] == [2, 4, 5.5]


@given(traces(outputs=False), rates, limits, st.integers(0, 5), st.booleans())
def test_tiers_that_take_no_time_are_one_cache_of_their_sum_for_those_that_come_alone(
    trace, rate, limit, extra, prefetch
):
    capacity = int(trace.prompt_blocks.max(initial=1))
    trace = spread(trace, 1e6)
    tiers = [Tier("dram", 1 + extra, 0.0)]
    options = {"limits": limit, "prefetch": prefetch}
    done = open_loop(trace, rate, setting=Setting(capacity), tiers=tiers, **options)
    whole = open_loop(trace, rate, setting=Setting(capacity + 1 + extra), limits=limit)
    assert done.hit_blocks.tolist() == whole.hit_blocks.tolist() and done.ttft_s == pytest.approx(whole.ttft_s)


# -- textbook queues -------------------------------------------------------------------------------------------------


def queue(load, lengths, requests=200_000, seed=5):
    """Mean wait where requests come as a Poisson process, one at a time is served, and nothing is shared."""
    rng = np.random.default_rng(seed)
    tokens = lengths(rng, requests)
    service = tokens * 0.001
    arrival = np.cumsum(rng.exponential(service.mean() / load, requests))
    columns = Columns(
        (arrival - arrival[0]) * 1000, tokens, np.ones(requests), np.arange(requests), np.arange(requests + 1)
    )
    trace = Trace.from_columns(columns, block_size=1 << 20)
    done = open_loop(trace, StepCost(token_s=0.001), setting=Setting(4), limits=BatchLimits(1 << 20, 1))
    assert not done.hit_blocks.any()
    return done.queued_s.mean(), service


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_the_wait_is_pollaczeks_and_khinchines_where_all_take_equally_long(load):
    wait, service = queue(load, lambda rng, count: np.full(count, 100))
    assert wait == pytest.approx(load * service.mean() / (2 * (1 - load)), rel=0.05)  # M/D/1


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_the_wait_is_pollaczeks_and_khinchines_where_lengths_differ(load):
    wait, service = queue(load, lambda rng, count: rng.integers(1, 400, count))
    rate = load / service.mean()
    assert wait == pytest.approx(rate * (service**2).mean() / (2 * (1 - load)), rel=0.05)  # M/G/1


def test_many_servers_wait_less_than_erlangs_single_queue_would_say_of_turns():
    """Round robin over N instances is no M/M/N queue; its wait lies between that and N queues of their own."""
    trace = toy(*[str(i) for i in range(4000)], gap_ms=30.0)
    one = open_loop(
        trace, StepCost(token_s=0.1), setting=Setting(4), limits=BatchLimits(9, 1), instances=4
    ).queued_s.mean()
    assert one == 0  # evenly spaced: each instance is free again in time
    alone = open_loop(
        trace, StepCost(token_s=0.1), setting=Setting(4), limits=BatchLimits(9, 1), instances=3
    ).queued_s.mean()
    assert alone > 1


# -- errors, and a real trace ----------------------------------------------------------------------------------------


def test_what_can_not_be_served_is_refused():
    trace = toy("0 1")
    with pytest.raises(UsageError, match="is not a router"):
        open_loop(trace, StepCost(1.0), setting=Setting(4), router="nobody")
    with pytest.raises(UsageError, match="--step-tokens must be at least 1"):
        open_loop(trace, StepCost(1.0), setting=Setting(4), limits=BatchLimits(0, 1))
    with pytest.raises(UsageError, match="does not support the upper bound belady"):
        open_loop(trace, StepCost(1.0), setting=Setting(4, policy="belady"))


def test_with_rates_near_dynamos_a_real_trace_hits_what_its_replay_hits(shared):
    trace = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")
    near = StepCost(token_s=1.99e-5, read_s=54.01e-3 / (5000 * 512), overhead_s=5.74e-3)  # nearly Dynamo's
    done = open_loop(trace, near, setting=Setting(5000, mode="grow", engine="vllm"), instances=4)
    assert done.hits.hit_blocks == pytest.approx(35_155, rel=0.002)
    assert done.ttft_s.mean() == pytest.approx(0.486, rel=0.05)
    assert np.quantile(done.ttft_s, 0.99) == pytest.approx(2.492, rel=0.05)


def test_a_real_trace_on_four_instances_closes_the_loop(shared):
    trace = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")
    done = open_loop(
        trace, StepCost(1e-4, 1e-9, 0.01, 1e-8, 0.001), setting=Setting(5000), instances=4, router="sticky"
    )
    assert done.rejected == 0 and 0.25 < done.hits.block_hit_rate < 0.37
