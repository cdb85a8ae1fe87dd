"""Where raw logs come from: arguments to sources, sources to pieces of whole lines."""

import gzip
import io
import os
import pickle
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace._base.errors import InputError, UsageError
from kvtrace._base.input_files import open_read
from kvtrace.ingest.logs import sources
from kvtrace.ingest.logs.sources import LogPiece

ROWS = b'{"a": 1}\n{"a": 22}\n{"a": 333}\n'
BOM = b"\xef\xbb\xbf"
PACK = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}


@pytest.fixture
def logs(tmp_path, monkeypatch):
    """A folder to stand in, and a function that puts a file there."""
    monkeypatch.chdir(tmp_path)

    def put(name, data=ROWS):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return name

    return put


def names(*arguments):
    return [source.path for source in sources.find(arguments)]


def text(*arguments, size=sources.PIECE_BYTES):
    return b"".join(piece.read() for piece in sources.pieces(sources.find(arguments), size))


# -- which files -----------------------------------------------------------------------------------------------------


def test_a_directory_is_searched_to_its_depths_for_logs_sorted(logs):
    for name in ("d/b.jsonl", "d/a.ndjson", "d/x/y/c.JSON", "d/x/d.jsonl.gz", "d/e.json.zst"):
        logs(name, PACK.get(Path(name).suffix, bytes)(ROWS))
    for name in ("d/notes.txt", "d/t.jsonl.meta.json", "d/.hidden.jsonl", "d/.git/f.jsonl", "d/g.jsonl.bak", "d/json"):
        logs(name)
    assert names("d") == ["d/a.ndjson", "d/b.jsonl", "d/e.json.zst", "d/x/d.jsonl.gz", "d/x/y/c.JSON"]


def test_a_file_may_have_any_name_and_is_read_once_however_it_is_named(logs):
    logs("b.log"), logs("a.jsonl")
    os.symlink("b.log", "link")
    assert names("b.log", "a.jsonl", "./b.log", "link", "*.jsonl") == ["b.log", "a.jsonl"]


def test_a_glob_is_sorted_and_its_directories_are_searched(logs):
    for name in ("2.jsonl", "10.jsonl", "sub/3.jsonl", "sub/no.txt"):
        logs(name)
    assert names("*.jsonl") == ["10.jsonl", "2.jsonl"]
    assert names("*") == ["10.jsonl", "2.jsonl", "sub/3.jsonl"]
    assert names("**/*.jsonl") == ["10.jsonl", "2.jsonl", "sub/3.jsonl"]


def test_a_file_whose_name_looks_like_a_glob_is_that_file(logs):
    logs("a[1].jsonl"), logs("a1.jsonl")
    assert names("a[1].jsonl") == ["a[1].jsonl"]


def test_one_path_needs_no_list(logs):
    logs("a.jsonl")
    assert sources.find("a.jsonl") == sources.find(Path("a.jsonl")) == sources.find(["a.jsonl"])


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("gone.jsonl", "gone.jsonl: no such file or directory."),
        ("link", "link: no such file."),
        ("*.nothing", "*.nothing: no file matches this pattern."),
        ("empty", "empty: the directory has no .jsonl, .ndjson, .json, .csv, .parquet file, nor a .gz or .zst of one."),
    ],
)
def test_arguments_without_log_files_are_input_errors(logs, argument, message):
    os.mkdir("empty")
    os.symlink("gone.jsonl", "link")
    with pytest.raises(InputError) as error:
        sources.find(argument)
    assert str(error.value) == message and error.value.status == 3


def test_no_argument_at_all_is_bad_usage():
    with pytest.raises(UsageError, match="no log is given"):
        sources.find([])


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_an_error_at_once(logs):
    os.chmod(logs("a.jsonl"), 0)
    with pytest.raises(InputError, match=r"a.jsonl: cannot be read \(Permission denied\)."):
        sources.find("a.jsonl")


def test_a_file_that_fails_to_open_is_an_error_at_once(logs, monkeypatch):
    logs("a.jsonl")

    def refuse(*_):
        raise PermissionError(13, "Permission denied", "a.jsonl")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(InputError, match=r"^a.jsonl: cannot be read \(Permission denied\).$"):
        sources.find("a.jsonl")


# -- pieces ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", PACK)
def test_pieces_are_whole_lines_and_add_up_to_the_file(logs, pack):
    logs("a.jsonl" + pack, PACK[pack](ROWS))
    found = list(sources.pieces(sources.find("a.jsonl" + pack), size=10))
    #  {"a": 1}\n    ends at 9     a plain piece ends with the line that its tenth byte is in,
    #  {"a": 22}\n   ends at 19    one that carries bytes with the last line that is whole
    #  {"a": 333}\n  ends at 30
    expected = [(0, 0, 9), (1, 9, 10), (2, 19, 11)] if pack else [(0, 0, 19), (1, 19, 11)]
    assert [(piece.index, piece.start, piece.size) for piece in found] == expected
    assert b"".join(piece.read() for piece in found) == ROWS
    assert all(piece.size == len(piece.read()) for piece in found)


def test_a_piece_of_a_plain_file_is_small_and_can_be_pickled(logs):
    logs("a.jsonl", ROWS * 1000)
    (piece,) = sources.pieces(sources.find("a.jsonl"))
    assert piece.data is None and len(pickle.dumps(piece)) < 300
    assert pickle.loads(pickle.dumps(piece)).read() == ROWS * 1000


@pytest.mark.parametrize("pack", PACK)
def test_a_line_longer_than_a_piece_stays_whole(logs, pack):
    data = b"x" * 300_000 + b"\n" + ROWS + b"y" * 200_000
    logs("a.jsonl" + pack, PACK[pack](data))
    found = [piece.read() for piece in sources.pieces(sources.find("a.jsonl" + pack), size=1000)]
    assert b"".join(found) == data
    assert all(piece.endswith(b"\n") for piece in found[:-1])
    assert found[0].startswith(b"x" * 300_000 + b"\n")


@pytest.mark.parametrize("pack", PACK)
def test_a_byte_order_mark_is_left_out_and_counts_as_three_bytes(logs, pack):
    logs("a.jsonl" + pack, PACK[pack](BOM + ROWS))
    (piece,) = sources.pieces(sources.find("a.jsonl" + pack))
    assert (piece.start, piece.read()) == (3, ROWS)


@pytest.mark.parametrize("pack", PACK)
@pytest.mark.parametrize("data", [b"", BOM, b"\n", b"x", BOM + b"x", b"x\r\ny\r\n", b"x\n\n\ny"])
def test_odd_endings_come_through_as_they_are(logs, pack, data):
    logs("a.jsonl" + pack, PACK[pack](data))
    assert text("a.jsonl" + pack, size=1) == data.removeprefix(BOM)


def test_utf_16_is_refused_with_the_way_out(logs):
    logs("a.jsonl", ROWS.decode().encode("utf-16"))
    with pytest.raises(InputError, match=r"a.jsonl: is UTF-16, .* iconv"):
        text("a.jsonl")


def test_compression_is_seen_by_content_too(logs):
    for pack in (".gz", ".zst"):
        logs("a.jsonl", PACK[pack](ROWS))
        assert text("a.jsonl") == ROWS


def test_members_frames_and_padding_follow_each_other(logs):
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    zst = PACK[".zst"]
    logs("a.gz", PACK[".gz"](ROWS) + PACK[".gz"](b"") + PACK[".gz"](ROWS) + b"\0" * 700)
    logs("a.zst", skippable + zst(ROWS) + zst(b"") + zst(ROWS) + skippable)
    assert text("a.gz") == text("a.zst") == ROWS * 2


def test_frames_with_a_long_window_are_read(logs):
    parameters = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True, strategy=1)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()  # size unknown: the window is stated
    logs("a.zst", packer.compress(ROWS) + packer.flush())
    assert text("a.zst") == ROWS


def test_a_frame_that_asks_for_more_memory_is_refused(logs):
    parameters = zstandard.ZstdCompressionParameters(window_log=30, enable_ldm=True, strategy=1)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    logs("a.zst", packer.compress(ROWS) + packer.flush())
    with pytest.raises(
        InputError, match="a.zst: the zstd data needs too much memory. Compress it again, without --long"
    ):
        text("a.zst")


@pytest.mark.parametrize("pack", [".gz", ".zst"])
def test_a_bomb_is_decompressed_in_small_steps(logs, pack):
    logs("a.jsonl" + pack, PACK[pack](b"\n" * (200 << 20)))
    tracemalloc.start()
    with open_read("a.jsonl" + pack) as stream:
        assert sum(map(len, iter(lambda: stream.read(1 << 20), b""))) == 200 << 20
    assert tracemalloc.get_traced_memory()[1] < 180 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("pack", PACK)
def test_a_line_without_end_is_refused_before_it_is_in_memory(logs, pack, monkeypatch):
    monkeypatch.setattr(sources, "MAX_LINE", 10_000)
    logs("a.jsonl" + pack, PACK[pack](ROWS + b"x" * 9_000 + b"\n" + b"y" * 30_000))
    with pytest.raises(
        InputError, match="a.jsonl.*: the line at byte .* is longer than 10,000 bytes. Is it JSON Lines"
    ):
        text("a.jsonl" + pack, size=1000)
    logs("b.jsonl" + pack, PACK[pack](ROWS + b"x" * 9_000 + b"\n" + ROWS))
    assert text("b.jsonl" + pack, size=1000).endswith(ROWS)


def test_many_small_members_are_read_in_linear_time(logs):
    for pack in (".gz", ".zst"):
        logs("a.jsonl" + pack, PACK[pack](ROWS) * 20_000)
        assert text("a.jsonl" + pack) == ROWS * 20_000


@pytest.mark.parametrize("pack", [".gz", ".zst"])
@pytest.mark.parametrize("lost", [1, 5, 20, "all"])
def test_a_cut_compressed_file_is_refused(logs, pack, lost):
    packed = PACK[pack](b"".join(b'{"a": %d}\n' % (i * i) for i in range(5000)))
    logs("a.jsonl" + pack, b"" if lost == "all" else packed[:-lost])
    with pytest.raises(InputError, match=r"a.jsonl.*: the (gzip|zstd) data ends early; the file is truncated.$"):
        text("a.jsonl" + pack)


@pytest.mark.parametrize("pack", [".gz", ".zst"])
def test_a_damaged_compressed_file_is_refused_without_its_content(logs, pack):
    packed = bytearray(PACK[pack](b"canary" * 5000))
    packed[8:20] = b"canarycanary"
    for data in (bytes(packed), PACK[pack](ROWS) + b"canary"):
        logs("a" + pack, data)
        with pytest.raises(InputError, match=r"^a.*: the (gzip|zstd) data is damaged.$") as error:
            text("a" + pack)
        assert error.value.__context__ is None
    logs("a" + pack)
    with pytest.raises(InputError, match=r"^a.*: the file is not (gzip|zstd) data, but its name has that suffix"):
        sources.find("a" + pack)


def test_a_file_that_becomes_shorter_is_an_error(logs):
    logs("a.jsonl")
    (piece,) = sources.pieces(sources.find("a.jsonl"))
    logs("a.jsonl", b"{}\n")
    with pytest.raises(InputError, match="became shorter"):
        piece.read()
    os.remove("a.jsonl")
    with pytest.raises(InputError, match="no such file"):
        piece.read()


def test_progress_counts_bytes_on_disk_over_all_sources(logs):
    packed = PACK[".gz"](ROWS * 50_000)
    logs("a.jsonl"), logs("b.gz", packed), logs("c.jsonl", b"")
    found = sources.find(["a.jsonl", "b.gz", "c.jsonl", "a.jsonl"])
    done = [piece.done for piece in sources.pieces(found, size=100_000)]
    assert sources.total(found) == len(ROWS) + len(packed)
    assert done == sorted(done) and done[0] == len(ROWS) and done[-1] == sources.total(found)
    assert len(done) > 10


# -- streams ---------------------------------------------------------------------------------------------------------


def stdin(monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.mark.parametrize("pack", PACK)
def test_stdin_is_read_packed_or_not(monkeypatch, pack):
    stdin(monkeypatch, PACK[pack](BOM + ROWS))
    found = sources.find("-")
    (piece,) = sources.pieces(found)
    assert (piece.path, piece.start, piece.read(), sources.total(found)) == ("-", 3, ROWS, 0)


def test_looking_at_stdin_uses_nothing_up(monkeypatch):
    stdin(monkeypatch, ROWS * 100)
    found = sources.find(["-", "-"])
    assert len(sources.sample(found, rows=5)) == 5 and len(sources.sample(found, rows=500)) == 300
    found_pieces = list(sources.pieces(found))
    assert b"".join(piece.read() for piece in found_pieces) == ROWS * 100
    assert found_pieces[0].index == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe_is_read_once_sampled_or_not(logs, tmp_path):
    os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(ROWS), daemon=True)
    writer.start()
    found = sources.find("pipe")
    assert len(sources.sample(found)) == 3
    assert b"".join(piece.read() for piece in sources.pieces(found)) == ROWS
    writer.join(timeout=5)


# -- a look at the first rows ----------------------------------------------------------------------------------------


def test_a_sample_has_the_first_rows_without_blank_lines(logs):
    logs("a.jsonl", b""), logs("b.jsonl", b"\n \r\n1\n\n2\n"), logs("c.gz", PACK[".gz"](b"3\n4\n"))
    found = sources.find(["a.jsonl", "b.jsonl", "c.gz"])
    assert sources.sample(found) == [b"1", b"2", b"3", b"4"]
    assert sources.sample(found, rows=3) == [b"1", b"2", b"3"]
    assert b"".join(piece.read() for piece in sources.pieces(found)) == b"\n \r\n1\n\n2\n3\n4\n"


# -- laws ------------------------------------------------------------------------------------------------------------

line = st.one_of(st.binary(max_size=40), st.sampled_from([b"", b"\r", b"z" * 200]))


@settings(deadline=None)
@given(st.lists(line, max_size=30), st.sampled_from(sorted(PACK)), st.integers(1, 300), st.booleans())
def test_any_cut_gives_the_text_back_at_its_offsets(tmp_path_factory, lines, pack, size, has_end):
    data = b'{"first": "row"}\n' + b"\n".join(lines) + b"\n" * has_end
    path = tmp_path_factory.mktemp("logs") / f"a.jsonl{pack}"
    path.write_bytes(PACK[pack](data))
    found = list(sources.pieces(sources.find(path), size))
    assert b"".join(piece.read() for piece in found) == data
    at = 0
    for number, piece in enumerate(found):
        assert isinstance(piece, LogPiece) and (piece.index, piece.start) == (number, at)
        assert piece.read().endswith(b"\n") or number == len(found) - 1
        at += piece.size
