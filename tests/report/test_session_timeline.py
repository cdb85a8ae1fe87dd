"""The timeline of sessions: the bars of two sessions by hand, and what is left out of large traces."""

import numpy as np
import pytest

from kvtrace.report import interactive
from kvtrace.report.figures import plot_of
from kvtrace.report.plots import sessions as timeline
from kvtrace.report.plots.plot import Study
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns, replace_columns
from kvtrace.trace.trace import Trace
from tests.analysis.session_cases import two_sessions


def panel_of(trace):
    return plot_of(trace, "session-timeline").panels[0]


def by_name(panel):
    return {series.name: series for series in panel.series}


def test_each_call_of_two_sessions_is_a_bar():
    panel = panel_of(two_sessions())
    assert panel.y.ticks == {3.0: "session 0", 2.0: "agent 1", 1.0: "agent 2", 0.0: "session 1"}
    drawn, ms = by_name(panel), 1000
    #  the rows end at 80, 10, 12 and 95 ms: their median is 61, so the call at 70 ms and the last one are left out
    assert panel.x.limits == (0, pytest.approx(1.01 * 61 / ms)) and "2 later calls" in panel.note
    main, sub = drawn["main agent"], drawn["subagent"]
    calls = [tuple(call) for call in np.stack([main.y, main.x * ms, main.length * ms], axis=1).round(6).tolist()]
    assert calls == [(3, 0, 10), (0, 0, 5), (3, 20, 5), (3, 50, 10)]
    assert main.details["prompt tokens"].tolist() == [4, 3, 6, 7]
    assert main.details["hit"].tolist() == pytest.approx([0, 1, 4 / 6, 6 / 7])
    assert (sub.x * ms).tolist() == [30, 32] and sub.y.tolist() == [2, 1]
    between = drawn["between calls"]
    spans = np.stack([between.y, between.x * ms, between.length * ms], axis=1).round(6).tolist()
    assert spans == [[3, 10, 10], [3, 25, 25], [3, 60, 10], [0, 5, 90]]


def test_a_call_after_a_compaction_has_a_colour_of_its_own():
    trace = two_sessions(agent=False, dependencies=None)
    compacted = by_name(panel_of(trace[trace.session == 0]))["after a compaction"]
    assert compacted.details["prompt tokens"].tolist() == [2, 2]  # a subagent is not told apart without its column


def test_without_service_times_calls_are_lines_at_their_arrivals():
    panel = panel_of(two_sessions(service_ms=None))
    assert all(not series.length.any() for series in panel.series if series.name != "between calls")
    assert "no service times" in panel.note


def test_a_trace_without_sessions_has_no_timeline():
    assert panel_of(toy("0 1", "0 1 2")).missing == timeline.NO_SESSIONS


def many(sessions, turns, agents=1):
    """Sessions that start together, each turn a second after the one before."""
    rows = sorted((turn, session, turn % agents) for session in range(sessions) for turn in range(turns))
    columns = Columns(
        [1000 * turn for turn, _, _ in rows], [1] * len(rows), [1] * len(rows), [0] * len(rows), range(len(rows) + 1),
        session=[session for _, session, _ in rows], extra={"agent": [agent for _, _, agent in rows]},
        service_ms=[500.0] * len(rows),
    )  # fmt: skip
    return Trace.from_columns(columns, block_size=1)


def test_a_large_trace_is_thinned():
    panel = panel_of(many(100, 500))
    assert len(panel.y.ticks) == timeline.MAX_ROWS and "86 more sessions" in panel.note
    calls = sum(len(series.x) for series in panel.series if series.name != "between calls")
    assert timeline.MAX_CALLS <= calls < 1.1 * timeline.MAX_CALLS
    assert len(panel_of(many(3, 60, agents=30)).y.ticks) == timeline.MAX_ROWS  # a session of many agents


def test_a_single_call_is_drawn():
    columns = replace_columns(toy("0"), session=np.zeros(1, dtype=np.int64))
    panel = panel_of(Trace.from_columns(columns, block_size=1))
    assert [len(series.x) for series in panel.series] == [1] and panel.x.limits[1] > 0


def test_the_pointer_shows_lengths_and_hits():
    drawn = interactive.figure(panel_of(two_sessions()))
    bars = drawn["data"][1]
    assert drawn["layout"]["barmode"] == "overlay" and bars["orientation"] == "h"
    assert bars["customdata"][2] == [6, 0.66667, 1]
    assert "prompt tokens: %{customdata[0]:,}<br>hit: %{customdata[1]:.1%}" in bars["hovertemplate"]


def test_sessions_have_three_more_panels_of_times_growth_and_hits():
    titles = [panel.title for panel in plot_of(two_sessions(), "sessions").panels]
    assert titles[3:] == ["Times of calls and between them", "Context growth", "Blocks by where they were used before"]
    shares = plot_of(two_sessions(), "sessions").panels[5].series[0].x[::-1].tolist()
    assert shares == pytest.approx([16 / 30, 3 / 30, 11 / 30])
    assert len(plot_of(toy("0 1", "0 1 2"), "sessions").panels) == 3
    assert Study(toy("0")).session_values is None
