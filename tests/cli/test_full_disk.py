"""A disk that becomes full at any point of any command that writes: one line, the old files or none, and it goes on.

KVTRACE_DISK_POINTS sets at how many points of each command the disk becomes full; `make fuzz` asks for 20.
"""

import contextlib
import os
import re
import shlex
import shutil

import pytest

from kvtrace.capture.windows import STATE
from kvtrace.cli import commands
from kvtrace.cli.output import OUTPUTS, option_of
from tests.cli.full_disk import COMMANDS, FullDisk, built
from tests.cli.test_help import COMMANDS as COMMANDS_OF_HELP
from tests.cli.test_help import files  # noqa: F401 (a fixture)
from tests.conftest import drawn

POINTS = int(os.environ.get("KVTRACE_DISK_POINTS", drawn(4)))
RESUMED = {".resume", ".cells.jsonl"}  # ends of what a stopped run leaves to go on with

pytestmark = pytest.mark.skipif(
    not shutil.which("cc") or os.uname().sysname != "Linux", reason="no compiler for LD_PRELOAD"
)


def test_each_output_of_each_command_has_a_row():
    named = {(line.split()[0], word) for line in COMMANDS.values() for word in line.split()}
    for name, command in commands.commands.items():
        for option in command.params:
            assert option.name not in OUTPUTS or (name, option_of(option)) in named, f"{name} {option_of(option)}"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return built(tmp_path_factory.mktemp("library"))


def contents(folder):
    """The bytes of each file; what a recorder keeps for itself is left out."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*") if path.is_file() and path.name not in ("counts", "lock") and path.name != "key"
    }  # fmt: skip


def same(before, after):
    """Whether two runs left the same files; windows are named after the time."""

    def known(contents):
        return {
            re.sub(r"window-\d{8}T\d{6}Z", "window", name): data
            for name, data in contents.items()
            if not name.endswith((".meta.json", ".card.md"))
        }

    return known(before) == known(after)


@pytest.mark.enable_socket
@pytest.mark.parametrize("row", COMMANDS)
def test_a_disk_that_becomes_full_anywhere(row, library, files, tmp_path):  # noqa: F811
    line = [*COMMANDS[row].split()]
    shutil.copytree(files, tmp_path / "here")
    out = tmp_path / "here/out"
    out.mkdir()
    with contextlib.closing(FullDisk(library, out)) as disk:
        fill_anywhere(disk, row, line, out)


def fill_anywhere(disk, row, line, out):
    whole = disk.run(line)
    assert whole.status == 0, whole.stderr
    undisturbed, calls = contents(out), whole.calls
    assert undisturbed and calls
    out.rename(out.with_name("whole"))
    for point, full_from in enumerate(sorted({point * calls // POINTS for point in range(POINTS)})):
        shutil.rmtree(out, ignore_errors=True)
        has_earlier = point % 2 == 1 and line[0] not in ("record", "start")
        shutil.copytree(out.with_name("whole"), out) if has_earlier else out.mkdir()
        earlier = contents(out)
        full = disk.run(line, full_from=full_from, short=point % 4 > 1)
        told = f"{row}, full from call {full_from} of {calls}: status {full.status}\n{full.stderr}"
        lines = [text for text in full.stderr.splitlines() if text.startswith("kvtrace: ")]
        assert not re.search("Traceback|Exception ignored|internal error", full.stderr), told
        assert full.status in (0, 5), told
        assert len(lines) == (full.status == 5) and all("out" in text for text in lines), told
        left = contents(out)
        for name, data in left.items():
            assert not name.endswith((".part", ".old")), f"{told}\n{name}"
            if not name.endswith(tuple(RESUMED)) and STATE not in name:
                assert data == earlier.get(name, undisturbed.get(name, data)), f"{told}\n{name}"
        assert set(earlier) <= set(left), told
        again = disk.run([*line, *(["--resume"] if "--resume" in full.stderr else [])])
        assert again.status == 0, f"{told}\nagain: {again.stderr}"
        assert same(undisturbed, contents(out)), f"{told}\nagain: {sorted(contents(out))}"
        assert not [path for path in out.rglob(".*") if path.name.endswith((".part", ".old"))], told


@pytest.mark.enable_socket
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_stdout_is_one_line_and_a_full_stderr_is_none(library, files, tmp_path):  # noqa: F811
    here = tmp_path / "here"
    shutil.copytree(files, here)
    with contextlib.closing(FullDisk(library, here / "out")) as disk:
        for name, command in COMMANDS_OF_HELP.items():
            live = ["--follow", "log.jsonl", "--from-start", "--for", "500ms", "--block-size", "16"]
            line = [name, *(["-o", "rec"] if name == "record" else []), *live]
            if name not in ("record", "watch"):
                line = shlex.split(command.examples[0])[1:]
            full = disk.run(line, stdout="/dev/full")
            told = f"{line}: status {full.status}\n{full.stderr}"
            lines = [text for text in full.stderr.splitlines() if text.startswith("kvtrace: ")]
            assert full.status in (0, 5) and not re.search("Traceback|Exception ignored", full.stderr), told
            assert lines == ["kvtrace: stdout: cannot be written (No space left on device)."] * (full.status == 5), told
            assert disk.run(line, stderr="/dev/full").status == 0, line
