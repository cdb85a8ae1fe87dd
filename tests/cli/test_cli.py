"""The command line as its user meets it: exit statuses, one-line errors, pipes, and files whole or not there."""

import importlib
import json
import resource
import subprocess
import sys

import pytest

import kvtrace
from kvtrace.cli import run

CANARY = "canary-5b1e"


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.jsonl"
    rows = [{"timestamp": t, "input": [1, 2, 3, t], "output": 2, "session": "a"} for t in range(5)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def anonymize(log, out, *options):
    return run(["anonymize", str(log), "-o", str(out), "--block-size", "2", *options])


def said(capsys):
    """The one line on stderr."""
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("kvtrace: "), lines
    return lines[0]


def test_a_trace_and_its_sidecar_are_written_and_named(log, tmp_path, capsys):
    assert anonymize(log, tmp_path / "trace.jsonl") == 0
    shown = capsys.readouterr()
    assert (
        shown.out == ""
        and "log         rows of timestamp, input and output (detected)" in shown.err
        and "trace.jsonl.meta.json" in shown.err
    )
    assert "block hit rate" in shown.err and "0.400" in shown.err
    meta = json.loads((tmp_path / "trace.jsonl.meta.json").read_text())
    assert (
        meta["profile"] == "standard" and meta["block_size"] == 2 and meta["counts"]["requests"] == 10
    )  # to two digits
    assert str(tmp_path) not in json.dumps(meta)


def test_quiet_says_nothing(log, tmp_path, capsys):
    assert anonymize(log, tmp_path / "trace.jsonl", "--quiet") == 0
    assert capsys.readouterr() == ("", "")


def test_a_bad_row_is_status_3_and_leaves_no_file(log, tmp_path, capsys):
    log.write_text(log.read_text() + json.dumps({"timestamp": 9, "input": CANARY, "output": [CANARY]}) + "\n")
    assert anonymize(log, tmp_path / "trace.jsonl", "--quiet") == 3
    line = said(capsys)
    assert "log.jsonl:6: output" in line and CANARY not in line
    assert {path.name for path in tmp_path.iterdir()} == {"log.jsonl"}


def test_rejects_hold_places_and_reasons_only(log, tmp_path):
    log.write_text(log.read_text() + f'{{"timestamp": 9, "input": ["{CANARY}"]}}\n{CANARY}\n')
    rejects = tmp_path / "rejects.jsonl"
    status = anonymize(log, tmp_path / "trace.jsonl", "--on-error", "skip", "--rejects", str(rejects), "--quiet")
    rows = [json.loads(line) for line in rejects.read_text().splitlines()]
    assert status == 0 and [row["line"] for row in rows] == [6, 7]
    assert all(row["length"] and row["reason"] for row in rows) and CANARY not in rejects.read_text()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--block-size", "0"], "--block-size is 0"),
        (["--tail", "cut"], "'cut' is not a valid tail"),
        (["--profile", "loose"], "'loose' is not a release profile"),
        (["--map", "color=x"], "'color' is not a field"),
        (["--format", "xml"], "'xml' is not a trace format"),
        (["--tokenizer", "no-such"], "no-such"),
        (["--time-unit", "fortnight"], "fortnight"),
    ],
)
def test_arguments_that_do_not_fit_are_status_2(log, tmp_path, capsys, options, expected):
    assert anonymize(log, tmp_path / "trace.jsonl", *options) == 2
    assert expected in said(capsys) and not (tmp_path / "trace.jsonl").exists()


def test_unknown_options_and_commands_are_status_2(capsys):
    assert run(["anonymize", "--no-such"]) == 2 and run(["no-such"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_missing_log_is_status_3(tmp_path, capsys):
    assert anonymize(tmp_path / "none.jsonl", tmp_path / "trace.jsonl") == 3
    assert "none.jsonl: no such file" in said(capsys)


def test_an_output_that_cannot_be_is_told_before_the_work(log, tmp_path, capsys):
    assert anonymize(log, tmp_path) == 2
    assert "is a folder" in said(capsys)


def test_an_internal_error_shows_its_place_and_no_content(log, tmp_path, capsys, monkeypatch):
    def fail(*_args, **_options):
        raise ValueError(CANARY)

    monkeypatch.setattr(importlib.import_module("kvtrace.ingest.pipeline"), "anonymize_rows", fail)
    monkeypatch.setenv("KVTRACE_DEBUG", "1")
    assert anonymize(log, tmp_path / "trace.jsonl") == 1
    shown = capsys.readouterr().err
    assert "internal error: ValueError at test_cli.py" in shown and CANARY not in shown


def test_check_passes_a_good_trace_and_lists_what_is_wrong_with_a_bad_one(log, tmp_path, capsys):
    anonymize(log, tmp_path / "trace.jsonl", "--quiet")
    assert run(["check", str(tmp_path / "trace.jsonl")]) == 0
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"timestamp": 5, "input_length": 4, "output_length": 1, "hash_ids": [0, 2]}\n')
    capsys.readouterr()
    assert run(["check", str(bad), "--block-size", "2"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all(line.startswith(f"{bad}:1: ") for line in lines)


def kvtrace_command(*arguments, stdin=None):
    code = "from kvtrace.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], input=stdin, capture_output=True)


def test_from_a_pipe_into_a_pipe(log, tmp_path):
    done = kvtrace_command("anonymize", "-", "-o", "-", "--block-size", "2", stdin=log.read_bytes())
    assert done.returncode == 0
    (tmp_path / "piped.jsonl").write_bytes(done.stdout)
    assert len(kvtrace.read(tmp_path / "piped.jsonl", block_size=2)) == 5


def test_python_m_kvtrace_is_the_command():
    done = subprocess.run([sys.executable, "-m", "kvtrace", "--version"], capture_output=True, text=True)
    assert done.stdout == f"kvtrace {kvtrace.__version__}\n"


def test_help_comes_at_once():
    #  processor time, beside that of importing click: 2.2 times as much; with NumPy it would be 5.9 times
    commands = {
        "help": "import sys; from kvtrace.cli import main; sys.argv[1:] = ['--help']; main()",
        "click": "import click",
    }
    used: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(5):
        for name, code in commands.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used[name].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(used["help"]) < 3.5 * min(used["click"])
