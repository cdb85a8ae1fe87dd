"""Names that look like markup, formulas or HTML are shown as they are: of files, of policies, of GPUs."""

import csv
import io
import json
from pathlib import Path

import pytest

from kvtrace.cli import run
from kvtrace.report.html_page import page
from kvtrace.trace.building import toy
from tests.unaudited import write

NAME = "=1+1[bold]x[/nope]<b>.jsonl"  # in the folder `=1+1[bold]x[`
OUT = "[/b]out.jsonl"  # in the folder `[`
POLICY = """
class Fifo:
    def __init__(self, context): self.order = {}
    def insert(self, block): pass
    def use(self, block): self.order.pop(block, None)
    def release(self, block): self.order[block] = True
    def victim(self): return next(iter(self.order))
    def remove(self, block): del self.order[block]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / NAME).parent.mkdir()
    (tmp_path / "[").mkdir()
    (tmp_path / "[bold]mine.py").write_text(POLICY)
    write(toy("0 1", "2", "0 1", "0 3", block_size=16, gap_ms=60_000), tmp_path / NAME)
    return tmp_path


def shown(capsys, *arguments):
    status = run(list(arguments))
    captured = capsys.readouterr()
    assert status in (0, 4) and "Traceback" not in captured.err, captured.err
    return captured.out + captured.err


@pytest.mark.parametrize(
    "command",
    [
        "analyze {}", "check {}", "curve {}", "audit {}", "compare {} {}", "simulate {} --capacity 2",
        "sweep {} --capacity 2 -o out.csv", "convert {} -o OUT", "release {} -o OUT", "synthesize {} -o OUT",
    ],
)  # fmt: skip
def test_no_command_reads_markup_in_a_name(folder, capsys, command):
    text = shown(capsys, *command.format(NAME, NAME).replace("OUT", OUT).split())
    if command.startswith(("check", "audit", "compare", "sweep")):
        assert Path(NAME).name in text
    if "OUT" in command:
        assert OUT in text


def test_the_name_of_a_policy_is_no_markup(folder, capsys):
    policy = "[bold]mine:Fifo"
    text = shown(capsys, "simulate", NAME, "--capacity", "2", "--policy", policy, "--over-time", "60s")
    assert text.count(policy) == 2
    assert policy in shown(capsys, "simulate", NAME, "--capacity", "2", "--policy", policy, "--instances", "2")
    assert policy in shown(capsys, "sweep", NAME, "--capacity", "2", "--policy", f"{policy},lru", "-o", "out.csv")


def test_no_cell_of_a_table_is_a_formula(folder, capsys):
    formula = "=1+1.jsonl"
    write(toy("0 1", "0 2"), folder / formula)
    shown(capsys, "sweep", formula, "--capacity", "2", "-o", "out.csv", "-q")
    (row,) = csv.DictReader(io.StringIO((folder / "out.csv").read_text()))
    assert row["trace"] == f"'{formula}" and row["capacity"] == "2"
    shown(capsys, "sweep", formula, "--capacity", "2", "-o", "out.json", "-q")
    assert json.loads((folder / "out.json").read_text())["results"][0]["trace"] == formula


def test_no_name_is_html_in_the_report():
    pytest.importorskip("plotly")
    trace = toy("0 1", "0 2", "0 1 3")
    text = page(trace, trace, names=("<img src=x onerror=a()>", "b"), title="<script>a()</script>")
    assert "<img src=x" not in text and "<script>a()" not in text
