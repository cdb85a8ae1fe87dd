"""The report page as text: what it says, what it lacks and why, and that it is the same each time."""

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given

from kvtrace import UsageError, toy, write
from kvtrace.cache import simulate
from kvtrace.cli import run
from kvtrace.report import html_page as page
from kvtrace.report import interactive, paper
from kvtrace.report.plots import PLOTS, hit_rates, over_time
from kvtrace.report.plots.plot import Axis, Panel, Series, Study, cdf, cumulative, log_ticks, time_bins
from kvtrace.serving import plan
from kvtrace.serving.deployment import Deployment
from kvtrace.serving.planning.plan_target import PlanTarget
from kvtrace.trace import fold
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace
from tests.strategies import traces

pytest.importorskip("plotly")


def shared_prefix(gap_ms=100.0):
    return toy("0 1 2 3", "0 1 4 5 6", "0 1 2 3 7", "8 9", gap_ms=gap_ms, block_size=16)


def figures(html):
    return json.loads(re.search(r'id="figures">(.*?)</script>', html, re.S)[1])


def test_a_page_is_the_same_each_time():
    assert page.page(shared_prefix()) == page.page(shared_prefix())


def test_a_page_names_no_address_that_it_would_load():
    html = page.page(shared_prefix())
    assert not re.search(r'(src|href)="(?!#)', html)
    assert html.count("default-src 'none'") == 1


def test_plotly_stands_on_the_page_once():
    html = page.page(shared_prefix(), shared_prefix())
    assert html.count(interactive.packed_script()) == 1


def test_every_figure_has_a_place_on_the_page():
    html = page.page(shared_prefix(), shared_prefix())
    assert sorted(figures(html)) == sorted(re.findall(r'class="plot" id="(.*?)"', html))


def test_without_times_the_page_says_what_is_not_drawn_and_why():
    html = page.page(shared_prefix(gap_ms=0.0))
    assert "Not drawn: all requests arrive at the same time (Hit rate over time, " in html
    assert html.count("<figure>") == html.count('class="plot"') > 0 and "Not drawn" not in html.partition("</nav>")[0]


def test_without_reuse_the_page_says_so():
    html = page.page(toy("0", "1", "2"))
    assert "a prefix cache has nothing to reuse" in html
    assert "Not drawn: no block is used twice (Reuse time and distance, " in html
    assert "Not drawn: no prompt is longer than one block (" in html and 'href="#reuse"' not in html


def test_one_request_makes_a_page():
    assert "<h1>trace</h1>" in page.page(toy("0 1"))


def test_the_curve_ends_at_the_unlimited_rate():
    # 4 + 5 + 5 + 2 blocks, 0 + 2 + 4 + 0 of them hits
    study = Study(shared_prefix())
    block = PLOTS["hit-curve"](study).panels[0].series[0]
    assert (block.x[0], block.x[-1]) == (5, 10)
    assert block.y[-1] == 6 / 16


def test_the_first_block_size_is_the_traces_own():
    # folded by two: 0+1 2+3 | 0+1 4+5 6 | 0+1 2+3 7 | 8+9, hits 0 1 2 0 of 9
    series = PLOTS["block-size"](Study(shared_prefix())).panels[0].series[0]
    assert series.x.tolist() == [16, 32, 64, 128]
    assert series.y.tolist()[:2] == [6 / 16, 3 / 9]


def test_dropped_tails_leave_no_block_of_a_large_size():
    trace = Trace.from_columns(
        Columns([0, 1], [32, 33], [1, 1], [0, 1, 0, 1], [0, 2, 4]), block_size=16, tail="dropped"
    )
    series = PLOTS["block-size"](Study(trace)).panels[0].series[0]
    assert series.x.tolist() == [16, 32] and len(fold(trace, 4).hash_ids) == 0


def test_reuse_is_counted_by_its_share_of_blocks():
    # uses 3 3 2 2 and 1 six times: of 6 reuses the first tenth of ten blocks has 2
    series = PLOTS["popularity"](Study(shared_prefix())).panels[1].series[0]
    assert (series.x[0], series.y[0]) == (0.1, 2 / 6)


def test_equal_traces_are_no_distance_apart():
    plot = hit_rates.compared_plot(Study(shared_prefix(), "a"), Study(shared_prefix(), "b"))
    assert [panel.title[-5:] for panel in plot.panels[1:]] == ["0.000"] * 5


def test_a_distance_weighs_values_by_their_counts():
    a, b = (np.array([1, 2]), np.array([3, 1])), (np.array([1, 2]), np.array([1, 3]))
    assert hit_rates.distance(a, b) == 0.5


def test_two_traces_of_one_name_are_two_lines():
    plot = hit_rates.compared_plot(Study(shared_prefix(), "a"), Study(toy("0 1", "0 1"), "a"))
    assert [len(panel.series) for panel in plot.panels] == [2] * 6


def test_block_sizes_may_differ_between_two_traces():
    html = page.page(shared_prefix(), fold(shared_prefix(), 2), names=("fine", "coarse"))
    assert "fine and coarse" in html


def test_a_long_sample_is_thinned_and_keeps_its_ends():
    value, share = cumulative(np.arange(100_000))
    assert len(value) <= 401 and (value[0], value[-1], share[-1]) == (0, 99_999, 1.0)
    assert np.allclose(share, (value + 1) / 100_000)


def test_zeros_on_a_logarithmic_axis_are_named():
    panel = cdf("t", Axis("x", log=True), ("gaps", np.array([0, 0, 1, 1000]), None))
    assert panel.note == "gaps: 50% are 0 and not shown."
    assert (panel.series[0].x.tolist(), panel.series[0].y.tolist()) == ([1, 1, 1000, 1000], [0.5, 0.75, 1, 1])


def test_values_of_one_size_have_a_plain_axis():
    assert not cdf("t", Axis("x", log=True), ("gaps", np.array([0, 3000, 3300]), None)).x.log


def test_only_zeros_are_no_curve():
    assert cdf("t", Axis("x", log=True), ("gaps", np.array([5, 5]), None)).series
    assert cdf("t", Axis("x"), ("gaps", np.zeros(0), None), why="nothing came.").missing == "nothing came."


def test_round_ticks_lie_inside():
    assert log_ticks(1, 1e6) == [1, 10, 100, 1000, 1e4, 1e5, 1e6]
    assert log_ticks(7, 8) == [7, 7.2, 7.4, 7.6, 7.8, 8]
    assert log_ticks(1, 4) == [1, 2, 3, 4]


def test_names_cannot_end_the_script_or_become_plotly_tags():
    html = page.page(shared_prefix(), shared_prefix(), names=("</script><b>", "%{x}"))
    assert "</script><b>" not in html
    assert figures(html)["compare-1"]["data"][0]["name"] == "&lt;/script&gt;&lt;b&gt;"
    hover = interactive.figure(Panel("", series=[Series("%{x}<b>", np.array([1]), np.array([1]))]))["data"][0]
    assert "% {x}&lt;b&gt;" in hover["hovertemplate"]


def test_a_million_requests_stay_a_page_below_two_and_a_half_megabytes():
    rng, rows = np.random.default_rng(0), 1_000_000
    tokens = rng.integers(1, 60_000, rows)
    session = np.sort(rng.integers(0, rows // 4, rows))
    columns = Columns(np.sort(rng.uniform(0, 1e8, rows)), tokens, rng.integers(0, 900, rows),
                      rng.permutation(rows) // 2, np.arange(rows + 1), session=session)  # fmt: skip
    assert len(page.page(Trace.from_columns(columns, block_size=65536))) < 2.5e6


def test_a_paper_gets_a_figure_for_each_plot_that_can_be_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    written = paper.write_figures(page.draw(Study(shared_prefix()), Study(shared_prefix(), "b")), tmp_path / "figures")
    no_sessions = {"session-timeline"}  # the trace records none
    assert {path.stem for path in written} == {"compare", *PLOTS} - no_sessions
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


@pytest.fixture
def trace_file(tmp_path):
    write(shared_prefix(), tmp_path / "t.jsonl")
    return tmp_path / "t.jsonl"


def test_the_command_writes_the_page(trace_file, tmp_path):
    assert run(["report", str(trace_file), "-o", str(tmp_path / "r.html"), "--title", "Tuesday", "-q"]) == 0
    assert "<title>Tuesday</title>" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_the_command_never_writes_over_its_trace(trace_file, capsys):
    before = trace_file.read_bytes()
    assert run(["report", str(trace_file), "-o", str(trace_file)]) == 2
    assert trace_file.read_bytes() == before
    assert "would overwrite it" in capsys.readouterr().err


def test_ids_without_prefixes_are_refused_unless_chained(tmp_path, capsys):
    write(toy("0 1 2", "3 1 2", block_size=16), tmp_path / "loose.jsonl")
    call = ["report", str(tmp_path / "loose.jsonl"), "-o", str(tmp_path / "r.html"), "--block-size", "16", "-q"]
    assert run(call) == 3
    assert "--chain" in capsys.readouterr().err and not (tmp_path / "r.html").exists()
    assert run([*call, "--chain"]) == 0


def test_a_missing_plotly_is_named_before_any_work(monkeypatch, tmp_path):
    import sys

    interactive.script.cache_clear()
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(UsageError, match=r"kvtrace\[report\]"):
        interactive.script()


def test_help_says_that_the_second_trace_may_be_left_out():
    from kvtrace.cli import commands

    assert "TRACE [TRACE2]" in CliRunner().invoke(commands, ["report", "--help"]).output


@given(traces(outputs=False))
def test_a_window_counts_its_distinct_blocks(trace):
    if not trace.timestamp[-1] or not len(trace.hash_ids):
        return
    which = time_bins(trace, over_time.WINDOWS)[0]
    rows = [np.flatnonzero(which == window) for window in range(over_time.WINDOWS)]
    distinct = [len({block for row in inside for block in trace.prompt(row).tolist()}) for inside in rows]
    assert over_time.working_set_plot(Study(trace)).panels[0].series[1].y.tolist() == distinct


def test_every_value_under_the_pointer_has_a_unit():
    plots = page.draw(Study(shared_prefix()), Study(fold(shared_prefix(), 2), "b"), plan=small_plan())
    without = {"rank of the block", "turn"}  # numbers of an order
    for plot in plots.values():
        for panel in plot.panels:
            for axis in (panel.x, panel.y):
                assert (
                    panel.missing
                    or axis.percent
                    or axis.unit
                    or (axis.ticks and not axis.title)
                    or axis.title in without
                ), (panel.title, axis.title)


def test_the_pointer_shows_names_values_and_units():
    panel = Panel("", Axis("capacity (blocks)", unit="blocks"), Axis("rate", percent=True),
                  [Series("LRU", np.array([1]), np.array([0.5]))])  # fmt: skip
    hover = interactive.figure(panel)["data"][0]["hovertemplate"]
    assert hover == "capacity: %{x:,.6~r} blocks<br>LRU: %{y:.2%}<extra></extra>"


def test_an_interval_is_drawn_as_the_distances_from_its_value():
    series = Series("a", np.array([1]), np.array([5.0]), low=np.array([4.0]), high=np.array([7.0]))
    drawn = interactive.figure(Panel("", Axis("x"), Axis("y"), [series]))["data"][0]["error_y"]
    assert (drawn["arrayminus"], drawn["array"], drawn["symmetric"]) == ([1.0], [2.0], False)


def test_every_plot_has_buttons_that_save_it():
    html = page.page(shared_prefix())
    for kind in ("csv", "svg", "png"):
        assert sorted(re.findall(rf'data-plot="([^"]*)" data-save="{kind}"', html)) == sorted(figures(html))


def test_sessions_are_inferred_where_the_trace_records_none():
    # requests 2 and 3 begin with all of request 1's or 2's blocks but the last; request 4 is alone
    trace = toy("0 1", "0 1 2", "0 1 2 3", "9", gap_ms=100.0, block_size=16)
    plot = PLOTS["sessions"](Study(trace))
    assert "inferred" in plot.explanation
    assert plot.panels[1].series[0].y.tolist() == [(32 + 16) / 2, 48, 64]  # mean prompt of turns 1, 2 and 3


def test_policies_are_simulated_at_the_capacities_of_the_optimum():
    study = Study(shared_prefix(), policies=("mru",))
    rates, _, shares = PLOTS["policies"](study).panels
    assert [series.name for series in rates.series] == ["mru", "belady"]
    for place, capacity in enumerate(rates.series[0].x.tolist()):
        hits = simulate(study.trace, capacity, "mru").hits
        assert rates.series[0].y[place] == hits.block_hit_rate
        best = simulate(study.trace, capacity, "belady").hits.hit_blocks
        assert shares.series[0].y[place] == hits.hit_blocks / best


def test_a_large_trace_is_not_simulated_unless_its_reader_asks(monkeypatch):
    monkeypatch.setattr("kvtrace.report.plots.plot.MAX_REFERENCES", 10)
    missing = PLOTS["policies"](Study(shared_prefix())).panels[0].missing
    assert missing == "prompts have 16 blocks, more than 10. Add --policy lru,sieve to simulate them."
    assert len(PLOTS["hits-over-time"](Study(shared_prefix())).panels[0].series) == 2
    assert PLOTS["policies"](Study(shared_prefix(), policies=("lru",))).panels[0].series
    assert len(PLOTS["hits-over-time"](Study(shared_prefix(), capacity=6)).panels[0].series) == 4


def test_the_hit_rate_over_time_ends_at_that_of_the_chosen_capacity():
    lines = PLOTS["hits-over-time"](Study(shared_prefix(), capacity=6)).panels[0].series
    assert "LRU, 6 blocks" in lines[3].name
    assert lines[3].y[-1] == simulate(shared_prefix(), 6).hits.block_hit_rate


def test_a_plan_is_drawn_by_router_with_its_target():
    plots = page.draw(Study(shared_prefix()), plan=small_plan())
    latency, costs = plots["plan-instances"], plots["plan-sensitivity"]
    assert [panel.title for panel in latency.panels] == ["TTFT p50", "TTFT p90", "TTFT p99"]
    assert [series.name for series in latency.panels[1].series] == ["sticky", "lmetric", "target"]
    assert latency.panels[1].series[0].low is not None and latency.panels[0].series[0].low is None
    assert costs.panels[0].title == "Cost"


def test_a_wide_table_takes_the_width_of_the_page():
    html = page.page(shared_prefix(), plan=small_plan())
    cards = re.findall(r'<div class="table( wide)?">.*?</table>', html, re.S)
    heads = [len(re.findall("<th[ >]", table)) for table in re.findall(r"<table .*?</table>", html, re.S)]
    wide = [bool(card) for card, columns in zip(cards, heads, strict=True) if columns >= page.WIDE]
    assert len(wide) >= 4 and all(wide)


LLAMA = Deployment("llama-3.1-8b", gpu="h100")


def small_plan():
    return plan(shared_prefix(), LLAMA, PlanTarget(routers=("sticky", "lmetric")))


def test_the_command_takes_policies_and_one_capacity(trace_file, tmp_path, capsys):
    call = ["report", str(trace_file), "-o", str(tmp_path / "r.html"), "-q", "--policy", "lru,mru", "--capacity"]
    assert run([*call, "75%"]) == 0
    drawn = figures((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert [line["name"] for line in drawn["policies-1"]["data"]] == ["lru", "mru", "belady"]
    assert any("LRU, 8 blocks" in line["name"] for line in drawn["hits-over-time-1"]["data"])
    assert run([*call, "5,6"]) == 2
    assert "--capacity must be one capacity" in capsys.readouterr().err
    assert run([*call, "4"]) == 2
    assert "does not hold the longest prompt of 5 blocks. Try 5 or more." in capsys.readouterr().err


def test_belady_alone_has_no_policy_beside_it():
    rates, _, share = PLOTS["policies"](Study(shared_prefix(), policies=("belady",))).panels
    assert [series.name for series in rates.series] == ["belady"]
    assert share.missing == "no policy but belady was chosen."


def test_a_plan_of_a_single_request_or_of_one_moment_is_drawn():
    for trace in (toy("0 1", block_size=16), shared_prefix(gap_ms=0.0)):
        assert "Time to first token by number of instances" in page.page(trace, plan=plan(trace, LLAMA))


def test_a_paper_gets_the_plots_of_the_plan(tmp_path):
    pytest.importorskip("matplotlib")
    written = paper.write_figures(page.draw(Study(shared_prefix()), plan=small_plan()), tmp_path)
    assert {"plan-instances", "plan-sensitivity"} < {path.stem for path in written}
