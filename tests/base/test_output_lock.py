"""One run at a time writes an output, and the next one removes what a killed run left of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kvtrace
from kvtrace._base.errors import UsageError
from kvtrace._base.file_locks import only_writer, remove_stale, temporary_name
from kvtrace._base.output_files import Output, write_atomically
from kvtrace.formats.dataset import DatasetWriter

pytestmark = pytest.mark.skipif(os.name != "posix", reason="no locks on files")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kvtrace._base.file_locks.LOCK_TIMEOUT_S", 0.05)
    monkeypatch.setattr("kvtrace._base.file_locks.LOCK_TIMEOUT_S", 0.05)
    return tmp_path


def test_a_second_run_on_an_output_is_refused_with_one_line():
    os.symlink("day.jsonl", "link.jsonl")
    with only_writer("day.jsonl"):
        for name in ("day.jsonl", "./day.jsonl", "link.jsonl"):
            message = rf"^{name}: another run is writing this output\. Wait for it, or choose another output\.$"
            with pytest.raises(UsageError, match=message), only_writer(name):
                pass
        with only_writer("night.jsonl"):
            assert {".day.jsonl.lock", ".night.jsonl.lock"} <= {*os.listdir()}
    with only_writer("day.jsonl"):
        pass
    assert os.listdir() == ["link.jsonl"]


def test_stdout_and_devices_have_no_lock():
    for name in ("-", "/dev/null"):
        with only_writer(name), only_writer(name):
            assert not os.listdir()


def test_the_lock_of_a_killed_run_locks_nothing():
    process = held("with only_writer('day.jsonl')")
    with pytest.raises(UsageError, match="another run"), only_writer("day.jsonl"):
        pass
    process.kill()
    process.communicate()
    assert os.listdir() == [".day.jsonl.lock"]
    with only_writer("day.jsonl"):
        pass
    assert not os.listdir()


def test_a_planted_lock_is_not_followed_and_another_user_s_is_refused(monkeypatch):
    Path("mine").write_text("mine")
    os.symlink("mine", ".day.jsonl.lock")
    with pytest.raises(UsageError, match="this is a link, which is not followed"), only_writer("day.jsonl"):
        pass
    os.unlink(".day.jsonl.lock")
    Path(".day.jsonl.lock").touch(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UsageError, match="belongs to another user"), only_writer("day.jsonl"):
        pass
    assert Path("mine").read_text() == "mine"


def test_the_next_run_removes_what_killed_runs_left_and_nothing_else():
    stale = [
        ".day.jsonl.0123456789ab.part",
        ".day.jsonl.meta.json.0123456789ab.part",
        ".day.jsonl.cccccccccccc.part/in",
    ]
    others = [".other.0123456789ab.part", ".day.jsonl.part", ".day.jsonl.0123456789abc.part", "day.jsonl"]
    os.mkdir(".day.jsonl.cccccccccccc.part")
    for name in (*stale, *others):
        Path(name).touch()
    os.symlink("day.jsonl", ".day.jsonl.dddddddddddd.part")
    with only_writer("day.jsonl", ["day.jsonl.meta.json", "-", "/dev/null"]):
        left = {*os.listdir()} - {".day.jsonl.lock"}
    assert left == {*others, ".day.jsonl.dddddddddddd.part"}


def test_what_a_live_run_writes_stays():
    with write_atomically("day.jsonl") as stream:
        stream.write(b"half")
        stream.flush()
        (part,) = os.listdir()
        with only_writer("day.jsonl"):
            assert part in os.listdir()
    with DatasetWriter("day.dataset", block_size=1, tail="kept") as writer:
        with only_writer("day.dataset"):
            assert os.path.isdir(writer._output.path)
        writer.add(kvtrace.toy("0 1"))
    assert {*os.listdir()} == {"day.jsonl", "day.dataset"}


def test_a_data_set_that_was_set_aside_stays_until_its_successor_is_there():
    os.mkdir(".day.dataset.0123456789ab.old")
    remove_stale("day.dataset")
    assert os.listdir() == [".day.dataset.0123456789ab.old"]
    os.mkdir("day.dataset")
    remove_stale("day.dataset")
    assert os.listdir() == ["day.dataset"]


def test_what_a_killed_writer_left_is_removed_once_its_process_is_gone():
    process = held("with write_atomically('day.jsonl')")
    (part,) = os.listdir()
    remove_stale("day.jsonl")
    assert os.listdir() == [part]
    process.kill()
    process.communicate()
    remove_stale("day.jsonl")
    assert not os.listdir()


def test_long_names_keep_their_own_leftovers():
    long, longer = "x" * 150, "x" * 150 + "y"
    for name in (long, longer):
        Path(temporary_name(name)).touch()
    remove_stale(long)
    assert len(os.listdir()) == 1
    output = Output(longer)
    remove_stale(longer)
    assert os.listdir() == [output._part]
    output.discard()


def test_an_unfinished_data_set_is_its_owner_s_alone():
    before = os.umask(0o022)
    try:
        with DatasetWriter("day.dataset", block_size=1, tail="kept") as writer:
            writer.add(kvtrace.toy("0 1"))
            assert os.stat(writer._output.path).st_mode & 0o777 == 0o700
    finally:
        os.umask(before)
    assert os.stat("day.dataset").st_mode & 0o777 == 0o755


def held(block):
    """A process that is inside a block, until it is killed."""
    code = (
        "import time\nfrom kvtrace._base.file_locks import only_writer\n"
        f"from kvtrace._base.output_files import write_atomically\n{block}:\n"
        "    print('in', flush=True)\n    time.sleep(60)"
    )
    paths = {"PYTHONPATH": str(Path(kvtrace.__file__).parent.parent)}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ | paths)
    assert process.stdout.readline() == "in\n"
    return process
