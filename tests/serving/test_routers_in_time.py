"""Routers in simulated time, by hand: what each one knows of the instances when a request arrives."""

import numpy as np
import pytest

from kvtrace.cache.simulation import Setting
from kvtrace.serving.instances import simulate_instances
from kvtrace.serving.schedulers.vllm import VllmScheduler
from kvtrace.serving.simulation import StepCost, Tier, open_loop
from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.trace import Trace

STEPS = VllmScheduler(async_scheduling=False)
ENGINES = ["vllm", "reference"]


def requests(*rows):
    """A trace of (arrival in ms, prompt, output tokens), in blocks of ten tokens."""
    arrivals, prompts, outputs = zip(*rows, strict=True)
    columns = replace_columns(
        toy(*prompts, block_size=10), timestamp=np.array(arrivals, dtype=float), output_length=np.array(outputs)
    )
    return Trace.from_columns(columns, block_size=10)


def routed(trace, router, engine="vllm", capacity=500, **options):
    """The instances that requests go to. A step takes 10 ms and 1 ms for each token."""
    cost = StepCost(token_s=0.001, overhead_s=0.010)
    scheduler = STEPS if engine == "vllm" else None
    setting = Setting(capacity, engine=engine)
    done = open_loop(trace, cost, setting=setting, instances=2, router=router, scheduler=scheduler, **options)
    return done.instance.tolist()


@pytest.mark.parametrize("engine", ENGINES)
def test_the_least_loaded_has_the_fewest_prompt_tokens_and_does_not_know_how_long_outputs_will_be(engine):
    #  10 tokens with an output of 500 on the first, 20 tokens with an output of 50 on the second: 10 < 20, then 40 > 20
    trace = requests((0, "0", 500), (1, "1 2", 50), (30, "3 4 5", 50), (31, "6", 1))
    assert routed(trace, "least-loaded", engine) == [0, 1, 0, 1]


def test_the_least_loaded_does_not_know_outputs_without_times_either():
    trace = requests((0, "0", 500), (1, "1 2", 50), (30, "3 4 5", 50), (31, "6", 1))
    done = simulate_instances(trace, 2, "least-loaded", setting=Setting(500), schedule="open-loop:10")
    assert done.instance.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_request_that_has_ended_is_no_load(engine):
    #  the first ends at 20 ms; at 50 ms both are idle, and the second instance has had fewer requests
    trace = requests((0, "0", 1), (50, "1", 1), (100, "2", 1))
    assert routed(trace, "least-loaded", engine) == [0, 1, 0]


def test_kv_aware_adds_blocks_to_compute_and_blocks_that_vllm_holds():
    #  at 100 ms both prompts are computed; the first instance holds 3 blocks (the third for the output), the second 3
    #  0 1 4 would hit two blocks on the first: 1 + 3 < 3 + 3; then 7: 1 + 4 > 1 + 3
    trace = requests((0, "0 1", 50), (1, "2 3", 50), (100, "0 1 4", 50), (150, "7", 1))
    assert routed(trace, "kv-aware") == [0, 1, 0, 1]


def test_kv_aware_counts_prompts_that_wait():
    #  one request at a time: the second prompt waits on the first instance with 8 blocks, so that the third goes away
    one_by_one = VllmScheduler(max_num_seqs=1, async_scheduling=False)
    trace = requests((0, "0", 100), (5, "1 2 3 4 5 6 7 8", 1), (6, "0 9", 1), (7, "0 10", 1))
    done = open_loop(
        trace, StepCost(token_s=0.001, overhead_s=0.010), setting=Setting(500, engine="vllm"), instances=2,
        router="kv-aware", scheduler=one_by_one,
    )  # fmt: skip
    #  at 5 ms: 8 blocks on both, and 1 more to compute on the first, in its step; at 6 ms: 0 9 costs 1 + 1 on the
    #  first, 2 + 8 on the second; at 7 ms 0 10 costs 1 + 2 + 1 there, still less than 2 + 8
    assert done.instance.tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("engine", ENGINES)
def test_lmetric_multiplies_tokens_to_compute_by_requests_there(engine):
    #  0 1 hits on the first instance, 10 new tokens x (1 + 1) = 20 < 20 x 1 is false: the first of equal ones;
    #  then 10 x (2 + 1) = 30 > 20 x 1
    trace = requests((0, "0", 100), (50, "0 1", 100), (100, "0 2", 100), (150, "0 3", 100))
    assert routed(trace, "lmetric", engine) == [0, 0, 1, 1]


def test_lmetric_counts_requests_that_load_from_a_tier():
    #  2 3 evicts 0 1, which is loaded again from 300 ms to 1.3 s: the first instance is busy when 2 3 comes
    trace = requests((0, "0 1", 1), (100, "2 3", 1), (300, "0 1", 1), (400, "2 3", 1))
    tiers = [Tier("dram", 50, fetch_seconds=0.5, store_seconds=0.0)]
    assert routed(trace, "lmetric", capacity=2, tiers=tiers) == [0, 0, 0, 1]
    assert routed(trace, "lmetric", capacity=2) == [0, 0, 0, 0]  # computed in 30 ms


@pytest.mark.parametrize("router", ["least-loaded", "lmetric", "kv-aware"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_router_does_not_see_the_end_of_a_step_before_it_ends(router, engine):
    #  the step of 0 ... 9 ends at 110 ms with its only token; until then its instance is busy
    busy, other = " ".join(map(str, range(10))), "10 11 12"
    for arrival, chosen in ((100, 1), (120, 0)):
        trace = requests((0, busy, 1), (arrival, other, 1))
        expected = 1 if router == "least-loaded" else chosen  # it prefers the instance with fewer requests so far
        assert routed(trace, router, engine) == [0, expected]
