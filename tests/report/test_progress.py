"""Progress is one line on a terminal, nothing elsewhere, and ends with all of the work done."""

import io
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from kvtrace import toy, write
from kvtrace._base.input_files import open_read
from kvtrace._base.step_work import report_work, work_reported
from kvtrace.formats import open_dataset
from kvtrace.formats.converting import convert_file
from kvtrace.privacy import LocalRunner, profile, publish, release_dataset
from kvtrace.report import progress
from kvtrace.report.progress import Bar, RequestProgress, Steps, Work
from kvtrace.serving import plan
from kvtrace.serving.deployment import Deployment
from kvtrace.serving.planning.plan_target import PlanTarget

CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def terminal(width=80, *, is_terminal=True):
    return Console(file=io.StringIO(), force_terminal=is_terminal, width=width, color_system=None)


def frames(console):
    """The lines that were printed, each as it was at one moment."""
    return [line.rstrip() for line in re.split(r"[\r\n]+", CODES.sub("", console.file.getvalue())) if line.strip()]


def refresh(bar):
    """Draw the line now."""
    if bar._bar is not None:
        bar._bar.refresh()


def anonymizing(console, quiet=False):
    with Bar(console, quiet) as bar:
        bar.update(SimpleNamespace(done=900_000_000, total=9_000_000_000, requests=123_456_789, tokens=12_345_678_901))
        refresh(bar)


def simulating(console, quiet=False):
    with RequestProgress(console, quiet) as bar:
        bar.expect(1_234_567_890)
        bar.update(123_456_789)
        refresh(bar)


def in_steps(console, quiet=False):
    with Steps(console, quiet) as bar:
        bar.update(123_456, 1_234_567, "requests")
        refresh(bar)


def releasing(console, quiet=False):
    with Work(console, "release", progress.RELEASE, quiet) as work:
        for name in progress.RELEASE:
            work.step(name)
            work.requests = 123_456_789
            refresh(work)


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


def test_a_step_advances_with_the_work_that_it_reports():
    with Work(terminal(), "count", {"read": 1, "add": 1}) as work:
        work.requests = 10
        work.step("add")
        for reported, expected in ((5, 25), (4, 45), (7, 50)):  # more than its share is no work of other steps
            report_work(reported)
            assert work._bar.tasks[0].percentage == pytest.approx(expected)
    report_work(1)  # nobody listens


def test_simulated_requests_give_the_rate():
    with Work(terminal(), "plan", {"instances": 1}) as work:
        work.requests = 10
        work.step("instances")
        work._bar.tasks[0].start_time -= 10
        report_work(1, 100, requests=4_000)
        assert work._bar.tasks[0].fields["rate"] in ("400 requests/s", "399 requests/s")


@pytest.mark.parametrize("to", ["jsonl", "parquet", "dataset", "csv"])
def test_a_conversion_advances_while_it_writes(tmp_path, to):
    trace, client = toy(*("0 1" for _ in range(20_000)), block_size=16), {"csv": "azure"}.get(to)
    write(trace, tmp_path / "in.jsonl")
    with Work(terminal(), "convert", progress.CONVERT) as work:
        shares = []

        def begin(requests):
            assert requests == len(trace)
            work.step("write", requests)
            shares.append(work._bar.tasks[0].percentage)

        work.step("read")
        convert_file(tmp_path / "in.jsonl", tmp_path / f"out.{to}", to=client, on_write=begin)
        shares.append(work._bar.tasks[0].percentage)
    assert shares == [50, 100]


def test_a_plan_advances_in_each_part(monkeypatch):
    trace = toy(*(f"{i % 3} {10 + i}" for i in range(60)), block_size=512, gap_ms=500.0)
    target = PlanTarget(routers=("sticky", "kv-aware"))
    shares, ends = [], {}
    with Work(terminal(), "plan", progress.plan_shares(2, tiers=False)) as work:
        work.requests = len(trace)
        advance = work._advance

        def record(*report):
            advance(*report)
            shares.append((work._step, work._part))

        monkeypatch.setattr(work, "_advance", record)
        with work_reported(record):
            plan(trace, Deployment("llama-3.1-8b", gpu="h100"), target, on_part=work.step)
        assert work._bar.tasks[0].percentage == pytest.approx(100)
    ends = {step: part for step, part in shares}
    assert ends["instances"] == pytest.approx(1) and ends["sensitivity"] == pytest.approx(1)
    for step in ("instances", "sensitivity"):
        parts = [part for name, part in shares if name == step]
        assert parts == sorted(parts) and max(np.diff([0, *parts])) < 0.51  # one of two routers, at most


def test_a_release_of_a_data_set_advances_in_each_stage(tmp_path):
    write(toy(*(f"{i % 3} {10 + i}" for i in range(60)), block_size=16), tmp_path / "day.dataset")
    dataset, steps, stages = open_dataset(tmp_path / "day.dataset"), [], {}
    with Work(terminal(), "release", progress.RELEASE_DATASET) as work:
        work.requests = len(dataset)

        def step(name):
            stages[work._step] = work._part
            steps.append(name)
            work.step(name)

        options = {"runner": LocalRunner(1), "work": tmp_path / "work", "partitions": 3, "on_step": step}
        with release_dataset(dataset, profile("exact"), **options) as released:
            step("write")
            publish(released, tmp_path / "out.dataset", on_step=step)
    assert steps[:8] == [*progress.STAGES, "write", "audit"]
    assert {name: stages[name] for name in steps[:7]} == pytest.approx(dict.fromkeys(steps[:7], 1.0))


def test_a_pipe_loads_nothing_of_the_progress_line(tmp_path):
    write(toy("0 1", "0 2", block_size=16), tmp_path / "t.jsonl")
    code = "import sys; from kvtrace.cli import run; run(sys.argv[1:]); sys.exit('rich.progress' in sys.modules)"
    command = [sys.executable, "-c", code, "analyze", str(tmp_path / "t.jsonl"), "--json"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_bar_on_stderr_leaves_a_piped_stdout_as_it_is(tmp_path):
    import pty

    write(toy("0 1", "0 2", block_size=16), tmp_path / "t.jsonl")
    command = [sys.executable, "-m", "kvtrace", "convert", str(tmp_path / "t.jsonl"), "-o", "-"]
    plain = subprocess.run(command, capture_output=True, check=True).stdout
    ours, theirs = pty.openpty()
    try:
        process = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=theirs, check=True, env=os.environ | {"TERM": "xterm"}
        )
        os.close(theirs)
        shown = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
    assert process.stdout == plain and "convert" in shown
