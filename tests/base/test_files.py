"""Files: packed ones read as if plain; outputs whole or absent; whatever goes wrong is one line."""

import errno
import gzip
import io
import os
import stat
import sys
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace._base import input_files
from kvtrace._base.errors import InputError, KvtraceError
from kvtrace._base.files import is_regular
from kvtrace._base.input_files import bytes_read, form_of, open_read, size_of
from kvtrace._base.output_files import write_atomically, write_together

TEXT = b"".join(b"%d bottles of beer\n" % n for n in range(20_000))
PACKED = {"a.gz": gzip.compress(TEXT), "a.zst": zstandard.ZstdCompressor(write_checksum=True).compress(TEXT)}


def content(path):
    with open_read(path) as stream:
        return stream.read()


def put(path, data):
    with write_atomically(path) as stream:
        stream.write(data)


def stand_in(monkeypatch, data=b""):
    """stdin that holds the data, and stdout; what stdout was given comes back."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out))
    return out


# -- reading -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "a.gz", "a.zst"])
@settings(deadline=None)
@given(data=st.binary(max_size=3000))
def test_what_is_written_is_read(tmp_path_factory, name, data):
    path, data = tmp_path_factory.mktemp("f") / name, b"." + data  # not the first bytes of a packed file
    put(path, data)
    assert content(path) == data


@pytest.mark.parametrize("name", PACKED)
def test_packed_files_are_told_by_their_first_bytes(tmp_path, name):
    plain_name = tmp_path / "no-suffix"
    plain_name.write_bytes(PACKED[name])
    assert content(plain_name) == TEXT


@pytest.mark.parametrize("data", [TEXT, *PACKED.values(), b"", b"{"])
def test_stdin_is_unpacked_by_its_first_bytes(monkeypatch, data):
    stand_in(monkeypatch, data)
    assert content("-") == (data if data in (b"", b"{") else TEXT)


def test_stdin_stays_open(monkeypatch):
    stand_in(monkeypatch, b"one\ntwo\n")
    with open_read("-") as stream:
        stream.readline()
    assert not sys.stdin.buffer.closed


def test_a_pipe_that_gives_a_byte_at_a_time_is_read(tmp_path):
    reader, writer = os.pipe()
    os.write(writer, PACKED["a.gz"][:1])
    os.write(writer, PACKED["a.gz"][1:9])
    os.close(writer)
    with pytest.raises(InputError, match="ends early"):
        content(f"/dev/fd/{reader}")
    os.close(reader)


@pytest.mark.parametrize("name", PACKED)
def test_members_and_frames_follow_each_other(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(PACKED[name] * 3)
    assert content(path) == TEXT * 3


def test_zstd_frames_to_be_skipped_are_skipped(tmp_path):
    path = tmp_path / "a.zst"
    path.write_bytes(b"\x5a\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"about" + PACKED["a.zst"])
    assert content(path) == TEXT


def test_a_padded_gzip_file_is_read(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(PACKED["a.gz"] + bytes(700))
    assert content(path) == TEXT


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("kept", [0, 1, 3, 2000, -9, -1])
def test_a_packed_file_that_was_cut_short_is_refused(tmp_path, name, kept):
    path = tmp_path / name
    path.write_bytes(PACKED[name][:kept])
    with pytest.raises(InputError, match=f"{name}: the (gzip|zstd) data ends early; the file is truncated"):
        content(path)


@pytest.mark.parametrize("name", PACKED)
def test_a_damaged_packed_file_is_refused(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(PACKED[name][:100] + bytes(200) + PACKED[name][300:])
    with pytest.raises(InputError, match="data is damaged") as error:
        content(path)
    assert error.value.__context__ is None  # the library's error may quote data


def test_a_name_that_promises_what_the_file_is_not_is_refused(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(b"plain")
    with pytest.raises(InputError, match=r"a\.gz: the file is not gzip data, but its name has that suffix\."):
        open_read(path)


def test_what_cannot_be_read_is_one_line(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"gone: no such file\.$"):
        open_read(tmp_path / "gone")
    with pytest.raises(InputError, match=r"this is a folder, not a file\.$"):
        open_read(tmp_path)

    def denied(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", denied)
    with pytest.raises(InputError, match=r"t: cannot be read \(Permission denied\)\.$"):
        open_read("t")


def test_an_error_while_reading_names_the_file(tmp_path, monkeypatch):
    class Failing(io.BytesIO):
        def readinto(self, _):
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Failing(b"12345678")))
    with pytest.raises(InputError, match=r"^stdin: cannot be read \(Input/output error\)\.$"):
        content("-")


def test_only_a_plain_file_says_its_size_and_can_seek(tmp_path):
    for name, size, form in (("a", len(TEXT), None), ("a.gz", None, "gzip"), ("a.zst", None, "zstd")):
        put(tmp_path / name, TEXT)
        with open_read(tmp_path / name) as stream:
            assert size_of(stream) == size and form_of(stream) == form
            assert stream.seekable() == (form is None)
            if form is None:
                stream.seek(9_000)
                assert stream.read(5) == TEXT[9_000:9_005] and stream.seek(0) == 0
            assert stream.read() == TEXT
            assert form is None or bytes_read(stream) == (tmp_path / name).stat().st_size


# -- writing -----------------------------------------------------------------------------------------------------


def test_a_file_appears_when_it_is_whole(tmp_path):
    with write_atomically(tmp_path / "t") as stream:
        stream.write(b"half")
        stream.flush()
        (part,) = tmp_path.iterdir()
        assert part.name.startswith(".t.")
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


@pytest.mark.parametrize("name", ["t", "t.gz", "t.zst"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_ends_early_leaves_nothing_and_the_old_file_stays(tmp_path, name, error):
    (tmp_path / name).write_bytes(b"old")
    with pytest.raises(error), write_atomically(tmp_path / name) as stream:
        stream.write(TEXT)
        raise error
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == b"old"


def test_files_that_belong_together_appear_together_the_first_one_first(tmp_path, monkeypatch):
    order = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b, **places: (order.append(Path(b).name), replace(a, b, **places)))
    with write_together(tmp_path / "t", [tmp_path / "t.meta"]) as (trace, meta):
        trace.write(b"trace")
        meta.write(b"meta")
    assert order == ["t.meta", "t"]
    with pytest.raises(ZeroDivisionError), write_together(tmp_path / "u", [tmp_path / "u.meta"]) as (_, meta):
        meta.write(b"meta")
        1 / 0  # noqa: B018
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t", "t.meta"]


def test_the_same_bytes_give_the_same_packed_file(tmp_path):
    for name in ("a.gz", "b.gz", "a.zst", "b.zst"):
        put(tmp_path / name, TEXT)
    for form in ("gz", "zst"):
        assert (tmp_path / f"a.{form}").read_bytes() == (tmp_path / f"b.{form}").read_bytes()
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == TEXT  # others can read it
    assert (tmp_path / "a.gz").read_bytes()[3:8] == bytes(5)  # no file name, no time


@pytest.mark.parametrize("name", ["t", "t.gz"])
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, name):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        KvtraceError, match=rf"{name}: cannot be written \(No space left on device\)\. No file"
    ) as error:
        put(tmp_path / name, TEXT)
    assert error.value.status == 5
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
def test_a_device_that_is_full_is_one_line():
    with pytest.raises(KvtraceError, match=r"^/dev/full: cannot be written \(No space left on device\)\.$"):
        put("/dev/full", TEXT * 9)


def test_devices_and_pipes_are_written_directly(monkeypatch):
    assert is_regular("/dev/null") is False and is_regular("-") is False
    put("/dev/null", TEXT)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    out = stand_in(monkeypatch)
    put("-", b"to stdout")
    assert out.getvalue() == b"to stdout"


def test_a_reader_of_stdout_that_has_had_enough_is_left_to_the_command_line(monkeypatch):
    class Closed(io.BytesIO):
        def write(self, _):
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(Closed()))
    with pytest.raises(BrokenPipeError):
        put("-", TEXT)


def test_a_missing_folder_is_one_line(tmp_path):
    with pytest.raises(KvtraceError, match=r"t: cannot be written \(No such file or directory\)\."):
        put(tmp_path / "gone/t", b"")


def test_a_link_leads_to_what_is_written(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there/t")
    put(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "there/t").read_bytes() == b"new"


def test_files_get_the_usual_mode(tmp_path):
    mask = os.umask(0o027)
    try:
        put(tmp_path / "t", b"")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "t").stat().st_mode) == 0o640


def test_a_small_chunk_of_a_large_packed_file_unpacks_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(input_files, "CHUNK", 7)
    for name in PACKED:
        (tmp_path / name).write_bytes(PACKED[name] * 2)
        assert content(tmp_path / name) == TEXT * 2
