"""What a pool that instances share buys: the curve of its sizes, and the part of a plan."""

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
from kvtrace.trace.building import toy
from kvtrace.trace.hits import leading_tokens
from tests.strategies import traces

LLAMA = Deployment("llama-3.1-8b", gpu="h100")


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
    assert [row["capacity"] for row in result.to_dict()["pool"]["rows"]] == [0, 2, 4, 8, 16, 32]


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
