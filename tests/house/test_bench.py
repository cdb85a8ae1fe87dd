"""The bench prints each line when it is known, survives a line that fails, and its status tells of both."""

import sys
from types import ModuleType

import pytest

from benchmarks import __main__ as bench
from benchmarks.measuring import Line


def run(monkeypatch, capsys, lines, *options):
    """The status of a bench with one part, and what it prints of each line."""
    part = ModuleType("benchmarks.made")
    part.lines = lambda folder, share: iter(lines)
    monkeypatch.setitem(sys.modules, part.__name__, part)
    monkeypatch.setattr(bench, "PARTS", ["made"])
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--quick", *options])
    with pytest.raises(SystemExit) as stopped:
        bench.main()
    return stopped.value.code, capsys.readouterr().out.splitlines()[2:]


def missing(name):
    """A measurement that fails."""
    raise KeyError(name)


@pytest.mark.parametrize(
    ("line", "status", "verdict", "end"),
    [
        (Line("memory", "MB", 2e6, 4e6, 0.5), 0, "yes", "0.500   0.500  yes"),
        (Line("memory", "MB", 3e6, 4e6, 0.5), 1, "NO", "0.750   0.500  NO"),
        (Line("time", "ms", 0.003, 0.004, 0.5), 0, "not checked", "0.750   0.500  not checked"),
        (
            Line("no rival", "ms", 0.003, (missing, "x"), 0.5, "an oven"),
            0,
            "not measured",
            "not measured: needs an oven",
        ),
        (Line("ours", "ms", (missing, "x"), 1), 1, "failed", "FAILED: KeyError: 'x'"),
    ],
)
def test_a_line_has_a_verdict_and_the_status_follows_from_all(monkeypatch, capsys, line, status, verdict, end):
    code, (text, counts) = run(monkeypatch, capsys, [line])
    assert (code, counts) == (status, f"1 {verdict}")
    assert text.startswith(line.name) and text.endswith(end)


def test_what_fails_takes_one_line_and_the_rest_goes_on(monkeypatch, capsys):
    def lines():
        yield Line("first", "ms", (missing, "x"))
        yield Line("second", "ms", 0.25)
        raise ValueError("two\nlines")

    code, printed = run(monkeypatch, capsys, lines())
    assert code == 1
    assert [" ".join(line.split()) for line in printed] == [
        "first FAILED: KeyError: 'x'", "second 250.00 ms", "made FAILED: ValueError: two lines",
        "2 failed, 1 without a rival",
    ]  # fmt: skip
