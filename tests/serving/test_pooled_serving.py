"""Tiers that instances share in time, with engine reference: the twin, and the laws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace import UsageError
from kvtrace.cache import Tier
from kvtrace.cache.simulation import Setting
from kvtrace.serving import BatchLimits, StepCost, open_loop
from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.trace import Trace
from tests.reference.pooled_serving import serve
from tests.strategies import traces

COST = StepCost(token_s=0.25, step_s=0.5, read_s=0.125)
SCOPES = ("rank", "host", "cluster")


@st.composite
def lower_tiers(draw):
    scopes = sorted(draw(st.lists(st.integers(0, 2), min_size=1, max_size=2)))
    return [
        Tier(
            f"tier{number}", draw(st.integers(1, 9)), draw(st.sampled_from([0.0, 0.25, 2.0])), scope=SCOPES[scope],
            copies=draw(st.sampled_from(["write-through", "write-back", "on-eviction"])),
            latency_s=draw(st.sampled_from([0.0, 0.5])),
        )
        for number, scope in enumerate(scopes)
    ]  # fmt: skip


def run(trace, tiers, instances=2, router="round-robin", extra=2, per_host=None, **options):
    capacity = max(1, int(trace.prompt_blocks.max(initial=1))) + extra
    options |= {"instances": instances, "router": router, "tiers": tiers, "instances_per_host": per_host}
    return open_loop(trace, COST, setting=Setting(capacity), limits=BatchLimits(8, 2), **options)


def arriving(times_ms, *prompts):
    columns = replace_columns(toy(*prompts, block_size=1), timestamp=np.array(times_ms, dtype=float))
    return Trace.from_columns(columns, block_size=1)


@given(traces(outputs=False), st.integers(1, 4), st.sampled_from(["round-robin", "sticky"]), st.integers(0, 3),
       st.integers(1, 3), lower_tiers())  # fmt: skip
def test_pooled_serving_does_what_its_twin_does(trace, instances, router, extra, per_host, tiers):
    done = run(trace, tiers, instances, router, extra, per_host)
    groups = {"rank": 1, "host": min(per_host, instances), "cluster": instances}
    kinds = {("on-eviction", "rank"): "move", "write-through": "write-through"}
    given = [
        (tier.name, tier.capacity, groups[tier.scope],
         kinds.get((tier.copies, tier.scope), kinds.get(tier.copies, "write-back")), tier.fetch_seconds, tier.latency_s)
        for tier in tiers
    ]  # fmt: skip
    if all(tier == Tier(tier.name, tier.capacity, tier.fetch_seconds) for tier in tiers):
        return
    fleet, chosen = serve(trace, COST, BatchLimits(8, 2), instances, router, done.setting.capacity, given)
    assert done.instance.tolist() == chosen
    for row, number in enumerate(chosen):
        times = fleet[number].times[row]
        assert done.hit_blocks[row] == fleet[number].hits[row]
        assert [done.started_s[row], done.first_s[row], done.ended_s[row]] == pytest.approx(times)


@given(
    traces(outputs=False), st.integers(1, 3), st.integers(0, 3), st.integers(1, 9), st.sampled_from([0.0, 0.25, 2.0])
)
def test_a_tier_of_an_instance_that_moves_blocks_is_the_exclusive_one(trace, instances, extra, size, seconds):
    moves, plain = (
        run(trace, [Tier("dram", size, seconds, copies=copies)], instances, extra=extra)
        for copies in ("on-eviction", None)
    )
    assert moves.lower_tier_hits.tolist() == plain.lower_tier_hits.tolist()
    for name in ("hit_blocks", "started_s", "first_s", "ended_s", "cached_tokens"):
        assert getattr(moves, name).tolist() == pytest.approx(getattr(plain, name).tolist(), nan_ok=True)


def test_transfers_of_a_shared_tier_take_its_link_one_after_another():
    # the first request fills the pool at 1 s + 0.5; two instances then ask for its four blocks at once
    trace = arriving([0, 10_000, 10_000], "0 1 2 3", "0 1 2 3", "0 1 2 3")
    shared, apart = (
        run(trace, [Tier("pool", 9, 0.08, scope=scope, copies="write-through")], 3) for scope in ("cluster", "rank")
    )
    assert apart.lower_tier_hits.tolist() == [[0, 0, 0]]
    assert shared.lower_tier_hits.tolist() == [[0, 4, 4]]
    waits = shared.first_s - shared.trace.timestamp / 1000
    assert waits[2] - waits[1] == pytest.approx(0.32)


def test_a_prompt_is_in_the_pool_when_it_is_computed_not_before():
    trace = arriving([0, 500, 2_000], "0 1 2 3", "0 1 2 3", "0 1 2 3")
    done = run(trace, [Tier("pool", 9, scope="cluster")], 3)
    assert done.lower_tier_hits.tolist() == [[0, 0, 4]]


def test_what_is_slower_than_computing_is_computed():
    trace = arriving([0, 10_000], "0 1 2 3", "0 1 2 3")
    done = run(trace, [Tier("pool", 9, 5.0, scope="cluster")], 2)
    assert done.cached_tokens.tolist() == [0, 0]


def test_an_engine_without_a_model_of_shared_tiers_is_refused():
    trace, tiers = toy("0 1", "0 1"), [Tier("pool", 9, scope="cluster")]
    with pytest.raises(UsageError, match="not modelled in time with engine tensorrt-llm"):
        open_loop(trace, COST, setting=Setting(4, engine="tensorrt-llm"), instances=2, tiers=tiers)
    with pytest.raises(UsageError, match="at least 1 block"):
        run(trace, [Tier("pool", 0, scope="cluster")])
    assert np.isfinite(run(trace, tiers).ended_s).all()
