"""Fidelity of one trace to another: distances worked out by hand, laws, and the command."""

import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvtrace
from kvtrace import InputError, toy, write
from kvtrace.analysis import compared_figures, comparison
from kvtrace.analysis.comparison import SESSION_FIGURES, compare
from kvtrace.analysis.distribution import distance, spearman
from kvtrace.analysis.sessions import infer_sessions, recorded_sessions
from kvtrace.cli import run
from kvtrace.report import html_page as page
from kvtrace.trace import fold
from kvtrace.trace.columns import Columns, replace_columns
from kvtrace.trace.trace import Trace
from tests.analysis.session_cases import two_sessions
from tests.reference import sharing as slow
from tests.strategies import traces


def rows(timestamp, input_length, output_length, **more):
    """A trace of requests that share nothing, in blocks of 4 tokens."""
    blocks = -(-np.array(input_length) // 4)
    offsets = np.concatenate([[0], np.cumsum(blocks)])
    columns = Columns(timestamp, input_length, output_length, np.arange(offsets[-1]), offsets, **more)
    return Trace.from_columns(columns, block_size=4)


def prompts_of(trace):
    return [trace.prompt(row).tolist() for row in range(len(trace))]


def known(scores):
    return {name: score for name, score in scores.items() if score is not None}


def has_blocks(trace):
    return len(trace.hash_ids) > 0


# -- Kolmogorov-Smirnov and Spearman ---------------------------------------------------------------------------------

counted = st.lists(st.tuples(st.integers(-3, 6), st.integers(1, 4)), min_size=1, max_size=12)


def plain_distance(a, b):
    """Each sample written out, looked at from every value of either."""
    a, b = ([value for value, count in sample for _ in range(count)] for sample in (a, b))
    return max(
        abs(Fraction(sum(x <= at for x in a), len(a)) - Fraction(sum(x <= at for x in b), len(b))) for at in a + b
    )


@given(counted, counted)
def test_the_distance_equals_that_of_samples_written_out(a, b):
    found = distance(*((np.array(s)[:, 0], np.array(s)[:, 1]) for s in (a, b)))
    assert found == pytest.approx(float(plain_distance(a, b)), abs=1e-12)
    longhand = [(np.repeat(np.array(s)[:, 0], np.array(s)[:, 1]), None) for s in (a, b)]
    assert distance(*longhand) == pytest.approx(found, abs=1e-12)


def test_samples_that_share_nothing_are_one_apart():
    assert distance((np.array([1, 2]), None), (np.array([3]), None)) == 1.0


def test_rank_correlation_by_hand():
    # ranks 1 2 3 4 against 2 1 4 3: 1 - 6 * (4 * 1) / (4 * 15) = 0.6
    assert spearman(np.array([1, 5, 6, 90]), np.array([20, 10, 40, 30])) == pytest.approx(0.6)
    # ranks 1.5 1.5 3 against 1 2 3: covariance 1.5, variances 1.5 and 2
    assert spearman(np.array([7, 7, 8]), np.array([1, 2, 3])) == pytest.approx(1.5 / 3**0.5)
    assert spearman(np.array([1, 2, 3]), np.array([9, 8, 1])) == -1.0


def test_a_column_that_does_not_vary_has_no_rank_correlation():
    assert spearman(np.array([3, 3]), np.array([1, 2])) is None
    assert spearman(np.array([3]), np.array([1])) is None


# -- sessions ----------------------------------------------------------------------------------------------------------


@given(traces())
def test_inferred_sessions_equal_their_twin(trace):
    found = infer_sessions(trace)
    sessions = slow.infer(prompts_of(trace), trace.tail != "dropped")
    assert found.session.tolist() == sessions
    last = {}
    for row, (session, parent) in enumerate(zip(sessions, found.parent.tolist(), strict=True)):
        assert parent == last.get(session, -1)
        last[session] = row


def test_a_longer_prompt_continues_its_conversation():
    #  system prompt 0 of three users; the first comes back twice
    found = infer_sessions(toy("0 1 2", "0 3 4", "0 5 6", "0 1 2 7", "0 1 2 7 8"))
    assert found.session.tolist() == [0, 1, 2, 0, 0]
    assert found.parent.tolist() == [-1, -1, -1, 0, 3]


def test_a_block_of_three_sessions_is_a_common_beginning():
    beginnings = infer_sessions(toy("0 1 2", "0 3 4", "0 5 6", "0 7", "0"))
    assert beginnings.session.tolist() == [0, 1, 2, 3, 4]
    assert infer_sessions(toy("0", "0")).session.tolist() == [0, 0]  # a retry


def test_requests_without_blocks_are_conversations_of_their_own():
    none = Trace.from_columns(Columns([0, 1], [3, 3], [1, 1], [], [0, 0, 0]), block_size=4, tail="dropped")
    assert infer_sessions(none).session.tolist() == [0, 1]


def test_recorded_sessions_without_parents_follow_their_order():
    trace = rows([0, 1, 2, 3], [1] * 4, [1] * 4, session=[5, -1, 5, -1])
    found = recorded_sessions(trace)
    assert found.parent.tolist() == [-1, -1, 0, -1] and found.recorded
    assert recorded_sessions(rows([0], [1], [1], session=[-1])) is None


def test_sessions_of_one_trace_only_are_inferred_for_both():
    with_sessions = rows([0, 1], [4, 4], [1, 1], session=[0, 0])
    found = compare(with_sessions, rows([0, 1], [4, 4], [1, 1]))
    assert found.sessions == "inferred" and found.scores["turns"] == 1.0
    assert any("inferred" in note for note in found.notes)
    assert compare(with_sessions, with_sessions).sessions == "recorded"


def test_recorded_conversations_by_hand():
    #  a: one session of three turns, 10 ms and 30 ms apart;  b: one of two turns, 10 ms apart, and a single request
    a = rows([0, 10, 40], [4, 8, 12], [1, 2, 3], session=[0, 0, 0])
    b = rows([0, 10, 40], [4, 8, 12], [1, 2, 3], session=[0, 0, 1])
    found = compare(a, b)
    turns, think = found.distributions["turns"], found.distributions["turn_gap_ms"]
    assert (turns.a.mean, turns.b.mean, turns.distance) == (3.0, 1.5, 1.0)
    assert (think.a.mean, think.b.mean, think.distance) == (20.0, 10.0, 0.5)
    assert found.numbers["first_turns"].difference == pytest.approx(1 / 3)


def test_the_sessions_of_agents_by_hand():
    #  the second trace is one session of the first, so what the other session does is missing
    whole = two_sessions()
    one = whole[whole.session == 0]
    found = compare(whole, one)
    assert {*SESSION_FIGURES} < found.scores.keys()
    means = {name: (pair.a.mean, pair.b.mean) for name, pair in found.distributions.items()}
    assert means["think_ms"] == ((10 + 8 + 10 + 90) / 4, 28 / 3) and means["service_ms"] == (60 / 7, 55 / 6)
    assert (means["compactions"], means["subagents"], means["spawn_width"]) == ((0.5, 1), (1, 2), (2, 2))
    assert means["session_hit_tokens"] == (16 / 8, 13 / 6) and means["cross_session_hit_tokens"] == (3 / 8, 0)
    rates = found.numbers["session_block_hit_rate"], found.numbers["cross_session_block_hit_rate"]
    assert [(pair.a, pair.b) for pair in rates] == [(16 / 30, 13 / 23), (3 / 30, 0)]
    assert found.scores["think_ms"] == 1 - 1 / 4 and found.scores["spawn_width"] == 1


def test_figures_of_agents_that_one_trace_lacks_are_left_out():
    whole = two_sessions()
    plain = Trace.from_columns(replace_columns(whole, dependencies=None, service_ms=None, extra={}), block_size=1)
    names = compare(whole, plain).scores.keys() & {*SESSION_FIGURES}
    assert names == {name for name in SESSION_FIGURES if "hit" in name} | {"compactions"}
    assert not compare(whole, toy("0", "0 1")).scores.keys() & {*SESSION_FIGURES}


# -- laws ------------------------------------------------------------------------------------------------------------


@given(traces())
def test_a_trace_is_wholly_faithful_to_itself(trace):
    found = compare(trace, trace)
    assert set(known(found.scores).values()) == {1.0} and found.overall == 1.0
    assert all(error in (0.0, None) for values in found.distributions.values() for error in values.errors.values())


@given(traces(), traces())
def test_scores_are_the_same_either_way_round(a, b):
    one, other = compare(a, b), compare(b, a)
    assert known(one.scores) == pytest.approx(known(other.scores), abs=1e-12)


@given(traces(), traces())
def test_every_score_lies_between_0_and_1_and_the_overall_one_is_their_mean(a, b):
    found = compare(a, b)
    scores = list(known(found.scores).values())
    assert all(-1e-12 <= score <= 1 + 1e-12 for score in scores)
    assert found.overall == pytest.approx(np.mean(scores))


@given(traces(), traces())
def test_all_figures_can_be_written_as_json_and_as_a_line_each(a, b):
    found = compare(a, b)
    names = json.loads(json.dumps(found.to_dict(), allow_nan=False))["scores"].keys()
    assert {*names, *SESSION_FIGURES} == compared_figures.NAMES.keys()
    assert len(comparison.comparison_csv(found).splitlines()) == 2 + len(names)
    assert [len(table.rows) for table in found.tables()] == [len(names), len(found.distributions), 2]


# -- by hand -----------------------------------------------------------------------------------------------------------


def test_lengths_and_gaps_by_hand():
    a, b = rows([0, 10, 20], [4, 8, 8], [1, 2, 3]), rows([0, 10, 30], [4, 4, 8], [2, 4, 6])
    found = compare(a, b)
    isl, osl, gap = (found.distributions[name] for name in ("input_length", "output_length", "gap_ms"))
    assert isl.distance == pytest.approx(1 / 3)  # up to 4: one of three against two of three
    assert isl.errors["mean"] == pytest.approx(16 / 20 - 1)
    assert osl.distance == pytest.approx(2 / 3)  # up to 3: all three against one
    assert osl.errors["median"] == 1.0 and osl.errors["q0.99"] == pytest.approx(1.0)
    assert gap.distance == 0.5 and gap.errors["mean"] == 0.5


def test_hit_rates_and_curves_by_hand():
    #  a finds 0 1 again: 2 of 4 blocks;  b finds 0 alone: 1 of 4
    found = compare(toy("0 1", "0 1"), toy("0 1", "0 2"))
    assert found.numbers["block_hit_rate"].to_dict() == {
        "score": 0.75, "a": 0.5, "b": 0.25, "distance": 0.25, "difference": -0.25, "ratio": 0.5}  # fmt: skip
    curve = found.curves["curve_by_capacity"]
    assert (curve.unit, curve.rate, curve.first, curve.last, curve.points) == ("blocks", "block_hit_rate", 2, 3, 2)
    assert (curve.distance, curve.mean, curve.at) == (0.25, 0.25, 2)


def test_hit_curves_by_share_are_read_at_each_one_s_own_capacity():
    #  a: 0 1 from the front at distances 0 0, all hit with 1 block of 1;  b: 0 lies behind 1, hit with 2 blocks of 2
    found = compare(toy("0", "0", "0", "0"), toy("0", "1", "0", "1")).curves["curve_by_share"]
    assert (found.unit, found.first, found.last, found.points) == ("share", 1.0, 1.0, 1)
    assert found.distance == 0.25  # 3 of 4 against 2 of 4
    #  b beside pairs of blocks: 3 of 4 blocks hit the first of each pair, 2 of 8, where 1 of 2 blocks hits none
    pairs = compare(toy("0", "1", "0", "1"), toy("0 1", "2 3", "0 1", "2 3")).curves
    by_share, by_capacity = pairs["curve_by_share"], pairs["curve_by_capacity"]
    assert (by_share.first, by_share.distance) == (0.5, 0.25) and 0.75 <= by_share.at < 0.76
    assert (by_capacity.distance, by_capacity.at) == (0.5, 2)


def test_reuse_is_weighed_by_references():
    #  a: 0 1 2 wanted again after 2 ms, with 3 between;  b: 0 after 2 ms, then 0 after 1 ms
    found = compare(toy("0 1 2", "3", "0 1 2"), toy("0 1 2", "3", "0", "0"))
    times = found.distributions["reuse_time_ms"]
    assert (times.a.count, times.b.count, times.distance) == (3, 2, 0.5)
    #  distances 1 2 3 against 1 0
    assert found.distributions["reuse_distance"].distance == pytest.approx(2 / 3)


def test_dispersion_is_compared_as_a_ratio():
    #  whole seconds 0 1 2 hold 2 0 1 requests (variance 2/3, mean 1) and 1 1 1 (variance 0)
    a, b = rows([0, 1, 2500, 3000], [4] * 4, [1] * 4), rows([0, 1000, 2000, 3000], [4] * 4, [1] * 4)
    found = compare(a, b).numbers
    assert found["dispersion_1s"].a == pytest.approx(2 / 3) and found["dispersion_1s"].distance == 1.0
    twice = compare(a, rows([0, 1, 2, 2500, 2501, 3000], [4] * 6, [1] * 6)).numbers["dispersion_1s"]
    #  3 0 2: variance 14/9, mean 5/3
    assert twice.score == pytest.approx((2 / 3) / (14 / 15)) and twice.ratio == pytest.approx(1.4)
    assert found["dispersion_60s"].score is None


# -- edges -------------------------------------------------------------------------------------------------------------


def test_one_row_each_is_compared():
    found = compare(toy("0 1"), toy("0 1"))
    assert found.overall == 1.0 and found.scores["gap_ms"] is None
    assert any("Neither trace has values" in note and "gap_ms" in note for note in found.notes)


def test_what_one_trace_lacks_scores_0_and_is_named():
    found = compare(toy("0", "0"), toy("0", "1"))
    assert (found.scores["reuse_time_ms"], found.scores["reuse_distance"], found.scores["turn_gap_ms"]) == (0, 0, 0)
    assert any("Only one of the traces" in note and "reuse_time_ms" in note for note in found.notes)


def test_all_at_time_0_has_no_dispersion_and_is_told():
    found = compare(toy("0", "0 1", gap_ms=0), toy("0", "0 1", gap_ms=0))
    assert [found.scores[f"dispersion_{window}s"] for window in (1, 10, 60)] == [None] * 3
    assert found.scores["gap_ms"] == 1.0
    assert any("1 s, 10 s, 60 s" in note for note in found.notes)


def test_block_sizes_may_differ_and_are_told():
    fine = toy("0 1 2 3", "0 1 2 3 4 5", block_size=16)
    found = compare(fine, fold(fine, 2))
    assert "16 and 32 tokens" in found.notes[0]
    assert (
        found.curves["curve_by_capacity"].unit == "tokens"
        and found.curves["curve_by_capacity"].rate == "token_hit_rate"
    )
    assert found.scores["token_hit_rate"] == 1.0 and found.scores["hit_tokens"] == 1.0


def test_traces_without_blocks_are_compared_by_their_lengths():
    none = Trace.from_columns(Columns([0, 5], [3, 2], [1, 1], [], [0, 0, 0]), block_size=4, tail="dropped")
    found = compare(none, none)
    assert found.overall == 1.0 and found.scores["curve_by_share"] is None and found.scores["block_hit_rate"] is None
    against = compare(none, rows([0, 5], [3, 2], [1, 1]))
    assert against.scores["curve_by_share"] == 0.0 and against.scores["input_length"] == 1.0


def test_an_empty_trace_is_refused_by_name():
    with pytest.raises(InputError, match="b.jsonl: the trace has no requests"):
        compare(toy("0"), toy(), names=("a.jsonl", "b.jsonl"))


def test_ids_that_are_no_forest_are_refused():
    with pytest.raises(InputError, match="--chain"):
        compare(toy("0 1 2", "3 1 2"), toy("0"))


# -- shown -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    write(toy("0 1 2", "0 1 3", "0 1 3 4", block_size=16, gap_ms=100), tmp_path / "a.jsonl")
    write(toy("0 1 2", "0 1 3", "5", block_size=16, gap_ms=100), tmp_path / "b.jsonl")
    return [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]


def test_a_score_below_1_comes_with_the_advice_to_compare_halves():
    trace, other = kvtrace.toy("0 1", "0 1", gap_ms=1000), kvtrace.toy("0 1", "0 2", gap_ms=1000)
    assert any("compare the two halves" in note for note in kvtrace.analysis.compare(trace, other).notes)
    assert not any("halves" in note for note in kvtrace.analysis.compare(trace, trace).notes)


def test_the_command_prints_scores_and_notes(files, capsys):
    assert run(["compare", *files]) == 0
    printed = capsys.readouterr().out
    assert (
        "a.jsonl" in printed and "Hit curve by share" in printed and "sessions of both traces are inferred" in printed
    )


def test_the_command_writes_json_and_csv(files, capsys):
    assert run(["compare", *files, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["a"]["name"], found["b"]["requests"]) == (2, "a.jsonl", 3)
    assert run(["compare", *files, "--csv"]) == 0
    assert capsys.readouterr().out.startswith("figure,score,distance,a,b,")
    assert run(["compare", *files, "--csv", "--json"]) == 2
    assert run(["compare", "-", "-"]) == 2


def test_a_notebook_shows_the_tables():
    assert "Fidelity: 1.0000" in compare(toy("0"), toy("0"))._repr_html_()


def test_names_cannot_steer_a_terminal():
    found = compare(toy("0"), toy("0"), names=("[red]\x1b[31m", "b"))
    header = found.tables()[0].columns[3].name
    assert header == "[red]?[31m"


def test_the_page_of_two_traces_has_the_scores_and_of_one_has_not():
    pytest.importorskip("plotly")
    a, b = toy("0 1 2", "0 1 3", block_size=16), toy("0 1 2", "0 1 2", "0", block_size=16)
    html = page.page(a, b)
    assert html.count('<section id="fidelity">') == 1 and "Hit curve by share" in html
    assert "Reuse and sessions compared" in html
    assert "Reuse and sessions compared" not in page.page(a, a)
    assert 'id="fidelity"' not in page.page(a)


def test_half_of_the_conversation_trace_is_close_to_the_whole(shared):
    trace = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")
    found = compare(trace, trace[:6000])
    assert 0.97 < found.overall < 0.98
    assert found.numbers["block_hit_rate"].a == pytest.approx(0.3664, abs=5e-5)
    assert found.distributions["turns"].a.count == 8077
