"""The options --png and --svg: one figure for each command that has one, for a paper."""

import re

import numpy as np
import pytest
from click.testing import CliRunner

from kvtrace import toy, write
from kvtrace.cli import run
from kvtrace.report import paper
from kvtrace.report.figures import plot_of
from kvtrace.report.plots.plot import Axis, Panel, Plot, Series, bars
from tests.docs import ROOT

pytest.importorskip("matplotlib")
MODEL = ROOT / "tests/data/models/llama-3.1-8b.json"
COMMANDS = {
    "curve": ["curve", "small.jsonl"],
    "simulate": ["simulate", "small.jsonl", "--policy", "lru,sieve", "--capacity", "5,8"],
    "one run": ["simulate", "small.jsonl", "--capacity", "8"],
    "serving": ["simulate", "small.jsonl", "--model-config", str(MODEL), "--gpu", "h100", "--instances", "2"],
    "analyze": ["analyze", "small.jsonl"],
    "plan": ["plan", "small.jsonl", "--model-config", str(MODEL)],
    "compare": ["compare", "small.jsonl", "small.jsonl"],
    "sweep": ["sweep", "small.jsonl", "--policy", "lru,sieve", "--capacity", "5,8"],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(toy("0 1 2 3", "0 1 4 5 6", "0 1 2 3 7", "8 9", "0 1 4 5 6", gap_ms=900, block_size=16), "small.jsonl")
    return tmp_path


def said(arguments, capfd):
    status = run(arguments)
    return status, capfd.readouterr()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_draws_its_result_and_prints_the_same_as_without(folder, capfd, name):
    assert run(COMMANDS[name]) == 0
    plain = capfd.readouterr().out
    status, output = said([*COMMANDS[name], "--png", "a.png", "--svg", "a.svg"], capfd)
    assert status == 0 and output.out == plain
    assert output.err.count("wrote       a.") == 2
    assert (folder / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "a.svg").read_text().startswith("<?xml")


def test_the_same_result_gives_the_same_bytes(folder):
    for name in ("a", "b"):
        assert run(["curve", "small.jsonl", "--png", f"{name}.png", "--svg", f"{name}.svg"]) == 0
    for suffix in ("png", "svg"):
        assert (folder / f"a.{suffix}").read_bytes() == (folder / f"b.{suffix}").read_bytes()


def test_a_figure_names_no_program_no_time_and_no_address_to_load(folder):
    run(["curve", "small.jsonl", "--png", "a.png", "--svg", "a.svg"])
    picture = (folder / "a.svg").read_text()
    assert not re.search(r"<dc:(date|title)>(?!image)|Matplotlib v|href=\"(?!#)", picture)
    assert b"Software" not in (folder / "a.png").read_bytes()


@pytest.mark.parametrize(
    ("option", "file", "message"),
    [
        ("--png", "a.svg", "--png a.svg: the name must end in .png."),
        ("--svg", "-", "--svg -: the name must end in .svg."),
        ("--png", ".png", "--png .png: the name must end in .png."),
        ("--svg", "none/a.svg", "none/a.svg: the folder none does not exist."),
    ],
)
def test_a_name_that_cannot_be_written_is_refused_before_any_work(folder, capfd, option, file, message):
    status, output = said(["curve", "no-such-trace.jsonl", option, file], capfd)
    assert status == 2 and output.err == f"kvtrace: {message}\n" and not output.out


def test_a_result_that_cannot_be_drawn_is_printed_all_the_same(folder, capfd):
    write(toy("0 1", "0 1", gap_ms=0, block_size=16), "still.jsonl")
    status, output = said(["simulate", "still.jsonl", "--capacity", "8", "--png", "a.png"], capfd)
    assert status == 3 and "lru" in output.out and not (folder / "a.png").exists()
    assert output.err.endswith("there is nothing to draw: all requests arrive at the same time.\n")


def test_matplotlib_is_named_with_its_extra(folder, monkeypatch, capfd):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    status, output = said(["curve", "small.jsonl", "--svg", "a.svg"], capfd)
    assert (status, output.err) == (2, "kvtrace: --svg needs matplotlib. Run `pip install 'kvtrace[paper]'`.\n")


def test_a_legend_lies_below_its_axes():
    from matplotlib.figure import Figure

    x = Series("a", np.arange(3), np.arange(3))
    figure = paper.draw(Figure, [Panel("", Axis("x"), Axis("y"), [x, Series("b", x.x, x.y, 1)])])
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert axes.get_legend().get_window_extent().y1 < axes.xaxis.label.get_window_extent().y0
    assert not axes.get_legend().get_window_extent().overlaps(axes.get_window_extent())


def test_bars_stand_in_the_order_of_their_names():
    panel = bars("Load", Axis("tokens"), {"first": 1.0, "second": 2.0})
    assert panel.y.ticks == {0.0: "second", 1.0: "first"} and panel.series[0].x.tolist() == [2.0, 1.0]


def test_a_panel_without_data_is_left_out_of_a_file(folder):
    paper.write_plot(Plot("", "", [Panel("gone", missing="no data."), *plot_of(toy("0 1", "0 1")).panels[:1]]), "a.png")
    assert (folder / "a.png").exists()


def test_help_says_what_the_options_write():
    shown = CliRunner().invoke(__import__("kvtrace.cli", fromlist=["commands"]).commands, ["curve", "--help"]).output
    assert "--png FILE" in shown and "--svg FILE" in shown
