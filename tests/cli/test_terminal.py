"""Tables on a terminal of 80 columns, and in a pipe: nothing is cut."""

import contextlib
import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios

import pytest

from kvtrace.cli import run
from tests.docs import ROOT

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
MODEL = ROOT / "tests/data/models/llama-3.1-8b.json"
COMMANDS = [
    "analyze trace.jsonl --quantiles 0.9,0.99",
    "analyze trace.jsonl --fold 1,2,4 --kv-bytes-per-token 131072",
    "curve trace.jsonl --points 5 --kv-bytes-per-token 131072",
    "simulate trace.jsonl --policy lru,slru --engine reference,sglang --capacity 50% -q",
    f"simulate trace.jsonl --capacity 50% --instances 4 --router kv-aware,least-loaded -v -q --model-config {MODEL}",
    f"simulate trace.jsonl --gpu h100 --model-config {MODEL} -q",
    "simulate trace.jsonl --tiers hbm=1,000,dram=2,000,ssd=5,000 -q",
    "sweep trace.jsonl --policy lru,lfu-da --engine reference,tensorrt-llm --capacity 50% --block-sizes 1x,2x -q",
    "compare trace.jsonl trace.jsonl",
    "audit trace.jsonl",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("terminal")
    with contextlib.chdir(folder):
        assert (
            run(["anonymize", str(ROOT / "examples/raw_log.jsonl"), "-o", "trace.jsonl", "--block-size", "16", "-q"])
            == 0
        )
    return folder


def on_terminal(folder, command, columns):
    """The lines that a terminal of some columns shows."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "kvtrace", *shlex.split(command)], cwd=folder, env=environment,
        stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # Linux ends a terminal with EIO
        while piece := os.read(ours, 1 << 16):
            shown += piece
    os.close(ours)
    assert process.wait() in (0, 4), shown
    return [line.rstrip() for line in re.split("[\r\n]+", ESCAPES.sub("", shown.decode()))]  # also overwritten ones


@pytest.mark.parametrize("command", COMMANDS)
def test_no_table_is_cut_at_80_columns(folder, command):
    lines = on_terminal(folder, command, 80)
    assert max(map(len, lines)) <= 80 and not any("…" in line or "Not shown" in line for line in lines)


@pytest.mark.parametrize("width", [40, 50, 80])
def test_no_figure_is_lost_in_a_narrow_terminal(folder, width, capsys):
    command = f"simulate trace.jsonl --gpu h100 --model-config {MODEL} --instances 2 --router sticky,kv-aware -q"
    with contextlib.chdir(folder):
        assert run(shlex.split(command)) == 0
    lines = capsys.readouterr().out.splitlines()
    figures = {word for line in lines if line.startswith("lru") for word in line.split()}
    text = " ".join(on_terminal(folder, command, width))
    assert len(figures) > 10 and figures <= set(text.split()) and "Not shown" not in text


@pytest.mark.parametrize("command", COMMANDS)
def test_a_pipe_gets_every_column(folder, command, capsys):
    with contextlib.chdir(folder):
        assert run(shlex.split(command)) in (0, 4)
    shown = capsys.readouterr().out
    assert "Not shown" not in shown and "…" not in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_a_pipe_with_columns_gets_what_fits_them(folder, command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with contextlib.chdir(folder):
        assert run(shlex.split(command)) in (0, 4)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80 and "…" not in shown


@pytest.mark.parametrize("columns", ["", "0", "-1", "wide", "9" * 30])
def test_columns_that_are_no_width_are_ignored(folder, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    with contextlib.chdir(folder):
        assert run(["simulate", "trace.jsonl", "--capacity", "50%", "-q"]) == 0
    assert "gap to belady" in capsys.readouterr().out.splitlines()[1]
