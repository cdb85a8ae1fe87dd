"""What a killed or failed command leaves: the next run deletes it, and a start that fails leaves nothing."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import kvtrace
from kvtrace.cli import datagen, run
from tests.cli.test_planted import LINES

pytestmark = pytest.mark.skipif(os.name != "posix", reason="no locks on files")

# commands in which a kill leaves a temporary file, before the first of their outputs gets its name
KILLED = [
    "convert day.jsonl -o out.jsonl",
    "convert day.jsonl -o out.dataset",
    "convert day.jsonl -o out.sessions",
    "synthesize day.jsonl -o out.jsonl --save-model m.json --block-size 16",
    "synthesize day.jsonl --save-model m.json --block-size 16",
    "release day.jsonl -o out.jsonl --profile exact",
    "release day.dataset -o out.dataset --profile exact --workers 1",
    "anonymize log.jsonl -o out.jsonl --block-size 16",
    "anonymize log.jsonl -o out.dataset --block-size 16 --runner local --workers 1",
    "audit day.jsonl --profile exact --card card.md",
    "simulate day.jsonl --capacity 3 --per-request p.csv",
    "sweep day.jsonl -o t.csv --capacity 3",
    "tune day.jsonl --capacity 3 --policy reuse-density --save-table t.json",
    "datagen synthesize --input-file day.jsonl --output-file out.jsonl --num-requests 3 --block-size 16",
]  # fmt: skip
KILL = """
import os, signal
from kvtrace._base import output_files
def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)
output_files.Output.appear = kill
from kvtrace.cli import datagen, run
import sys
run(sys.argv[2:], datagen.commands, "datagen") if sys.argv[1] == "datagen" else run(sys.argv[1:])
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trace = kvtrace.toy("0 1", "0 2", "0 1 3", "4", block_size=16, gap_ms=60_000)
    for name in ("day.jsonl", "day.dataset"):
        kvtrace.write(trace, name)
    rows = "".join(f'{{"timestamp": {n}, "input": [1, 2, {n % 2}], "output": 1}}\n' for n in range(9))
    Path("log.jsonl").write_text(rows)
    return tmp_path


def called(line):
    words = line.split()
    return run(words[1:], datagen.commands, "datagen") if words[0] == "datagen" else run(words)


def hidden():
    return sorted(name for name in os.listdir() if name.startswith("."))


@pytest.mark.parametrize("line", KILLED)
def test_the_next_run_deletes_what_a_killed_one_left(place, monkeypatch, line):
    """Killed when its first output is complete and gets its name."""
    paths = {"PYTHONPATH": str(Path(kvtrace.__file__).parent.parent), "TMPDIR": str(place)}
    killed = subprocess.run([sys.executable, "-c", KILL, *line.split()], capture_output=True, env=os.environ | paths)
    assert killed.returncode == -9 and hidden(), killed.stderr
    monkeypatch.setattr("tempfile.tempdir", str(place))
    resumes = [] if not Path("t.csv.cells.jsonl").exists() else ["--resume"]
    assert called(" ".join([line, *resumes])) == 0
    assert not hidden()


def test_a_killed_run_into_a_pipe_leaves_nothing_in_the_folder_of_temporary_files_for_ever(place, monkeypatch):
    paths = {"PYTHONPATH": str(Path(kvtrace.__file__).parent.parent), "TMPDIR": str(place / "temporary")}
    Path("temporary").mkdir()
    line = "release day.jsonl -o - --profile exact -q"
    subprocess.run([sys.executable, "-c", KILL, *line.split()], capture_output=True, env=os.environ | paths)
    assert os.listdir("temporary")
    monkeypatch.setattr("tempfile.tempdir", str(place / "temporary"))
    assert called(line) == 0 and not os.listdir("temporary")


# A start that fails: a bad option, an input that is missing, a library or a file that is not there.
FAILS = [(line, names) for lines in LINES.values() for line, names in lines if not line.startswith("record")]


@pytest.mark.parametrize(("line", "names"), FAILS, ids=[line for line, _ in FAILS])
def test_a_start_that_fails_leaves_nothing(tmp_path, monkeypatch, capsys, line, names):
    """The inputs are missing, or are not what the command reads."""
    monkeypatch.chdir(tmp_path)
    line = line.replace("--png plots", "--png new/plots").replace("--work-dir work", "--work-dir new/deep/work")
    line = line.replace("--on-error skip --rejects bad.jsonl ", "")  # rejected rows are work that is saved
    assert called(line) in (1, 2, 3) and not os.listdir()
    for name in ("day.jsonl", "log.jsonl", "recording"):
        Path(name).write_text("this is not JSON\n")
    before = sorted(os.listdir())
    assert called(line) in (1, 2, 3) and sorted(os.listdir()) == before, capsys.readouterr().err


TAKEN = "{port}"
STARTS = [
    (f"--otlp {TAKEN}", 2), (f"--otlp 0 --metrics {TAKEN}", 2), (f"--proxy {TAKEN} --upstream http://127.0.0.1:1", 2),
    ("--proxy 0 --upstream nonsense", 2), ("--proxy 0 --upstream http://h --user-header Cookie", 2), ("--follow .", 2),
    ("--kv-events nonsense", 2), ("--otlp 0 --tokenizer ./nothing", 2), ("--otlp 0 --profile nothing", 2),
    ("--otlp 0 --suffix .csv", 2), ("--otlp 0 --queue nothing", 2), ("--otlp 0 --window 0s", 2),
]  # fmt: skip


@pytest.mark.parametrize(("options", "status"), STARTS)
@pytest.mark.usefixtures("socket_enabled")
def test_a_recorder_that_cannot_start_leaves_what_was_there(tmp_path, monkeypatch, capsys, options, status):
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = options.replace(TAKEN, str(taken.getsockname()[1])).split()
        assert run(["record", "-o", "new/deep", "--key-file", "key", "--for", "10ms", *options]) == status
        assert not os.listdir()
        os.makedirs("old/.recording", 0o700)
        for name, data in (("counts", bytes(40)), ("day.window", b"half a header")):
            Path("old/.recording", name).write_bytes(data)
            Path("old/.recording", name).chmod(0o600)
        before = files("old")
        assert run(["record", "-o", "old", "--for", "10ms", *options]) == status
        assert files("old") == before, capsys.readouterr().err


def files(folder):
    paths = sorted(Path(folder).rglob("*"))
    return [(str(path), path.is_file() and path.read_bytes(), path.stat().st_mode) for path in paths]


def test_a_recorder_that_lacks_a_library_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kvtrace.capture.live._is_installed", lambda name: False)
    assert run(["record", "-o", "new", "--otlp", "0"]) == 2 and not os.listdir()


def test_a_live_part_that_fails_after_the_recorder_was_made_leaves_nothing(socket_enabled, tmp_path, monkeypatch):
    """As if another program had taken the port in between."""
    from kvtrace.capture.live import Servers

    def taken(self):
        raise kvtrace.UsageError("--otlp: cannot listen at 127.0.0.1:1 (Address already in use).")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Servers, "__enter__", taken)
    assert run(["record", "-o", "new/deep", "--otlp", "0"]) == 2 and not os.listdir()
