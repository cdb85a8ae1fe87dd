"""Delivered against possible: figures worked out by hand, and sums over windows and sessions that equal the totals."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvtrace
from kvtrace import InputError, UsageError, toy, write
from kvtrace.cli import run
from kvtrace.formats.dataset import open_dataset
from kvtrace.formats.lazy import LazyTrace
from kvtrace.report import html_page
from kvtrace.report.plots import causes
from kvtrace.trace.columns import Columns, replace_columns
from kvtrace.trace.domains import in_domains
from kvtrace.trace.hits import count_hits, unlimited_hits
from kvtrace.trace.trace import Trace
from tests.strategies import traces

MINUTE = 60_000.0
SUMS = ("requests", "unknown_requests", "tokens", "delivered_tokens", "possible_tokens", "lost_tokens")


def measured(trace, **columns):
    return Trace.from_columns(replace_columns(trace, **columns), block_size=trace.block_size)


def three_hours():
    """Five requests of three sessions; the third has no number, the last hits what no request before it had."""
    return measured(
        toy("0 1", "0 1 2", "0 3", "0 3", "4", block_size=16), timestamp=np.array([0, 10, 61, 70, 125]) * MINUTE,
        session=[0, 0, 1, 1, 2], cached_tokens=[0, 0, -1, 32, 16], ttft_ms=[500.0, 300.0, np.nan, 100.0, np.nan],
    )  # fmt: skip


def test_totals_count_requests_whose_hits_are_known():
    done = kvtrace.analysis.delivered_hits(three_hours())
    assert done.possible.tolist() == [0, 32, 16, 32, 0]
    assert done.totals == {
        "requests": 4, "unknown_requests": 1, "tokens": 128, "delivered_tokens": 48, "possible_tokens": 64,
        "simulated_tokens": None, "lost_tokens": 16,
    }  # fmt: skip
    assert repr(done) == "Delivered(4 requests, 128 prompt tokens, delivered=0.3750, possible=0.5000, 1 unknown)"


def test_hours_and_sessions_have_their_own_sums():
    done = kvtrace.analysis.delivered_hits(three_hours())
    hours = [[hour[key] for key in ("start_ms", *SUMS)] for hour in done.over_time()]
    assert hours == [[0, 2, 0, 80, 0, 32, 32], [60 * MINUTE, 1, 1, 32, 32, 32, 0], [120 * MINUTE, 1, 0, 16, 16, 0, -16]]
    sessions = [[one[key] for key in ("session", *SUMS)] for one in done.by_session()]
    assert sessions == [[0, 2, 0, 80, 0, 32, 32], [1, 1, 1, 32, 32, 32, 0], [2, 1, 0, 16, 16, 0, -16]]
    assert [one["session"] for one in done.largest_losses()] == [0]
    with pytest.raises(UsageError, match="longer than 0 ms"):
        done.over_time(0)


def test_the_largest_loss_comes_first_and_equal_losses_in_order_of_sessions():
    trace = measured(toy(*["0 1"] * 7, block_size=16), session=[3, 0, 1, 1, 2, 2, -1], cached_tokens=[0] * 7)
    done = kvtrace.analysis.delivered_hits(trace)
    losses = [(one["session"], one["lost_tokens"]) for one in done.largest_losses()]
    assert losses == [(2, 64), (3, 64), (1, 32)]  # sessions are numbered by first appearance
    assert [one["session"] for one in done.largest_losses(1)] == [2]


def test_hits_that_the_trace_does_not_explain_are_stated_and_not_clipped():
    done = kvtrace.analysis.delivered_hits(three_hours())
    assert done.excess.tolist() == [0, 0, 0, 0, 16]
    unknown, excess = done.notes
    assert unknown == "1 of 5 requests have no cached_tokens. Sums leave them out."
    assert excess.startswith("In 1 requests the service hit 16 more tokens than any earlier prompt of the trace had")
    assert "its cache kept outputs (kvtrace anonymize --outputs writes their blocks), had other traffic or" in excess
    assert kvtrace.analysis.delivered_hits(measured(toy("0", "0"), cached_tokens=[0, 1])).notes == []


def test_outputs_of_earlier_requests_are_possible_hits():
    columns = Columns(
        [0, 1], [16, 32], [16, 16], [0, 0, 1], [0, 1, 3], output_ids=[1, 2], output_offsets=[0, 1, 2],
        cached_tokens=[0, 32],
    )  # fmt: skip
    trace = Trace.from_columns(columns, block_size=16)
    done = kvtrace.analysis.delivered_hits(trace)
    assert done.with_outputs and done.possible.tolist() == [0, 32] and done.notes == []
    assert kvtrace.analysis.analyze(trace).delivered.totals == done.totals


def test_domains_share_no_possible_hits():
    trace = measured(toy("0", "0", "0"), domain=[0, 1, 0], cached_tokens=[0, 0, 0])
    assert kvtrace.analysis.delivered_hits(trace).possible.tolist() == [0, 0, 1]
    assert kvtrace.analysis.delivered_hits(in_domains(trace, "merge")).possible.tolist() == [0, 1, 1]


def test_a_trace_without_the_column_is_refused_and_has_no_section():
    with pytest.raises(InputError, match="no cached_tokens"):
        kvtrace.analysis.delivered_hits(toy("0"))
    summary = kvtrace.analysis.analyze(toy("0", "0"))
    assert summary.delivered is None and not {"delivered", "measured_times"} & summary.to_dict().keys()
    assert kvtrace.serving.explain(toy("0", "0"), 1).delivered is None


@given(traces(outputs=True), st.data())
def test_windows_and_sessions_add_up_to_the_totals(trace, data):
    cached = [data.draw(st.integers(-1, int(tokens))) for tokens in trace.input_length]
    done = kvtrace.analysis.delivered_hits(measured(trace, cached_tokens=cached))
    for groups in (done.over_time(), done.over_time(data.draw(st.floats(1, 1e7))), done.by_session()):
        assert {key: sum(group[key] for group in groups) for key in SUMS} == {key: done.totals[key] for key in SUMS}
    plain = sum(
        min(blocks * trace.block_size, tokens)
        for blocks, tokens, hit in zip(
            unlimited_hits(trace, outputs=trace.has_output_blocks).tolist(), trace.input_length.tolist(), cached,
            strict=True,
        )
        if hit >= 0
    )  # fmt: skip
    assert done.totals["possible_tokens"] == plain
    assert done.totals["delivered_tokens"] == sum(hit for hit in cached if hit >= 0)


@given(traces(outputs=False))
def test_a_service_that_never_evicts_delivers_what_is_possible(trace):
    hits = unlimited_hits(trace)
    trace = measured(trace, cached_tokens=np.minimum(hits * trace.block_size, trace.input_length))
    done = kvtrace.analysis.delivered_hits(trace)
    assert done.totals["lost_tokens"] == 0 and not done.excess.any()
    assert done.totals["possible_tokens"] == count_hits(trace, hits).hit_tokens


def test_an_explanation_adds_the_simulated_hits_and_leaves_out_the_warm_up():
    explanation = kvtrace.serving.explain(three_hours(), 3)
    assert explanation.delivered.simulated.tolist() == [0, 32, 16, 32, 0]
    assert explanation.delivered.totals["simulated_tokens"] == 64
    assert explanation.to_dict()["delivered"] == explanation.delivered.to_dict()
    assert kvtrace.serving.explain(three_hours(), 3, warm_up=3).delivered.totals["tokens"] == 48
    assert "simulated=0.5000" in repr(explanation.delivered)


def test_streamed_traces_give_the_same(tmp_path):
    trace = three_hours()
    write(trace, tmp_path / "day.dataset", format="dataset")
    lazy = LazyTrace(open_dataset(tmp_path / "day.dataset"), references=2)
    assert kvtrace.analysis.analyze(lazy).to_dict() == kvtrace.analysis.analyze(trace).to_dict()


def test_times_are_summed_up_where_they_are_known():
    summary = kvtrace.analysis.analyze(three_hours(), quantiles=[0.9])
    times = summary.measured_times["ttft_ms"]
    assert (times.count, times.mean, times.quantiles) == (3, 300.0, {0.9: pytest.approx(460)})
    assert summary.to_dict()["measured_times"] == {"ttft_ms": times.to_dict()}
    (table,) = [table for table in summary.tables() if table.title == "Measured times"]
    assert table.rows[0][:2] == ("Time to first token (s)", "0.3000")
    assert table.caption == "ttft_ms is unknown for 2 requests"


@pytest.fixture
def trace_file(tmp_path):
    write(three_hours(), path := tmp_path / "day.jsonl")
    return str(path)


@pytest.fixture
def printed(capsys):
    def printed(*args):
        assert run([*args, "-q"]) == 0
        return capsys.readouterr().out

    return printed


def test_analyze_prints_the_tables_and_the_notes(trace_file, printed):
    shown = printed("analyze", trace_file)
    titles = ("Delivered against possible by hour", "Sessions with the largest loss", "Measured times")
    assert all(text in shown for text in (*titles, "16 more tokens"))
    delivered = json.loads(printed("analyze", trace_file, "--json"))["delivered"]
    assert delivered == kvtrace.analysis.delivered_hits(three_hours()).to_dict()
    assert (delivered["excess_requests"], delivered["excess_tokens"]) == (1, 16)


def test_explain_prints_the_simulated_hits_beside_them(trace_file, printed):
    shown = printed("explain", trace_file, "--capacity", "3", "--no-cures")
    row = next(line for line in shown.splitlines() if line.startswith("simulated"))
    assert row.split()[1:4] == ["64", "50.0", "%"]
    assert "delivered" in json.loads(printed("explain", trace_file, "--capacity", "3", "--no-cures", "--json"))


def test_the_page_has_the_tables_once_and_the_notes():
    pytest.importorskip("plotly")
    html = html_page.page(three_hours(), capacity=3)
    assert html.count("<h3>Delivered against possible</h3>") == 1
    assert "<td>simulated</td>" in html and "16 more tokens" in html


def test_a_waterfall_ends_with_the_delivered_tokens_if_all_are_known():
    every = measured(three_hours(), cached_tokens=[0, 0, 16, 32, 16])
    labels = list(causes.waterfall_panel(kvtrace.serving.explain(every, 3)).y.ticks.values())
    assert labels[0] == "delivered 40%"
    assert not any(
        "delivered" in label
        for label in causes.waterfall_panel(kvtrace.serving.explain(three_hours(), 3)).y.ticks.values()
    )


def test_a_service_that_is_an_lru_cache_delivers_the_hits_of_the_conversation_trace(shared):
    trace = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")
    explanation = kvtrace.serving.explain(trace, 10_000)
    done = kvtrace.analysis.delivered_hits(measured(trace, cached_tokens=explanation.causes.tokens["hit"]))
    assert done.totals["delivered_tokens"] == explanation.simulation.hits.hit_tokens
    assert done.totals["possible_tokens"] == 144_793_823 - 90_695_412  # all but first uses
    assert done.totals["lost_tokens"] == explanation.totals["evicted"]
    assert not done.excess.any()


def test_a_table_of_a_long_trace_has_a_row_for_each_day():
    trace = measured(toy("0", "0", gap_ms=3 * 86_400_000), cached_tokens=[0, 0])
    tables = {table.title: table for table in kvtrace.analysis.delivered_hits(trace).tables()}
    assert [row[0] for row in tables["Delivered against possible by day"].rows] == ["0", "3"]
