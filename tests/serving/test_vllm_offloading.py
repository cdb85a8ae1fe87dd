"""vLLM's scheduler with a lower tier takes the steps that vLLM takes: its own vectors, and a plain twin."""

import json
import os
import random

import numpy as np
import pytest

from kvtrace._base.errors import UsageError
from kvtrace.cache.simulation import Setting
from kvtrace.serving.schedulers.vllm import VllmScheduler
from kvtrace.serving.simulation import StepCost, Tier, open_loop
from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.trace import Trace
from tests.conftest import ROOT, drawn
from tests.reference.vllm_offloading import serve
from tests.serving.scheduler_cases import tier_case
from tests.serving.test_vllm_scheduler import require_equal, require_steps_of_vllm, require_twin

VECTORS = json.loads((ROOT / "tests/vectors/scheduler_vllm_tiers.json").read_text())
CASES = int(os.environ.get("KVTRACE_EXAMPLES", drawn(300)))
ALONE = VllmScheduler(async_scheduling=False)


@pytest.mark.parametrize("number", range(len(VECTORS["vectors"])))
def test_the_steps_are_those_of_vllm(number):
    require_steps_of_vllm(VECTORS, number)


def test_the_twin_takes_the_steps_of_vllm_too():
    require_twin(VECTORS, serve)


def test_the_steps_are_those_of_the_twin():
    loaded = preempted = 0
    for seed in range(CASES):
        case = tier_case(random.Random(seed))
        expected = serve(case)
        require_equal(case, expected, f"seed {seed}: {case['settings']}, {case['tier']}")
        loaded += sum(row[5] for row in expected["requests"])
        preempted += sum(row[4] for row in expected["requests"])
    assert loaded > CASES and preempted > CASES  # the cases are such that blocks are fetched, and run out


@pytest.mark.parametrize("seed", [1001388, 1002162, 1003840])
def test_a_waiting_request_can_fit_once_a_hit_of_it_is_evicted(seed):
    #  without `scheduler_reserve_full_isl`: its first chunk needs more room than the load of the evicted block does
    case = tier_case(random.Random(seed))
    assert case["settings"]["scheduler_reserve_full_isl"] is False
    require_equal(case, serve(case), f"seed {seed}")


def served(trace, capacity, tier, scheduler=ALONE, **options):
    return open_loop(
        trace, StepCost(token_s=0.01), setting=Setting(capacity, engine="vllm"), tiers=[tier], scheduler=scheduler,
        **options,
    )  # fmt: skip


def at(times_ms, *prompts):
    """A trace of blocks of ten tokens with these arrivals, and one output token each."""
    columns = replace_columns(toy(*prompts, block_size=10), timestamp=np.array(times_ms, dtype=float))
    return Trace.from_columns(columns, block_size=10)


def test_a_request_loads_what_its_instance_evicted_and_recomputes_its_last_token():
    #  3 blocks of 10 tokens; the second prompt evicts the first, and the third is the first again
    trace = toy("0 1 2", "3 4 5", "0 1 2", block_size=10, gap_ms=10_000.0)
    done = served(trace, 3, Tier("dram", 9, fetch_seconds=0.1))
    assert done.lower_tier_hits.tolist() == [[0, 0, 3]] and done.hit_blocks.tolist() == [0, 0, 3]
    assert done.cached_tokens.tolist() == [0, 0, 29]
    #  from 20.000 to 20.300 s it loads; the engine looks each millisecond, sees that, and computes one token
    assert done.ttft_s == pytest.approx([0.3, 0.3, 0.301 + 0.01])


def test_the_tier_holds_copies_from_the_start_and_only_of_prompts():
    #  both tiers keep 0 1: its blocks still hit in the first tier, so that nothing is loaded
    trace = toy("0 1", "0 1 2", block_size=10, gap_ms=10_000.0)
    done = served(trace, 9, Tier("dram", 9, fetch_seconds=0.1))
    assert done.lower_tier_hits.tolist() == [[0, 0]] and done.hit_blocks.tolist() == [0, 2]


def test_two_loads_share_the_link_one_after_another_and_a_fetch_holds_blocks():
    #  6 ... 11 evict 0 ... 5; then both prompts come at once: 0.3 s for the first, 0.3 s more for the other
    times = [0, 10_000, 20_000, 30_000, 40_000, 40_000]
    trace = at(times, "0 1 2", "3 4 5", "6 7 8", "9 10 11", "0 1 2", "3 4 5")
    tier = Tier("dram", 99, fetch_seconds=0.1, store_seconds=0.0)
    done = served(trace, 6, tier)
    assert done.lower_tier_hits.tolist() == [[0, 0, 0, 0, 3, 3]]
    assert done.ttft_s[4:] == pytest.approx([0.301 + 0.01, 0.601 + 0.01], abs=1e-3)
    #  with 3 blocks the second load waits for the blocks of the first request
    alone = served(trace, 3, tier)
    assert alone.ttft_s[5] == pytest.approx(2 * (0.301 + 0.01), abs=3e-3)


def test_a_full_tier_evicts_the_least_recent_prompt():
    #  a tier of 4 blocks: 4 5 evicts 0 1 from it, so that 2 3 is loaded and 0 1 is computed
    trace = toy("0 1", "2 3", "4 5", "2 3", "0 1", block_size=10, gap_ms=10_000.0)
    done = served(trace, 2, Tier("dram", 4, fetch_seconds=0.0))
    assert done.lower_tier_hits[0].tolist() == [0, 0, 0, 2, 0]


@pytest.mark.parametrize(
    ("tiers", "message"),
    [
        ([Tier("dram", 0, 0.1)], "at least 1 block"),
        ([Tier("dram", 5, 0.1, policy="fifo")], "lru or arc"),
    ],
)  # fmt: skip
def test_tiers_that_vllm_does_not_have_are_refused(tiers, message):
    with pytest.raises(UsageError, match=message):
        open_loop(toy("0"), StepCost(1.0), setting=Setting(9, engine="vllm"), tiers=tiers)
