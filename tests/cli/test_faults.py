"""Bad input and bad luck: each fault in vectors/faults.json gives its one line and its exit status, and leaves nothing.

The rest is what no small file can show: signals, full disks, closed pipes, killed workers, lines of ten megabytes.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kvtrace
from kvtrace.cli import run

HERE = Path(__file__).resolve().parents[1]
FAULTS = json.loads((HERE / "vectors/faults.json").read_text())
TINY = HERE / "data/tokenizers/tiny"
ROW = '{"timestamp": %d, "input": "the keeper counts boats", "output": 2}\n'
BAD = '{"timestamp": 5, "input": 7, "output": 2}\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to stand in, with the files of the vectors, a tokenizer, and an empty folder (git knows none)."""
    shutil.copytree(HERE / "vectors/faults", tmp_path, dirs_exist_ok=True)
    shutil.copytree(TINY, tmp_path / "tiny")
    (tmp_path / "nothing").mkdir()
    (tmp_path / "short.key").chmod(0o600)
    (tmp_path / "open.key").chmod(0o644)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(kvtrace.__file__).resolve().parent.parent))  # for subprocesses here
    return tmp_path


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def done(*arguments, **options):
    return subprocess.run([sys.executable, "-m", "kvtrace", *arguments], capture_output=True, text=True, **options)


def one_line(text):
    (line,) = text.splitlines()
    assert line.startswith("kvtrace: ") and "Traceback" not in line
    return line.removeprefix("kvtrace: ")


# -- vectors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault["fault"])
def test_each_fault_has_its_message_and_its_status_and_leaves_nothing(fault, folder, capsys):
    before = files(folder)
    status = run(shlex.split(fault["command"]))
    shown = capsys.readouterr()
    assert (shown.out + shown.err).splitlines() == fault["says"] and status == fault["status"]
    assert files(folder) == before


def test_every_file_of_the_vectors_is_named_by_one():
    commands = " ".join(fault["command"] for fault in FAULTS).split()
    folder = HERE / "vectors/faults"
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    unnamed = {name for name in names if not name.endswith(".meta.json")} - set(commands)
    assert {os.path.dirname(name) for name in unnamed} <= set(commands)  # of a folder that is read as a whole


def test_a_failure_is_one_line_and_reads_where_what_and_what_to_try():
    for fault in FAULTS:
        if fault["command"].startswith(("anonymize", "convert")):
            (line,) = fault["says"]
            assert line.startswith("kvtrace: ") and line.endswith((".", "?"))


# -- bad rows that are skipped ---------------------------------------------------------------------------------------


def skipping(folder, *options):
    rows = [ROW % 1, BAD, '{"timestamp": 2, "input": "", "output": 1}\n', ROW % 3, "{\n", ROW % 4, BAD]
    (folder / "mixed.jsonl").write_text("".join(rows))
    command = "anonymize mixed.jsonl -o out.jsonl -q --tokenizer tiny --on-error skip --rejects bad.jsonl"
    status = run([*command.split(), *options])
    rejects = [json.loads(line) for line in (folder / "bad.jsonl").read_text().splitlines()]
    return status, [reject["line"] for reject in rejects]


@pytest.mark.parametrize("allowed", ["3", "4", None])
def test_what_goes_in_comes_out_or_is_filtered_or_rejected(folder, allowed):
    status, lines = skipping(folder, *(["--max-errors", allowed] if allowed else []))
    assert status == 0 and lines == [2, 5, 7]
    counts = json.loads((folder / "out.jsonl.meta.json").read_text())["counts"]
    assert (counts["rows"], counts["requests"], counts["filtered"], counts["cut"]) == (10, 10, 10, 0)  # rounded up


@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_one_bad_row_too_many_stops_and_the_rejects_are_whole(folder, capsys, allowed):
    status, lines = skipping(folder, "--max-errors", str(allowed))
    assert status == 3 and lines == [2, 5, 7][: allowed + 1]
    assert one_line(capsys.readouterr().err).startswith(f"mixed.jsonl:{lines[-1]}: ")
    assert not (folder / "out.jsonl").exists() and not list(folder.glob(".*"))


def test_nothing_that_is_read_or_written_is_written_over(folder, capsys):
    (folder / "log.jsonl").write_text(ROW % 1)
    (folder / "link.jsonl").symlink_to("log.jsonl")
    for options in ("-o log.jsonl", "-o link.jsonl", "-o out.jsonl --rejects out.jsonl", "-o - --rejects -"):
        assert run(["anonymize", "log.jsonl", "-q", "--on-error", "skip", *options.split()]) == 2
        line = one_line(capsys.readouterr().err)
        assert "is the same file as" in line or "both write to stdout" in line
    assert (folder / "log.jsonl").read_text() == ROW % 1


def test_a_rejects_file_that_is_a_device_stays_one(folder):
    (folder / "log.jsonl").write_text(ROW % 1 + BAD)
    command = "anonymize log.jsonl -o out.jsonl -q --tokenizer tiny --on-error skip --rejects /dev/null"
    assert run(command.split()) == 0 and Path("/dev/null").is_char_device()


# -- odd rows and names ----------------------------------------------------------------------------------------------


def test_a_line_of_ten_megabytes_is_told_by_its_place(folder, capsys):
    (folder / "log.jsonl").write_text(ROW % 1 + '{"timestamp": 1, "input": "' + "x" * 10_000_000 + "\n")
    assert run(["anonymize", "log.jsonl", "-o", "out.jsonl", "-q", "--tokenizer", "tiny"]) == 3
    assert one_line(capsys.readouterr().err).startswith("log.jsonl:2: not valid JSON at column 10000028.")
    assert run(["check", "log.jsonl"]) == 3 and len(capsys.readouterr().out) < 300


@pytest.mark.parametrize("depth", [100, 250, 500, 900, 1000, 1020, 1100, 100_000])
def test_no_depth_of_nesting_is_an_internal_error(folder, capsys, depth):
    deep = '{"a":' * depth + "1" + "}" * depth
    shapes = [
        '"input": [{"role": "user", "content": "a", "z": %s}], "output": 1',
        '"input": [{"role": "user", "content": [{"type": "image", "z": %s}]}], "output": 1',
        '"input": [{"role": "user", "content": "a"}], "tools": [%s], "output": 1',
        '"input": [{"role": "assistant", "tool_calls": [{"function": {"arguments": %s}}]}], "output": 1',
        '"input": "a", "output": {"tool_calls": [{"function": {"arguments": %s}}]}',
    ]
    for shape in shapes:
        (folder / "log.jsonl").write_text('{"timestamp": 0, ' + shape % deep + "}\n")
        assert run(["anonymize", "log.jsonl", "-o", "out.jsonl", "-q", "--tokenizer", "tiny"]) in (0, 3)
        assert "internal" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["x" * 300, "~nobody-of-that-name/x", ""])
def test_names_that_no_file_can_have_are_told(folder, capsys, name):
    for command in (
        ["anonymize", name, "-o", "out.jsonl"],
        ["anonymize", "good.jsonl", "-q", "--tokenizer", "tiny", "-o", name],
        ["anonymize", "good.jsonl", "-q", "-o", "out.jsonl", "--tokenizer", name],
        ["anonymize", "good.jsonl", "-q", "-o", "out.jsonl", "--tokenizer", "tiny", "--chat-template", name],
        ["check", name],
    ):
        assert run(command) in (1, 2, 3)
        line = one_line(capsys.readouterr().err)
        assert "internal" not in line and "Errno" not in line


def test_a_message_stays_one_line_whatever_a_file_is_called(folder, capsys):
    assert run(["check", "two\nlines.jsonl"]) == 3
    assert one_line(capsys.readouterr().err) == "two lines.jsonl: no such file."


def test_words_of_a_template_that_look_like_markup_are_shown_as_they_are(folder, capsys):
    shutil.copy("good.jsonl", "both.jsonl")
    with open("both.jsonl", "a") as log:
        log.write(Path("messages.jsonl").read_text())
    command = (
        "anonymize both.jsonl -o out.jsonl --tokenizer tiny --chat-template raises_own_words.jinja --on-error skip"
    )
    assert run(command.split()) == 0 and "[/INST]" in capsys.readouterr().err


def test_a_usage_error_is_one_line_with_the_way_to_help(capsys):
    for arguments in (["anonymize"], ["anonymize", "--nope"], ["nope"], ["check"], ["check", "a", "b"]):
        assert run(arguments) == 2
        assert one_line(capsys.readouterr().err).endswith(" --help.")


# -- disks, pipes, memory --------------------------------------------------------------------------------------------

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")


@needs_full
def test_a_full_disk_is_one_line(folder, capsys):
    for command in ("-o /dev/full", "-o out.jsonl --on-error skip --rejects /dev/full"):
        (folder / "log.jsonl").write_text(ROW % 1 + BAD * ("rejects" in command))
        assert run(f"anonymize log.jsonl -q --tokenizer tiny {command}".split()) == 5
        assert one_line(capsys.readouterr().err) == "/dev/full: cannot be written (No space left on device)."


@needs_full
@pytest.mark.parametrize("command", ["--help", "check traces/good.jsonl", "anonymize good.jsonl -q -o -"])
def test_a_stdout_that_takes_nothing_is_one_line(folder, command):
    with open("/dev/full", "w") as full:
        options = ["--tokenizer", "tiny"] if "anonymize" in command else []
        ended = subprocess.run(
            [sys.executable, "-m", "kvtrace", *command.split(), *options],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert ended.returncode == 5 and "No space left on device" in one_line(ended.stderr)


def limit_files():
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


@pytest.mark.skipif(os.name != "posix", reason="no limits")
@pytest.mark.parametrize("more", ["", "--on-error skip --rejects bad.jsonl", "--key-file new.key", "--format bailian"])
def test_a_disk_that_fills_up_leaves_no_file_and_no_rest_of_one(folder, more):
    before = files(folder)
    command = f"anonymize good.jsonl -o out.jsonl -q --tokenizer tiny {more}".split()
    ended = done(*command, preexec_fn=limit_files)
    assert ended.returncode == 5 and "cannot be written (File too large)" in one_line(ended.stderr)
    assert files(folder) <= before | {"bad.jsonl"}


@pytest.mark.parametrize("command", ["anonymize - -o out.jsonl -q", "check -"])
def test_a_closed_stdin_is_one_line(folder, command):
    ended = subprocess.run(
        ["sh", "-c", f"exec {shlex.quote(sys.executable)} -m kvtrace {command} <&-"], capture_output=True, text=True
    )
    assert ended.returncode == 3 and one_line(ended.stderr) == "stdin is closed."


def test_a_closed_stdout_is_one_line(folder):
    command = "anonymize good.jsonl -o - -q --tokenizer tiny"
    ended = subprocess.run(
        ["sh", "-c", f"exec {shlex.quote(sys.executable)} -m kvtrace {command} >&-"], capture_output=True, text=True
    )
    assert ended.returncode == 1 and one_line(ended.stderr) == "stdout is closed."


def test_a_reader_that_has_had_enough_ends_the_run_without_a_word(folder):
    (folder / "log.jsonl").write_text("".join(ROW % t for t in range(3000)))
    command = f"{shlex.quote(sys.executable)} -m kvtrace anonymize log.jsonl -o - -q --tokenizer tiny --block-size 16"
    ended = subprocess.run(["sh", "-c", f"{command} | true"], capture_output=True, text=True)
    assert ended.stderr == ""


def test_a_system_error_that_nobody_expected_shows_its_place_only(folder, capsys, monkeypatch):
    def refuse(*_args, **_options):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("kvtrace.ingest.pipeline.ordered_map", refuse)
    assert run(["anonymize", "good.jsonl", "-o", "out.jsonl", "-q", "--tokenizer", "tiny"]) == 1
    assert "Resource temporarily unavailable (BlockingIOError at test_faults.py" in one_line(capsys.readouterr().err)


# -- signals ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def long_run(folder):
    """A run with workers that is under way, and its process; its output would be out/out.jsonl."""
    (folder / "out").mkdir()
    row = {"timestamp": 0, "input": "keeper boats " * 3000, "output": 2}
    (folder / "log.jsonl").write_text((json.dumps(row) + "\n") * 700)
    code = (
        "import sys, kvtrace.ingest.encoding as encode, time\n"
        "call = encode.Encoder.__call__\n"
        "def slow(self, piece):\n    print('at work', flush=True)\n    time.sleep(0.3)\n    return call(self, piece)\n"
        "encode.Encoder.__call__ = slow\n"
        "from kvtrace.cli import main\nmain()"
    )
    command = "anonymize log.jsonl -o out/out.jsonl -q --tokenizer tiny --on-error skip --rejects out/bad --workers 2"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *command.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(
    ("number", "status", "line"),
    [
        (signal.SIGINT, 130, "stopped by the keyboard; no output file was written."),
        (signal.SIGTERM, 143, "stopped by SIGTERM; no output file was written."),
        (signal.SIGHUP, 129, "stopped by SIGHUP; no output file was written."),
    ],
)
def test_a_signal_ends_the_run_and_leaves_the_rejects_only(folder, long_run, number, status, line):
    long_run.send_signal(number)
    error = long_run.communicate(timeout=30)[1]
    # after ^C click leaves the line that the terminal wrote it on
    assert long_run.returncode == status and one_line(error.removeprefix("\n")) == line
    assert os.listdir("out") in ([], ["bad"])


def children(pid):
    return [int(name) for name in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc")
def test_a_killed_worker_ends_the_run_with_one_line(folder, long_run):
    os.kill(children(long_run.pid)[0], signal.SIGKILL)
    error = long_run.communicate(timeout=30)[1]
    assert long_run.returncode == 5 and "a worker process was killed" in one_line(error)
    assert os.listdir("out") in ([], ["bad"])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers die with their parent on Linux")
def test_workers_do_not_outlive_a_killed_run(folder, long_run):
    workers = children(long_run.pid)
    long_run.kill()
    long_run.wait()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{worker}").exists() and "Z" not in state(worker) for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


# -- the library says the same ---------------------------------------------------------------------------------------


def test_a_size_that_a_sidecar_got_wrong_can_be_helped(folder):
    with pytest.raises(kvtrace._base.errors.InputError) as error:
        kvtrace.read("traces/sidecar_of_another_size.jsonl")
    assert "delete traces/sidecar_of_another_size.jsonl.meta.json" in str(error.value)
