"""No link leads a run to a file that its user did not name: outputs, files beside them, and what is read there."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

import kvtrace
from kvtrace._base.errors import InputError, RowError, UsageError
from kvtrace._base.files import FolderHandle
from kvtrace._base.output_files import Role, outputs_together, write_atomically
from kvtrace._base.row_counts import RejectsFile
from kvtrace.cli import run
from kvtrace.privacy.numbering.store import Store

pytestmark = pytest.mark.skipif(os.name != "posix", reason="no links")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder with a file that no run may change or read."""
    monkeypatch.chdir(tmp_path)
    Path("victim").write_text('{"note": "mine"}')
    yield tmp_path
    assert Path("victim").read_text() == '{"note": "mine"}' and not os.path.islink("victim")


def test_a_sidecar_replaces_a_planted_link_or_pipe():
    os.symlink("victim", "day.jsonl.meta.json")
    kvtrace.write(kvtrace.toy("0 1"), "day.jsonl")
    assert json.loads(Path("day.jsonl.meta.json").read_text())["requests"] == 1
    os.mkfifo("week.jsonl.meta.json")
    kvtrace.write(kvtrace.toy("0 1"), "week.jsonl")
    for name in ("day", "week"):
        assert Path(f"{name}.jsonl.meta.json").is_file() and not os.path.islink(f"{name}.jsonl.meta.json")


def test_sidecar_and_card_of_a_release_replace_planted_links():
    kvtrace.write(kvtrace.toy("0 1", "0 2", block_size=16), "day.jsonl")
    for end in ("meta.json", "card.md"):
        os.symlink(f"victim of {end}", f"out.jsonl.{end}")
    assert run(["release", "day.jsonl", "-o", "out.jsonl", "-q"]) == 0
    assert not [name for name in os.listdir() if os.path.islink(name)]
    os.symlink("victim", "card.md")
    assert run(["audit", "day.jsonl", "--card", "card.md", "-q"]) in (0, 4)
    assert not os.path.islink("card.md")


def test_rejects_replace_a_planted_link():
    os.symlink("victim", "bad.jsonl")
    with RejectsFile("bad.jsonl") as rejects:
        rejects.add(RowError("is bad.").at("log", 1))
    assert not os.path.islink("bad.jsonl") and json.loads(Path("bad.jsonl").read_text())["line"] == 1


def test_a_result_follows_a_link_of_its_user_and_of_no_other(monkeypatch):
    os.symlink("there", "link")
    with write_atomically("link") as stream:
        stream.write(b"new")
    assert Path("there").read_bytes() == b"new" and os.path.islink("link")
    monkeypatch.setattr("kvtrace._base.own_files.current_user", lambda: os.getuid() + 1)
    owner = os.lstat("link").st_uid
    if owner == 0:  # root's links are followed
        os.chown("link", 12345, -1, follow_symlinks=False)
    os.unlink("there")
    with pytest.raises(UsageError, match=r"^link: this is a link of another user"), write_atomically("link"):
        pass
    assert not os.path.exists("there")


def test_files_appear_in_the_folder_that_was_opened_even_if_its_path_changes():
    os.mkdir("out")
    os.mkdir("elsewhere")
    with outputs_together("out/day", ["out/day.meta"]) as (day, meta):
        os.rename("out", "moved")
        os.symlink("elsewhere", "out")
        day.stream.write(b"rows")
        meta.stream.write(b"meta")
    assert not os.listdir("elsewhere") and sorted(os.listdir("moved")) == ["day", "day.meta"]


@pytest.mark.parametrize("role", [Role.ASIDE, Role.BESIDE])
def test_a_temporary_file_is_never_one_that_exists(monkeypatch, role):
    monkeypatch.setattr("kvtrace._base.file_locks.secrets.token_hex", lambda _: "0123456789ab")
    os.symlink("victim", ".day.0123456789ab.part")
    with pytest.raises(Exception, match="cannot be written"), outputs_together("day", role=role):
        pass


def test_a_sidecar_that_is_a_link_is_not_read(capsys):
    kvtrace.write(kvtrace.toy("0 1", block_size=16), "day.jsonl")
    os.unlink("day.jsonl.meta.json")
    os.symlink("victim", "day.jsonl.meta.json")
    message = r"day\.jsonl\.meta\.json: this is a link, which is not followed\. Replace it by a copy of its file\.$"
    with pytest.raises(InputError, match=message):
        kvtrace.read("day.jsonl")
    assert run(["audit", "day.jsonl"]) == 3 and "mine" not in "".join(capsys.readouterr())


def test_a_sidecar_that_is_a_pipe_does_not_stop_a_reader():
    kvtrace.write(kvtrace.toy("0 1", block_size=16), "day.jsonl")
    os.unlink("day.jsonl.meta.json")
    os.mkfifo("day.jsonl.meta.json")
    with pytest.raises(InputError, match="cannot be read"):
        kvtrace.read("day.jsonl")


def test_no_file_of_a_work_folder_is_followed():
    store = Store(os.path.abspath("work"))
    store.write("encoded/0", time=np.array([1]))
    assert os.stat("work").st_mode & 0o777 == os.stat("work/encoded").st_mode & 0o777 == 0o700
    os.rename("work/encoded/0", "other")
    os.symlink(os.path.abspath("other"), "work/encoded/0")
    with pytest.raises(OSError, match="Too many levels") as error, store.open("encoded/0"):
        pass
    assert error.value.errno == errno.ELOOP and not store.has("encoded/0")
    os.rename("work", "moved")
    os.symlink("moved", "work")
    assert not store.has("encoded/0")
    with pytest.raises(UsageError, match="this is a link"):
        Store.at("work")


def test_a_work_folder_of_another_user_or_writable_by_others_is_refused(monkeypatch):
    os.mkdir("work", 0o755)
    Store.at("work")
    assert os.stat("work").st_mode & 0o777 == 0o700
    os.chmod("work", 0o777)
    with pytest.raises(UsageError, match="other users can write to this folder"):
        Store.at("work")
    os.chmod("work", 0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UsageError, match="belongs to another user"):
        Store.at("work")


def test_a_folder_handle_reads_names_where_it_was_opened():
    os.mkdir("a")
    with FolderHandle("a") as folder:
        os.close(folder.create("x", 0o600))
        os.rename("a", "b")
        folder.replace("x", "y")
        assert folder.names() == ["y"] == os.listdir("b")
        folder.unlink("y")
    assert not os.listdir("b")
