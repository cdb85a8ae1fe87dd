"""Progress is one line on a terminal, nothing elsewhere, and ends with all of the work done."""

import io
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from kvtrace import toy, write
from kvtrace._base.input_files import open_read
from kvtrace.report import progress
from kvtrace.report.progress import Bar, RequestProgress, Steps, Work

CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def terminal(width=80, *, is_terminal=True):
    return Console(file=io.StringIO(), force_terminal=is_terminal, width=width, color_system=None)


def frames(console):
    """The lines that were printed, each as it was at one moment."""
    return [line.rstrip() for line in re.split(r"[\r\n]+", CODES.sub("", console.file.getvalue())) if line.strip()]


def anonymizing(console, quiet=False):
    with Bar(console, quiet) as bar:
        bar.update(SimpleNamespace(done=900_000_000, total=9_000_000_000, requests=123_456_789, tokens=12_345_678_901))
        bar._bar.refresh()


def simulating(console, quiet=False):
    with RequestProgress(console, quiet) as bar:
        bar.expect(1_234_567_890)
        bar.update(123_456_789)
        bar._bar.refresh()


def in_steps(console, quiet=False):
    with Steps(console, quiet) as bar:
        bar.update(123_456, 1_234_567, "requests")
        bar._bar.refresh()


def releasing(console, quiet=False):
    with Work(console, "release", progress.RELEASE, quiet) as work:
        for name in progress.RELEASE:
            work.step(name)
            work.requests = 123_456_789
            work._bar.refresh()


EACH = pytest.mark.parametrize("show", [anonymizing, simulating, in_steps, releasing])


@EACH
@pytest.mark.parametrize("width", [80, 120])
def test_a_bar_is_one_line_of_the_terminal(show, width):
    console = terminal(width)
    show(console)
    assert frames(console) and all(len(line) <= width for line in frames(console))
    assert console.file.getvalue().count("\n") == 1  # at the end, before the line is erased


@EACH
def test_nothing_is_shown_without_a_terminal_or_with_quiet(show):
    pipe, quiet = terminal(is_terminal=False), terminal()
    show(pipe)
    show(quiet, quiet=True)
    assert pipe.file.getvalue() == quiet.file.getvalue() == ""


def test_work_names_the_step_and_counts_the_shares_of_the_finished_ones():
    console = terminal()
    with Work(console, "count", {"read": 1, "add": 3}) as work:
        work.step("read")
        work.step("add")
        work._bar.refresh()
        assert work._bar.tasks[0].percentage == 25
        work.step("unknown")
        assert work._bar.tasks[0].percentage == 100
    assert any(line.startswith("count: add") and "25 %" in line for line in frames(console))


def test_reading_advances_with_the_bytes_of_the_files(tmp_path):
    (tmp_path / "a").write_bytes(bytes(1000))
    with Work(terminal(), "count", {"read": 1, "add": 1}, files=2) as work:
        work.step("read")
        for expected in (25, 50, 50):  # a third pass over a file is no work of this step
            with open_read(tmp_path / "a") as stream:
                stream.read()
            assert work._bar.tasks[0].percentage == expected
    assert work._bar.tasks[0].fields["rate"].endswith("bytes/s")


def test_the_time_that_remains_is_that_of_the_work_that_remains():
    with Work(terminal(), "count", {"read": 1, "add": 3}) as work:
        work.step("read")
        work._bar.tasks[0].start_time -= 10
        work.step("add")
        assert work._bar.tasks[0].fields["expected"] == pytest.approx(40, abs=1)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_bar_on_stderr_leaves_a_piped_stdout_as_it_is(tmp_path):
    import pty

    write(toy("0 1", "0 2", block_size=16), tmp_path / "t.jsonl")
    command = [sys.executable, "-m", "kvtrace", "convert", str(tmp_path / "t.jsonl"), "-o", "-"]
    plain = subprocess.run(command, capture_output=True, check=True).stdout
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=theirs, check=True, env=os.environ | {"TERM": "xterm"}
        )
        os.close(theirs)
        shown = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
    assert done.stdout == plain and "convert" in shown
