"""What a pool that instances share buys: the curve of its sizes, and the part of a plan."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace import UsageError
from kvtrace.cache import Tier
from kvtrace.cache.simulation import Setting
from kvtrace.report import plan_tables
from kvtrace.serving import Deployment, PlanTarget, plan, pool_curve, simulate_instances
from kvtrace.serving.hardware import roofline_of
from kvtrace.serving.planning.plan_target import PlannedTier
from kvtrace.serving.run_options import InstanceSetup, TimeSetup
from kvtrace.trace.building import toy
from kvtrace.trace.hits import leading_tokens
from tests.strategies import traces

LLAMA = Deployment("llama-3.1-8b", gpu="h100")
REFERENCE = Deployment("llama-3.1-8b", gpu="h100", engine="reference")


@given(traces(outputs=False), st.integers(1, 4), st.integers(0, 3))
def test_a_larger_pool_hits_no_less_with_lru(trace, instances, extra):
    longest = max(1, int(trace.prompt_blocks.max(initial=1)))
    sizes = [0, longest, longest + 2, 10**6]
    curve = pool_curve(trace, sizes, instances=instances, first=longest + extra, schedule="serial")
    hits = [point.own_hit_blocks + point.pool_hit_blocks for point in curve.rows]
    assert hits == sorted(hits)
    assert len({point.own_hit_blocks for point in curve.rows}) == 1  # round robin: the pool changes nothing above it
    without = simulate_instances(trace, instances, setting=Setting(longest + extra), schedule="serial")
    assert curve.rows[0].own_hit_blocks == without.hits.hit_blocks and curve.rows[0].pool_hit_blocks == 0


def test_the_bandwidth_at_which_a_pool_pays_is_its_bytes_over_the_time_to_compute_them():
    trace = toy("0 1 2", "0 1 3", "0 1 2", block_size=512, gap_ms=40_000.0)
    roofline = roofline_of(LLAMA)
    curve = pool_curve(trace, [9], instances=3, first=3, schedule="serial", roofline=roofline)
    (point,) = curve.rows
    assert (point.own_hit_blocks, point.pool_hit_blocks) == (0, 5)
    block_bytes = 512 * roofline.model.kv_bytes_per_token
    tokens = leading_tokens(trace, np.array([0, 2, 3]))
    assert point.fetched_bytes == 5 * block_bytes
    assert point.saved_s == pytest.approx(float(roofline.compute_s(tokens).sum()))
    assert point.break_even_bandwidth == pytest.approx(point.fetched_bytes / point.saved_s)
    assert point.busiest_bytes_per_s == pytest.approx(3 * block_bytes / 60)  # two hits at 40 s, three at 80 s


def test_a_plan_says_what_a_pool_adds():
    trace = toy(*["0 1 2", "3 4 5"] * 6, block_size=512, gap_ms=100.0)
    tiers = (PlannedTier.parse("dram=1GiB@25GB/s"), PlannedTier.parse("pool=1GiB@cluster@10GB/s"))
    assert tiers[1].scope == "cluster"
    result = plan(trace, LLAMA, PlanTarget(routers=("sticky",), tiers=tiers))
    assert result.tiers is not None and [row.name for row in result.tiers.rows] == ["hbm", "dram"]
    assert result.pool is not None and result.pool.planned in [row.capacity for row in result.pool.rows]
    assert "points of block hit rate" in plan_tables.pool_sentence(result.pool)
    rows = result.to_dict()["pool"]["rows"]
    assert [row["capacity"] for row in rows] == [0, 2, 4, 8, 16, 32]
    assert result.instances.best is not None and rows[0]["ttft_s"] == result.instances.best.ttft_s
    assert all(row["ttft_s"] > 0 for row in rows)


def test_a_plan_has_the_times_and_the_instances_that_a_pool_saves():
    # 13 prompts of eight blocks in turn, so a prompt comes to each of the instances: without a pool, each computes it
    trace = toy(*[" ".join(f"{k % 13}0{block}" for block in range(8)) for k in range(65)], block_size=512, gap_ms=30.0)
    tiers = (PlannedTier.parse("pool=8GiB@cluster@400GB/s"),)
    target = PlanTarget(ttft_s=0.12, quantile=0.5, routers=("round-robin",), tiers=tiers)
    result = plan(trace, REFERENCE, target)
    pool, best = result.pool, result.instances.best
    assert pool is not None and best is not None and pool.rows[0].ttft_s == best.ttft_s
    assert pool.fewest is not None and pool.fewest < best.instances
    sentence = plan_tables.pool_sentence(pool)
    assert f"with it {pool.fewest} meet the target" in sentence and "s without it" in sentence


def test_a_plan_says_why_it_has_no_times_with_a_pool():
    tiers = (PlannedTier.parse("pool=1GiB@cluster@10GB/s"),)
    result = plan(returning(), LLAMA, PlanTarget(routers=("round-robin",), tiers=tiers))
    assert result.pool is not None and result.pool.rows[1].ttft_s is None
    assert "No times with the pool: " in plan_tables.pool_sentence(result.pool)


def returning(gap_ms=20_000.0, prompts=6):
    """Prompts of four blocks on idle instances, each followed by one that shares three of them: on the other of two."""
    pairs = [([f"{k}0 {k}1 {k}2 {k}3", f"{k}0 {k}1 {k}2 {k}4"]) for k in range(1, prompts + 1)]
    return toy(*[prompt for pair in pairs for prompt in pair], block_size=512, gap_ms=gap_ms)


def in_time(trace, deployment, first, lower):
    """The times to first token of two instances with these tiers."""
    run = PlanTarget().on(TimeSetup(deployment=deployment)).run(512, first)
    (done,) = replace(run, instances=InstanceSetup(2, ["round-robin"], lower=lower)).simulate(trace).runs
    return done.ttft_s


@pytest.mark.parametrize("factor", [0.5, 0.95, 1.05, 2.0, 10.0])
def test_a_pool_saves_time_above_its_break_even_bandwidth_and_only_there(factor):
    # nothing waits: what a pool saves is the time to compute, less that to fetch
    trace, roofline = returning(), roofline_of(REFERENCE)
    (point,) = pool_curve(trace, [99], instances=2, first=4, schedule="serial", roofline=roofline).rows
    assert (point.own_hit_blocks, point.pool_hit_blocks) == (0, 18)
    assert point.break_even_bandwidth is not None and point.saved_s is not None
    block_s = 512 * roofline.model.kv_bytes_per_token / (factor * point.break_even_bandwidth)
    pool = Tier("pool", 99, block_s, scope="cluster")
    saved = float((in_time(trace, REFERENCE, 4, []) - in_time(trace, REFERENCE, 4, [pool])).sum())
    expected = point.saved_s * (1 - 1 / factor) if factor > 1 else 0.0  # engine reference does not fetch below it
    assert saved == pytest.approx(expected, abs=0.005 * point.saved_s)


@pytest.mark.parametrize(("factor", "pays"), [(0.9, False), (1.0, False), (1.5, True)])
def test_vllm_fetches_every_hit_so_a_slow_pool_costs_time(factor, pays):
    # its look-ups take steps of their own: 4 ms for each prompt, beside 31 ms of computing
    trace, roofline = returning(), roofline_of(LLAMA)
    block_s = 512 * roofline.model.kv_bytes_per_token / (factor * float(roofline.break_even_bandwidth(3 * 512)))
    tiers = [Tier("dram", 20, 0.0), Tier("pool", 99, block_s, scope="cluster")]
    without, with_pool = (in_time(trace, LLAMA, 20, lower).sum() for lower in ([], tiers))
    assert (with_pool < without) == pays


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pool=1GiB@host@10GB/s", "name, size, rate and @cluster"),
        ("pool=1GiB@cluster", "is not a tier"),
        ("pool=1GiB@cluster@10GB/s@30us", "name, size, rate and @cluster"),
        ("hbm=1GiB@10GB/s", "is not a tier"),
    ],
)
def test_a_tier_of_a_plan_has_a_size_a_rate_and_a_scope(text, message):
    with pytest.raises(UsageError, match=message):
        PlannedTier.parse(text)


def test_a_pool_is_the_last_tier_of_a_plan():
    tiers = (PlannedTier.parse("pool=1GiB@cluster@10GB/s"), PlannedTier.parse("dram=1GiB@25GB/s"))
    with pytest.raises(UsageError, match="Put it behind the others"):
        PlanTarget(tiers=tiers)


def test_tiers_between_the_first_one_and_the_pool_are_the_instances_own():
    trace = toy("0 1", "2 3", "0 1", "2 3", "0 1", "0 1")
    dram = Tier("dram", 4, copies="on-eviction")
    without, with_dram = (
        pool_curve(trace, [9], instances=1, first=2, lower=lower, schedule="serial").rows[0] for lower in ((), (dram,))
    )
    assert without.own_hit_blocks == 2 and with_dram.own_hit_blocks == 8
    assert without.pool_hit_blocks == 6 and with_dram.pool_hit_blocks == 0
