"""The experiment on hints: its loads, its points and its tables, on a small trace of sessions."""

import doctest

import numpy as np
import pytest

from experiments.hints import closed_loop, load, open_loop, tables
from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.dependencies import Dependencies
from kvtrace.trace.trace import Trace


def sessions(count=6, turns=3):
    """Sessions of so many turns; each turn has its session's blocks so far and a new one, 1 s after the turn before."""
    paths = [range(100 * one, 100 * one + turn + 1) for turn in range(turns) for one in range(count)]
    trace = toy(*(" ".join(map(str, path)) for path in paths), block_size=64)
    rows = np.arange(len(trace))
    waits = [[] if row < count else [(row - count, "completion", "sequence", 500.0)] for row in rows.tolist()]
    columns = replace_columns(
        trace, timestamp=rows // count * 1000.0, session=rows % count, service_ms=np.full(len(trace), 500.0),
        dependencies=Dependencies.of(waits), extra={"number": rows % count},
    )  # fmt: skip
    return Trace.from_columns(columns, block_size=64)


@pytest.mark.parametrize("module", [load, tables])
def test_its_examples_run(module):
    assert doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0


def test_held_out_sessions_are_every_third_one():
    parts = [load.sessions_of(sessions(), held_out=one) for one in (False, True)]
    assert [np.unique(part.extra["number"]).tolist() for part in parts] == [[0, 1, 3, 4], [2, 5]]


def test_a_stagger_moves_sessions_as_a_whole_and_the_seed_repeats_it():
    trace = sessions()
    one, again, other = (load.staggered(trace, 2, seed) for seed in (0, 0, 1))
    assert one.timestamp.tolist() == again.timestamp.tolist() != other.timestamp.tolist()
    for session in range(6):
        assert np.allclose(np.diff(one.timestamp[one.session == session]), 1000)


def test_the_mean_number_of_open_sessions_is_the_one_that_was_asked_for():
    trace = sessions(count=600)
    starts = np.sort(load.staggered(trace, 5, 0).timestamp)[::1]
    span = starts[-1] / 1000
    assert 600 * 2.5 / span == pytest.approx(5, rel=0.15)  # each session is open for 2.5 s


def test_the_open_loop_has_each_policy_at_each_point(monkeypatch):
    monkeypatch.setattr(open_loop, "POINTS", ((2, 1), (3, 100)))
    few, many = open_loop.open_loop(sessions(), 3, range(2))
    assert set(few.token_hit_rate) == set(open_loop.POLICIES)
    assert few.capacity == 3 and all(rate == many.token_hit_rate["belady"] for rate in many.token_hit_rate.values())
    assert all(rate <= few.token_hit_rate["belady"] for rate in few.token_hit_rate.values())


def test_the_closed_loop_compares_each_seed_with_lru(monkeypatch):
    for name, value in {"LANES": (2,), "DURATION_S": 60.0, "POLICIES": ("lru", "session-end")}.items():
        monkeypatch.setattr(closed_loop, name, value)
    points = closed_loop.closed_loop(sessions(), 3, range(2))
    assert [(one.policy, one.dram, one.fetch) for one in points] == [
        ("lru", False, "at arrival"), ("session-end", False, "at arrival"), ("lru", True, "at arrival"),
        ("session-end", True, "at arrival"), ("lru", True, "at admission"), ("lru", True, "before arrival"),
    ]  # fmt: skip
    assert points[0].gains == (0.0, 0.0) and all(one.requests_per_s > 0 for one in points)
    assert "| `session-end` |" in tables.closed_table(points)


def test_tables_are_put_between_the_marks_of_a_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Before\n\n<!-- hits -->\nold\n<!-- end -->\n\nAfter\n")
    tables.put(page, {"hits": "| new |"})
    assert page.read_text() == "Before\n\n<!-- hits -->\n\n| new |\n\n<!-- end -->\n\nAfter\n"
    with pytest.raises(ValueError, match="no mark for times"):
        tables.put(page, {"times": ""})
