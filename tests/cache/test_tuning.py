"""`tune`: settings are chosen on the first half, the second half is counted, LRU and belady are 0 and 1."""

import re

import numpy as np
import pytest

import kvtrace
from experiments.gap.tuned import tuned_table
from kvtrace.cache.policies import POLICIES
from kvtrace.cache.tuning import looks_ahead, tune
from kvtrace.trace.building import toy
from kvtrace.trace.columns import fields_of
from tests.conftest import ROOT

LOOPS = toy(*["0 1", "2", "3", "0 1", "4", "0 1"] * 4, gap_ms=1000)


def test_the_setting_with_most_hits_in_the_first_half_is_counted_in_the_second():
    (row,) = [row for row in tune(LOOPS, 3, ["slru"], pools=["flat"]).rows if row.policy == "slru"]
    half, runs = len(LOOPS) // 2, {}
    for share in POLICIES["slru"].tries:
        runs[f"slru:{share}"] = kvtrace.cache.simulate(LOOPS, 3, f"slru:{share}").hit_blocks
    first = {setting: hits[:half].sum() for setting, hits in runs.items()}
    assert row.tried == len(first) == 5
    assert row.first_half_hit_blocks == first[row.setting] == max(first.values())
    assert row.hits.hit_blocks == runs[row.setting][half:].sum() and row.hits.requests == len(LOOPS) - half


def test_lru_closes_nothing_and_belady_everything():
    closed = {row.policy: row.gap_closed for row in tune(LOOPS, 3, ["mru"]).rows}
    assert closed["lru"] == 0 and closed["belady"] == 1 and closed["mru"] != 0


def test_without_a_gap_no_share_is_stated():
    assert {row.gap_closed for row in tune(LOOPS, 5, ["lru"]).rows} == {None}


def test_the_table_of_the_learned_order_comes_from_the_first_half():
    other_end = toy(*["0 1", "2", "3", "0 1", "4", "0 1"] * 2, *["5 6", "7"] * 6, gap_ms=1000)
    assert tune(LOOPS, 3, ["reuse-density"]).table == tune(other_end, 3, ["reuse-density"]).table


def test_a_policy_that_lacks_something_is_named_with_the_reason():
    skipped = tune(LOOPS, 3).skipped
    assert "column priority" in skipped["priority"] and "sessions" in skipped["agent-hints"]
    assert "times" in tune(toy("0 1", "2", "0 1", gap_ms=0), 3).skipped["reuse-density"]


@pytest.mark.parametrize("policy", ["workload", "reuse-density"])
def test_turns_that_are_not_numbers_count_as_first_ones(policy):
    def hits(turns):
        extra = {"turn": np.array(turns, dtype=object)}
        trace = kvtrace.Trace(**(fields_of(LOOPS) | {"extra": extra}), block_size=LOOPS.block_size)
        return kvtrace.cache.simulate(trace, 3, policy).hit_blocks.tolist()

    odd, usual = ["a", None, float("nan"), [1], "", {}], [1] * 6
    assert hits(odd * 4) == hits(usual * 4)
    assert hits([float("inf"), 1e308, 2**70, -1e308, -1, 3] * 4) == hits([10, 10, 10, 0, 0, 3] * 4)


def test_every_policy_with_a_parameter_has_values_to_try_and_each_is_valid():
    for name, row in POLICIES.items():
        if name != "reuse-density":  # its parameter is a file
            assert bool(row.tries) == bool(row.parameter)
        for text in filter(None, row.tries):
            row.parameter(text)


def test_bounds_are_no_candidates():
    best = tune(LOOPS, 3).best()
    assert best.gap_closed == max(row.gap_closed for row in tune(LOOPS, 3).rows if not looks_ahead(row.policy))
    assert not looks_ahead(best.policy) and looks_ahead("oracle-session") and looks_ahead("belady")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((LOOPS, 3, ["slru:0.5"]), "'slru:0.5' is not a policy"), ((LOOPS, 1), "does not hold the longest request")],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(kvtrace.UsageError, match=message):
        tune(*arguments)


def test_one_request_has_no_halves():
    with pytest.raises(kvtrace.InputError, match="fewer than two requests"):
        tune(toy("0"), 3)


def test_the_table_of_the_page_is_what_tune_gives(shared):
    page = (ROOT / "experiments/gap.md").read_text(encoding="utf-8")
    written = re.search(r"<!-- conversation -->\n\n(.*?)\n\n<!-- end -->", page, re.S)[1]
    assert written == tuned_table(kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl"))
