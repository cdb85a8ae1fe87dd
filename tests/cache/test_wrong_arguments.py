"""Arguments of the wrong kind, from Python: each is one sentence that says what to write."""

import sys
from pathlib import Path

import numpy as np
import pytest

import kvtrace
from kvtrace.cache.sweeps import Grid
from tests.reference import pool as slow

TRACE = kvtrace.toy("0 1", "2", "0 1")
SETTING = kvtrace.cache.Setting(3)


class Lru(slow.Lru):
    """A policy of the user's, given as a class."""


def test_a_class_stands_for_its_name():
    by_name = kvtrace.cache.simulate(TRACE, 3, f"{__name__}:Lru")
    by_class = kvtrace.cache.simulate(TRACE, 3, Lru)
    assert by_class.to_dict() == by_name.to_dict() and by_class.setting == by_name.setting
    assert kvtrace.serving.simulate_all(TRACE, [3], ["lru", Lru]).runs[1].setting.policy == f"{__name__}:Lru"
    assert kvtrace.cache.simulate_tiers(TRACE, {"a": 2, "b": 2}, Lru).hits.hit_blocks == 2


def test_a_class_of_a_notebook_is_found(monkeypatch):
    monkeypatch.setattr(
        sys.modules["__main__"], "Mine", type("Mine", (Lru,), {"__module__": "__main__"}), raising=False
    )
    assert kvtrace.cache.simulate(TRACE, 3, sys.modules["__main__"].Mine).setting.policy == "__main__:Mine"


def test_a_capacity_is_a_whole_number():
    assert kvtrace.cache.simulate(TRACE, np.int64(3)).hits.hit_blocks == 2
    for capacity in ("3", "50%", 3.0, None, [3]):
        with pytest.raises(kvtrace.UsageError, match="a capacity is a whole number of blocks, not"):
            kvtrace.cache.simulate(TRACE, capacity)
    with pytest.raises(kvtrace.UsageError, match=r"not 2\.5\. For '50%'"):
        kvtrace.cache.simulate_tiers(TRACE, {"a": 2.5, "b": 3})


def local():
    class Local(Lru):
        pass

    return Local


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: kvtrace.cache.simulate(TRACE, 3, local()), "is not at the top level of its module. Define it there."),
        (lambda: kvtrace.cache.simulate(TRACE, 3, object()), 'a policy is a name or a class, not a object. Try "lru".'),
        (lambda: kvtrace.simulate(TRACE, 3, object()), 'a policy is a name or a class, not a object. Try "lru".'),
        (
            lambda: kvtrace.tune(TRACE, 3, policy=["lru", Lru]),
            f"kvtrace's own policies, not {__name__}:Lru. Compare yours with kvtrace simulate.",
        ),
        (lambda: kvtrace.serving.simulate_all(TRACE, 3, ["lru"]), "capacities must be a list. Try capacities=[3]."),
        (lambda: kvtrace.serving.simulate_all(TRACE, [3], "lru"), "policies must be a list. Try policies=['lru']."),
        (lambda: kvtrace.serving.simulate_all(TRACE, [3], Lru), "policies must be a list. Try policies=[Lru]."),
        (
            lambda: kvtrace.serving.simulate_all(TRACE, [3], engines="vllm"),
            "engines must be a list. Try engines=['vllm'].",
        ),
        (lambda: Grid("day.jsonl"), "traces must be a list. Try traces=['day.jsonl']."),
        (lambda: Grid(("day.jsonl",), policies=(3,)), 'a policy is a name or a class, not a int. Try "lru".'),
    ],
)
def test_a_value_of_another_kind_is_one_sentence(call, said):
    with pytest.raises(kvtrace.UsageError) as error:
        call()
    assert str(error.value).endswith(said)


@pytest.mark.parametrize("path", ["day.jsonl", Path("day.jsonl")])
@pytest.mark.parametrize(
    "call",
    [
        kvtrace.analysis.analyze, kvtrace.analysis.basics, kvtrace.analysis.hit_curve,
        kvtrace.analysis.infer_sessions, kvtrace.synthesis.fit, kvtrace.synthesis.fit_tree,
        kvtrace.trace.forest, kvtrace.trace.unlimited_hits, kvtrace.serving.simulate_all,
        lambda path: kvtrace.analysis.compare(TRACE, path), lambda path: kvtrace.analysis.by_block_size(path, [2]),
        lambda path: kvtrace.cache.simulate(path, 3), lambda path: kvtrace.cache.simulate_tiers(path, {"a": 2, "b": 2}),
        lambda path: kvtrace.serving.simulate_instances(path, 2, setting=SETTING),
        lambda path: kvtrace.serving.plan(path, None),
        lambda path: kvtrace.serving.open_loop(path, kvtrace.serving.StepCost(token_s=1.0), setting=SETTING),
        lambda path: kvtrace.trace.fold(path, 2), lambda path: kvtrace.trace.speed_up(path, 2), kvtrace.trace.convert,
        lambda path: kvtrace.trace.sample_rows(path, 0.5, None),
        lambda path: kvtrace.trace.sample_sessions(path, 0.5, None),
        lambda path: kvtrace.write(path, "other.jsonl"), lambda path: kvtrace.report.write_report("page.html", path),
        lambda path: kvtrace.trace.count_hits(path, None),
    ],
)  # fmt: skip
def test_a_path_in_the_place_of_a_trace_says_to_read_it(call, path):
    with pytest.raises(kvtrace.UsageError, match=r"takes a Trace, not its path\. Read it first: kvtrace\.read\(path\)"):
        call(path)
