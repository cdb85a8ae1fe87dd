"""A folder of parts: what is written comes back, the files depend on the trace alone, and what is damaged is told."""

import errno
import json
import os
import sys
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvtrace
from kvtrace import InputError, Trace, UsageError
from kvtrace._base.errors import KvtraceError, StoppedError
from kvtrace.formats import dataset as parts
from kvtrace.formats import parquet, reading, writing
from kvtrace.formats.dataset import MANIFEST, DatasetWriter, open_dataset
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns, replace_columns, rows_of
from tests.conftest import drawn
from tests.strategies import traces


def write(trace, path, cuts=(), rows=3):
    """Write a trace in pieces that end at the given rows, three rows a part."""
    ends = sorted({0, len(trace), *(cut for cut in cuts if cut < len(trace))})
    with DatasetWriter(path, block_size=trace.block_size, tail=trace.tail, meta=trace.meta, rows=rows) as writer:
        for start, stop in pairwise(ends):
            writer.add(rows_of(trace, start, stop))
    return str(path)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def day(folder):
    """Four requests in two parts."""
    return write(toy("0 1", "0 2", "3", "0 1 4", block_size=4), "day.dataset")


# -- what is written -----------------------------------------------------------------------------------------------


@given(traces(unknown_outputs=True), st.lists(st.integers(0, 12), max_size=4))
@settings(max_examples=drawn(50), deadline=None)
def test_what_is_written_in_any_pieces_is_the_same_files_and_comes_back(tmp_path_factory, trace, cuts):
    folder = tmp_path_factory.mktemp("parts")
    once, pieces = write(trace, folder / "once.dataset"), write(trace, folder / "pieces.dataset", cuts)
    assert contents(once) == contents(pieces)
    assert reading.read(once) == trace == open_dataset(once).trace()
    assert reading.read(once).meta == trace.meta


@given(traces(unknown_outputs=True), st.integers(1, 40))
@settings(max_examples=drawn(50), deadline=None)
def test_chunks_of_any_size_are_the_rows_in_order(tmp_path_factory, trace, references):
    path = write(trace, tmp_path_factory.mktemp("parts") / "t.dataset")
    chunks = list(open_dataset(path).chunks(references))
    assert sum(map(len, chunks)) == len(trace)
    for name in ("timestamp", "hash_ids", "output_ids", "parent", "session"):
        if getattr(trace, name) is not None:
            assert np.concatenate([getattr(chunk, name) for chunk in chunks]).tolist() == getattr(trace, name).tolist()


def test_parts_hold_so_many_requests_and_the_manifest_counts_them(day):
    said = json.loads(Path(day, MANIFEST).read_text())
    assert said["parts"] == [
        {"file": "part-00000.parquet", "requests": 3, "blocks": 5},
        {"file": "part-00001.parquet", "requests": 1, "blocks": 3},
    ]
    assert (said["requests"], said["blocks"], said["distinct_blocks"]) == (4, 8, 5)
    assert (said["block_size"], said["tail"], said["format"], said["first_id"]) == (4, "kept", "dataset", 0)
    opened = open_dataset(day)
    assert (opened.requests, opened.blocks, opened.distinct, opened.block_size) == (4, 8, 5, 4)


def test_extra_columns_of_any_kind_come_back(folder):
    columns = replace_columns(toy("0", "0 1", "2", "0 1 3"))
    mixed = np.array(["a", 7, None, 1.5], dtype=object)
    columns.extra = {"type": np.array(["x", None, "y", "x"], dtype=object), "n": np.arange(4), "mixed": mixed}
    writing.write(columns, "t.dataset", block_size=1)
    assert {name: values.tolist() for name, values in reading.read("t.dataset").extra.items()} == {
        name: values.tolist() for name, values in columns.extra.items()
    }


def test_parents_are_rows_of_the_whole_trace(folder):
    columns = replace_columns(toy("0", "1", "2", "0 3", "1 4"), parent=np.array([-1, -1, -1, 0, 1]))
    with DatasetWriter("t.dataset", block_size=1, tail="kept", rows=2) as writer:
        writer.add(columns)
    assert reading.read("t.dataset").parent.tolist() == [-1, -1, -1, 0, 1]


def test_ids_are_delta_encoded_and_packed(day):
    group = pyarrow.parquet.ParquetFile(f"{day}/part-00000.parquet").metadata.row_group(0)
    ids = next(group.column(at) for at in range(group.num_columns) if "hash_ids" in group.column(at).path_in_schema)
    assert "DELTA_BINARY_PACKED" in ids.encodings and ids.compression == "ZSTD"


def test_the_meta_of_a_trace_stays_beside_the_list_of_parts(folder):
    trace = toy("0 1")
    writing.write(trace, "t.dataset", meta={"log": "chat", "parts": "mine"})
    assert reading.read("t.dataset").meta == {"log": "chat"}


def test_the_name_tells_that_a_folder_is_wanted(folder):
    assert writing.write(toy("0 1"), "a/") == ["a/"] and writing.write(toy("0 1"), "b.dataset") == ["b.dataset"]
    assert writing.write(toy("0 1"), "c", format="dataset") == ["c"]
    assert reading.read("a") == reading.read("a/") == reading.read("b.dataset") == reading.read("c") == toy("0 1")
    assert sorted(os.listdir()) == ["a", "b.dataset", "c"]


def test_a_part_by_itself_is_a_trace_file(day):
    assert reading.read(f"{day}/part-00001.parquet").hash_ids.tolist() == [0, 1, 2]


def test_a_trace_that_came_in_chunks_is_the_one_written_whole(folder):
    trace = toy("0 1", "0 2", "3")
    chunks = [rows_of(trace, 0, 2), rows_of(trace, 2, 3)]
    writing.write_chunks(chunks, "chunks.dataset", block_size=1, tail="kept", format="dataset")
    writing.write(trace, "whole.dataset")
    assert contents("chunks.dataset") == contents("whole.dataset")


# -- all or nothing ------------------------------------------------------------------------------------------------


def test_a_run_that_fails_leaves_what_was_there(day):
    before = contents(day)
    with pytest.raises(RuntimeError), DatasetWriter(day, block_size=1, tail="kept", rows=1) as writer:
        writer.add(toy("0", "1"))
        raise RuntimeError
    assert contents(day) == before and os.listdir() == ["day.dataset"]


def test_parts_of_ours_and_empty_folders_are_replaced(day):
    os.mkdir("empty.dataset")
    for name in (day, "empty.dataset"):
        writing.write(toy("0 1"), name)
        assert reading.read(name) == toy("0 1")
    assert sorted(os.listdir()) == ["day.dataset", "empty.dataset"]


@pytest.mark.parametrize("kind", ["foreign", "no manifest", "another manifest", "file", "no folder"])
def test_what_is_not_ours_is_never_replaced(day, kind):
    path = day
    if kind == "foreign":
        Path(day, "notes.txt").write_text("mine")
    elif kind == "no manifest":
        Path(day, MANIFEST).unlink()
    elif kind == "another manifest":
        Path(day, MANIFEST).write_text("{}")
    elif kind == "file":
        path = "note.dataset"
        Path(path).write_text("mine")
    else:
        path = "nowhere/t.dataset"
    before = {str(p): p.read_bytes() for p in Path(".").rglob("*") if p.is_file()}
    with pytest.raises(UsageError):
        writing.check_output(path)
    with pytest.raises(UsageError):
        DatasetWriter(path, block_size=1, tail="kept")
    assert {str(p): p.read_bytes() for p in Path(".").rglob("*") if p.is_file()} == before


def test_a_disk_that_takes_no_more_leaves_nothing(folder, monkeypatch):
    def full(*_, **__):
        raise KvtraceError("full")

    monkeypatch.setattr(parquet, "write", full)
    with pytest.raises(KvtraceError, match="full"):
        writing.write(toy("0 1"), "t.dataset")
    assert os.listdir() == []


def test_a_full_disk_is_told_with_the_name_of_the_folder(folder, monkeypatch):
    def full(*_names, **_folders):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("kvtrace._base.output_files.os.replace", full)
    with pytest.raises(StoppedError, match=r"^t\.dataset/part-00000\.parquet: cannot be written \(No space"):
        writing.write(toy("0 1"), "t.dataset")
    assert os.listdir() == []


def test_a_run_that_is_stopped_between_two_names_puts_the_old_one_back(day, monkeypatch):
    before, rename, calls = contents(day), os.rename, []

    def stopped(source, target):
        calls.append(target)
        if len(calls) == 2:  # the old folder is away, the new one not there yet
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr("kvtrace._base.output_files._exchanged", lambda *_folders: False)  # as on most systems
    monkeypatch.setattr("kvtrace.formats.dataset.os.rename", stopped)
    with pytest.raises(KeyboardInterrupt):
        writing.write(toy("0 1"), day)
    assert len(calls) == 3 and contents(day) == before and os.listdir() == ["day.dataset"]


@pytest.mark.skipif(sys.platform != "linux", reason="renameat2")
def test_an_older_folder_and_a_new_one_change_places_in_one_step(day, monkeypatch):
    before = contents(day)
    monkeypatch.setattr("kvtrace.formats.dataset.os.rename", pytest.fail)
    writing.write(toy("0 1"), day)
    after = contents(day)
    assert after != before and os.listdir() == ["day.dataset"]
    monkeypatch.setattr("kvtrace._base.output_files.note_result", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):  # the new one has the name already
        writing.write(toy("0 2"), day)
    assert contents(day) == after and os.listdir() == ["day.dataset"]


def test_what_parts_cannot_do_is_told(folder):
    with pytest.raises(UsageError, match="its ids count from 0"):
        writing.write(toy("0"), "t.dataset", first_id=1)
    with pytest.raises(UsageError, match="cannot be written to stdout"):
        writing.check_output("-", "dataset")
    assert os.listdir() == []


# -- damage --------------------------------------------------------------------------------------------------------


def change(day, **changed):
    path = Path(day, MANIFEST)
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def part(file="part-00000.parquet", requests=3, blocks=5):
    return {"file": file, "requests": requests, "blocks": blocks}


REST = part("part-00001.parquet", 1, 3)
DAMAGE = {
    "no JSON": (lambda day: Path(day, MANIFEST).write_text("{SECRET"), "the file is not JSON"),
    "no object": (lambda day: Path(day, MANIFEST).write_text("[]"), "the file is not a JSON object"),
    "another file": (lambda day: Path(day, MANIFEST).write_text('{"block_size": 1}'), "is not the manifest"),
    "newer": (lambda day: change(day, kvtrace={"version": "9", "format_version": 2}), "Update kvtrace"),
    "no block size": (lambda day: change(day, block_size=None), "block_size or tail is missing"),
    "no list": (lambda day: change(day, parts="SECRET"), "parts is not a list"),
    "another name": (lambda day: change(day, parts=[part("../SECRET"), REST]), "is not named part-00000"),
    "a count that is none": (lambda day: change(day, parts=[part(requests="SECRET"), REST]), "not a whole number"),
    "counts that differ": (lambda day: change(day, requests=5), "but its parts have"),
    "more distinct blocks": (lambda day: change(day, distinct_blocks=10**15), "distinct_blocks is larger than"),
    "no parts": (lambda day: change(day, parts=[]), "but its parts have"),
    "a part missing": (lambda day: Path(day, "part-00001.parquet").unlink(), "part-00001.parquet: the file is missing"),
    "a part cut short": (
        lambda day: os.truncate(f"{day}/part-00001.parquet", 99), "part-00001.parquet: cannot be read as Parquet",
    ),
    "fewer rows": (
        lambda day: change(day, parts=[part(requests=4), part("part-00001.parquet", 0, 3)]),
        "part-00000.parquet: its requests or blocks differ",
    ),
    "more rows": (
        lambda day: change(day, parts=[part(requests=2), part("part-00001.parquet", 2, 3)]),
        "part-00000.parquet: its requests or blocks differ",
    ),
    "more blocks": (lambda day: change(day, parts=[part(blocks=4), part("part-00001.parquet", 1, 4)]),
                    "requests or blocks differ"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_one_clear_line_without_content(day, kind):
    damage, said = DAMAGE[kind]
    damage(day)
    with pytest.raises(InputError) as error:
        reading.read(day)
    assert said in str(error.value) and day in str(error.value) and len(str(error.value).splitlines()) == 1
    assert "SECRET" not in str(error.value) and error.value.status == 3
    assert error.value.__context__ is None or error.value.__suppress_context__


def test_a_folder_of_something_else_is_no_trace(folder):
    os.mkdir("notes")
    os.mkdir("t.dataset")
    with pytest.raises(InputError, match=r"notes: the folder is not a data set and has no Weka sessions"):
        reading.read("notes")
    with pytest.raises(InputError, match=r"t.dataset/manifest.json: cannot be read"):
        reading.read("t.dataset")


def test_an_empty_trace_has_no_parts(folder):
    writing.write(Trace([], [], [], [], [0], block_size=1), "t.dataset")
    assert os.listdir("t.dataset") == [MANIFEST] and len(open_dataset("t.dataset").trace()) == 0
    with pytest.raises(InputError, match="the file has no requests"):
        reading.read("t.dataset")


def test_the_public_conversation_trace_comes_back_from_parts(folder, shared):
    trace = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")
    write(trace, "t.dataset", range(0, len(trace), 777), rows=5000)
    assert reading.read("t.dataset") == trace and len(os.listdir("t.dataset")) == 4
    assert sum(path.stat().st_size for path in Path("t.dataset").iterdir()) < 1_000_000


def test_rows_that_follow_each_other_keep_ids_and_parents():
    columns = Columns([0, 1, 2], [1, 2, 1], [0, 0, 0], [0, 0, 1, 2], [0, 1, 3, 4], parent=[-1, 0, -1])
    assert rows_of(columns, 1, 3).parent.tolist() == [0, -1] and rows_of(columns, 1, 3).offsets.tolist() == [0, 2, 3]
    assert parts.has_dataset_name("x/") and not parts.has_dataset_name("x.jsonl")
