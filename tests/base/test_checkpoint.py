"""What all checkpoints share: who may open one, what is read back from it, and what is left of it."""

import os
import stat

import pytest

from kvtrace._base import file_locks
from kvtrace._base.checkpoint import CONTINUES, STARTS, CheckpointFile, CheckpointKind
from kvtrace._base.errors import KvtraceError, UsageError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="no locks on files")


class Lines(CheckpointFile):
    kind = CheckpointKind(b'{"lines": ', exists="{path} exists", foreign="{path} is foreign", busy="{path} is busy")


class Interrupt(BaseException):
    """Stands for a signal."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.lines"


def line(file, _remaining):
    """The next entry: a line with its end."""
    return text if (text := file.readline()).endswith(b"\n") else None


def stopped(path, *entries, error=None, **options):
    """Append entries to a checkpoint, fail, and return the entries of the earlier run and the notes of the error."""
    error = error or Interrupt()
    with pytest.raises(type(error)), Lines(path, **options) as checkpoint:
        checkpoint.start({"lines": 1})
        earlier = list(checkpoint.entries(line))
        for entry in entries:
            checkpoint.append_entry(entry)
        raise error
    return earlier, getattr(error, "__notes__", [])


def test_entries_come_back_and_a_torn_end_does_not(path):
    assert stopped(path, b"a\n", b"b\n") == ([], [CONTINUES])
    with path.open("ab") as file:
        file.write(b"half of c")
    assert stopped(path, b"d\n", resume=True) == ([b"a\n", b"b\n"], [CONTINUES])
    assert path.read_bytes() == b'{"lines": 1}\na\nb\nd\n'


def test_without_an_entry_nothing_is_left_and_only_a_signal_has_a_note(path):
    assert stopped(path) == ([], [STARTS])
    assert stopped(path, error=ValueError()) == ([], [])
    assert not path.exists()


def test_discarded_entries_are_gone_with_the_file(path):
    with pytest.raises(ValueError), Lines(path) as checkpoint:
        checkpoint.start({"lines": 1})
        checkpoint.append_entry(b"a\n")
        checkpoint.discard()
        raise ValueError
    assert not path.exists()


def test_a_file_that_was_not_started_is_left_as_it_was(path):
    stopped(path, b"a\n")
    before = path.read_bytes()
    with pytest.raises(UsageError, match=r"out\.lines exists"), Lines(path):
        pass
    with Lines(path, resume=True) as checkpoint:
        assert checkpoint.earlier == {"lines": 1}
    assert path.read_bytes() == before


def test_what_is_not_a_checkpoint_is_refused_and_kept(path):
    for data in (b"mine\n", b"mine"):
        path.write_bytes(data)
        path.chmod(0o600)
        with pytest.raises(UsageError, match=r"out\.lines is foreign"), Lines(path, resume=True):
            pass
        assert path.read_bytes() == data
    path.write_bytes(b'{"lines": 1, \n')
    with pytest.raises(UsageError, match="the checkpoint is damaged"), Lines(path, resume=True):
        pass


def test_a_pipe_and_a_link_are_refused(path):
    os.mkfifo(path)
    with pytest.raises(UsageError, match=r"out\.lines: this is a pipe"), Lines(path):
        pass
    path.unlink()
    path.symlink_to("elsewhere")
    with pytest.raises(UsageError, match="this is a link, which is not followed"), Lines(path):
        pass
    assert not path.with_name("elsewhere").exists()


def test_a_checkpoint_of_another_user_or_open_to_others_is_refused(path, monkeypatch):
    stopped(path, b"a\n")
    for mode in (0o640, 0o602):
        path.chmod(mode)
        with pytest.raises(UsageError, match=r"other users can read or write this file"), Lines(path, resume=True):
            pass
    path.chmod(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UsageError, match=r"out\.lines: this file belongs to another user"), Lines(path, resume=True):
        pass


def test_only_the_owner_can_read_a_new_checkpoint_and_one_run_at_a_time_has_it(path, monkeypatch):
    monkeypatch.setattr(file_locks, "LOCK_TIMEOUT_S", 0.05)
    before = os.umask(0)
    try:
        with Lines(path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            with pytest.raises(UsageError, match=r"out\.lines is busy"), Lines(path):
                pass
    finally:
        os.umask(before)


def test_a_file_system_without_locks_is_an_error_only_where_the_command_says_so(path, monkeypatch):
    import fcntl

    class Careful(Lines):
        kind = CheckpointKind(b'{"lines": ', "", "", "", unlockable="{path}: {fault}")

    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert stopped(path, b"a\n") == ([], [CONTINUES])
    with pytest.raises(KvtraceError, match=r"out\.lines: Operation not supported$"), Careful(path):
        pass
