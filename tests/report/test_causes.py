"""The causes of misses on the report page: their bars add up, in windows and in the waterfall."""

import re
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given

import kvtrace
from kvtrace.report import html_page, interactive, paper
from kvtrace.report.explanation_tables import cause_table
from kvtrace.report.figures import plot_of
from kvtrace.report.plots import causes
from kvtrace.report.plots.plot import Study
from kvtrace.serving.misses.causes import CAUSES
from kvtrace.trace.building import toy
from tests.strategies import traces

pytest.importorskip("plotly")


def evicting():
    """With 3 blocks: 2 3 evict 1, the tail; then 0 hits, 1 misses, and 0 hits again."""
    return toy("0 1", "2 3", "0 1", "0", gap_ms=60_000, block_size=16)


def steps(explanation):
    """The bars of a waterfall from top to bottom: label -> (start, tokens)."""
    panel = causes.waterfall_panel(explanation)
    bars = {float(bar.y[0]): (int(bar.x[0]), int(bar.length[0])) for bar in panel.series}
    return {label: bars[row] for row, label in sorted(panel.y.ticks.items(), reverse=True)}


def test_a_waterfall_goes_from_all_tokens_down_to_the_hits():
    assert steps(kvtrace.serving.explain(evicting(), 3)) == {
        "all prompts 100%": (0, 112), "first use 57.1%": (48, 64), "possible 42.9%": (0, 48),
        "evicted 14.3%": (32, 16), "hit 28.6%": (0, 32),
    }  # fmt: skip


def test_hits_of_a_waterfall_are_by_tier_where_there_are_several():
    explanation = kvtrace.serving.explain(evicting(), tiers={"hbm": 2, "dram": 8})
    assert list(steps(explanation).items())[2:] == [
        ("possible 42.9%", (0, 48)), ("hit in hbm 14.3%", (0, 16)), ("hit in dram 28.6%", (16, 32)),
    ]  # fmt: skip
    opacity = [bar.opacity for bar in causes.waterfall_panel(explanation).series]
    assert opacity[-1] < opacity[-2] == 1


def test_a_waterfall_leaves_out_the_warm_up():
    assert steps(kvtrace.serving.explain(evicting(), 3, warm_up=2))["all prompts 100%"] == (0, 48)


@given(traces(outputs=False))
def test_windows_add_up_to_the_causes_and_steps_to_all_tokens(trace):
    explanation = kvtrace.serving.explain(trace, int(trace.prompt_blocks.max(initial=1)) + 1)
    counts = causes.panels_over_time(explanation)[1]
    if not counts.missing:
        totals = explanation.totals
        drawn = {series.name.replace(" ", "_"): int(series.y.sum()) for series in counts.series}
        assert drawn == {name: totals[name] for name in CAUSES if totals[name] or name == "hit"}
        window_ms = causes.round_window(float(trace.timestamp[-1]))
        hits = [window["causes"]["hit"] for window in explanation.over_time(window_ms)]
        assert [value for value in hits if value] == [int(value) for value in counts.series[0].y if value]
    down = [tokens for label, (_, tokens) in steps(explanation).items() if not label.startswith(("all", "possible"))]
    assert sum(down) == explanation.tokens


def test_windows_are_round_and_at_most_sixty():
    for duration_ms in 10.0 ** np.arange(0, 13, 0.25):
        window_ms = causes.round_window(duration_ms)
        assert duration_ms // window_ms < causes.WINDOWS
    week = kvtrace.serving.explain(toy("0", "0", gap_ms=7 * 86_400_000), 2)
    assert causes.panels_over_time(week)[0].y.title == "share of prompt tokens in 3 h"


def test_bars_of_a_window_are_stacked_on_the_hits():
    drawn = interactive.figure(causes.panels_over_time(kvtrace.serving.explain(evicting(), 3))[0])
    assert drawn["layout"]["barmode"] == "stack"
    assert [(bars["name"], bars["y"][::12]) for bars in drawn["data"]] == [
        ("hit", [0.0, 0.0, 0.5, 1.0]), ("evicted", [0.0, 0.0, 0.5, 0.0]), ("first use", [1.0, 1.0, 0.0, 0.0]),
    ]  # fmt: skip
    together = interactive.plotly_figure(plot_of(kvtrace.serving.explain(evicting(), 3)))
    assert together.layout.barmode == "stack"  # the waterfall's bars have a base, so they keep their place


def test_the_page_shows_causes_of_the_chosen_capacity_and_their_table():
    html = html_page.page(evicting(), capacity=3)
    assert "Where the hits go, lru, 3 blocks" in html and "Causes of misses over time, lru, 3 blocks" in html
    assert re.search(r'<td>evicted</td>\s*<td class="right">16</td>\s*<td class="right">14.3%</td>', html)


def test_the_page_shows_a_given_explanation():
    explanation = kvtrace.serving.explain(evicting(), 4, ttl="90s")
    html = html_page.page(evicting(), explanation=explanation)
    assert "Where the hits go, ttl:90s, 4 blocks" in html
    assert "<td>expired</td>" in html


def test_the_page_knows_tokens_of_other_domains():
    trace = toy("0 1", "0 1", "2", gap_ms=1000)
    trace.domain = np.array([0, 1, 1])
    assert "other domain 40%" in html_page.page(trace, capacity=8)


def test_a_large_trace_has_no_causes_unless_its_reader_asks(monkeypatch):
    monkeypatch.setattr("kvtrace.report.plots.plot.MAX_REFERENCES", 3)
    study = Study(evicting())
    missing = {
        panel.missing for plot in (causes.waterfall_plot, causes.causes_over_time_plot) for panel in plot(study).panels
    }
    assert missing == {"prompts have 7 blocks. Add --capacity 50% to simulate a cache."}
    assert "Prompt tokens by cause, " not in html_page.page(evicting())
    assert not causes.waterfall_plot(Study(evicting(), capacity=3)).panels[0].missing


def test_a_paper_stacks_the_same_bars(tmp_path):
    plot = plot_of(kvtrace.serving.explain(evicting(), 3))
    names = [str(tmp_path / f"causes.{kind}") for kind in ("png", "svg")]
    pytest.importorskip("matplotlib")
    assert paper.write_plot(plot, *names) == names
    from matplotlib.figure import Figure

    axes = paper.draw(Figure, plot.panels).axes[1]
    assert [[bar.get_y() for bar in bars][::12] for bars in axes.containers] == [
        [0, 0, 0, 0], [0, 0, 0.5, 1], [0, 0, 1, 1],
    ]  # fmt: skip


def test_a_table_of_causes_adds_up():
    rows = cause_table(kvtrace.serving.explain(evicting(), tiers={"hbm": 2, "dram": 8})).rows
    counts = {name: int(tokens.replace(",", "")) for name, tokens, _, _ in rows}
    assert counts == {"hit": 48, "  in hbm": 16, "  in dram": 32, "first use": 64, "all prompt tokens": 112}


# Machado, Oliveira and Fernandes (2009), severity 1: what people see who lack one kind of cone, on linear RGB
SEEN = {
    "every colour": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def cie_lab(linear):
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(linear, 0, 1) / [0.95047, 1, 1.08883]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def linear(colour):
    parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("theme", ["light", "dark", "paper"])
def test_everyone_can_tell_the_colours_of_the_causes_apart(theme):
    if theme == "paper":
        colours, ground = [interactive.colour_of(number) for number in causes.COLOURS.values()], "#ffffff"
    else:
        script = html_page._asset("draw.js").partition(f"    {theme}: {{")[2]
        lists = (re.search(rf"{name}: \[(.*?)\]", script)[1] for name in ("series", "tones"))
        series, tones = (re.findall("#[0-9a-f]{6}", text) for text in lists)
        colours = [tones[-number - 1] if number < 0 else series[number] for number in causes.COLOURS.values()]
        ground = re.search('card: "(.*?)"', script)[1]
    assert len(colours) == len(CAUSES) == len(set(colours))
    for sight in map(np.array, SEEN.values()):
        for one, other in combinations([*colours, ground], 2):
            assert np.linalg.norm(cie_lab(sight @ linear(one)) - cie_lab(sight @ linear(other))) > 15
