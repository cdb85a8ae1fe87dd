"""Trace files: what is written reads back, what a reader finds is what the file says, and what is broken is told."""

import base64
import io
import itertools
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import kvtrace
from kvtrace import InputError, Trace, UsageError
from kvtrace._base.errors import KvtraceError, RowError
from kvtrace.cli import run
from kvtrace.formats import bailian, block_size, format_table, scalars, sidecar
from kvtrace.formats.reading import read_columns
from kvtrace.formats.sidecar import ReadResult, sidecar_path
from kvtrace.trace import Columns
from kvtrace.trace.building import concat, toy
from kvtrace.trace.columns import TAILS
from kvtrace.trace.invariants import expected_blocks
from tests import make_vectors_formats, unaudited
from tests.strategies import traces

VECTORS = json.loads(make_vectors_formats.VECTORS.read_text())
NAMES = ["t.jsonl", "t.jsonl.gz", "t.jsonl.zst", "t.parquet", "t.parquet.zst", "t"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(text, name="t.jsonl"):
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return name


def rows(*rows):
    """Mooncake rows: (ms, tokens, ids)."""
    return "".join(
        json.dumps({"timestamp": time, "input_length": tokens, "output_length": 1, "hash_ids": ids}) + "\n"
        for time, tokens, ids in rows
    )


def stdin(monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


# -- the table of formats ----------------------------------------------------------------------------------------


def test_vectors_are_as_the_reference_gives_them():
    texts = {name: text for name, text in VECTORS["smallest"].items() if name != "parquet"}
    for name, found in make_vectors_formats.smallest_rows().items():
        assert texts.pop(name) == "".join(json.dumps(row) + "\n" for row in found)
    assert not texts


@pytest.mark.parametrize("name", format_table.FORMATS)
def test_the_smallest_file_of_each_format_is_the_same_trace(folder, name):
    #  0 1 2(tail)   0 1 3(tail)   4(tail)
    text = VECTORS["smallest"][name]
    found = kvtrace.read(put(base64.b64decode(text) if name == "parquet" else text, "t"), block_size=4)
    assert found.hash_ids.tolist() == [0, 1, 2, 0, 1, 3, 4]
    assert found.offsets.tolist() == [0, 3, 6, 7]
    assert found.input_length.tolist() == [10, 9, 2] and found.output_length.tolist() == [3, 0, 1]
    assert found.timestamp.tolist() == [0, 250, 500]
    assert (found.parent is None) == (name in ("mooncake", "parquet"))
    assert not str(found.fixes)


@pytest.mark.parametrize("name", ["mooncake", "bailian", "agentic-mooncake"])
def test_the_smallest_file_of_each_format_is_written_to_the_byte(folder, name):
    text = VECTORS["smallest"][name]
    kvtrace.write(kvtrace.read(put(text), block_size=4), "again", format=name)
    assert Path("again").read_text() == text


@pytest.mark.parametrize("case", VECTORS["broken"], ids=lambda case: case["name"])
def test_a_broken_file_gets_the_message_it_deserves(folder, case):
    with pytest.raises(KvtraceError) as error:
        kvtrace.read(put(case["text"], "trace.jsonl"))
    assert (error.value.status, str(error.value)) == (case["status"], case["message"])
    assert "\n" not in str(error.value) and error.value.__cause__ is None


# -- what is written reads back ----------------------------------------------------------------------------------


@st.composite
def with_extra(draw):
    trace = draw(traces(unknown_outputs=True))
    size = len(trace)

    def column(values):
        return np.array(draw(st.lists(values, min_size=size, max_size=size)) + [None], dtype=object)[:-1]

    kinds = {
        "turn": st.integers(1, 9),
        "type": st.sampled_from(["text", "image", "größe\n"]),
        "score": st.floats(allow_nan=False, allow_infinity=False),
        "big": st.integers(-(2**63), 2**63 - 1),
        "cached": st.booleans(),
        "mixed": st.one_of(st.none(), st.integers(0, 2**64 - 1), st.text(max_size=3), st.booleans()),
    }
    chosen = draw(st.lists(st.sampled_from(sorted(kinds)), unique=True))
    extra = {name: scalars.narrow(column(kinds[name])) for name in chosen}
    extra = {name: values for name, values in extra.items() if any(value is not None for value in values.tolist())}
    columns = kvtrace.trace.columns.replace_columns(trace, extra=extra)
    columns.timestamp = columns.timestamp * draw(st.sampled_from([1.0, 0.25, 1 / 3, 1e9]))
    return Trace.from_columns(columns, block_size=trace.block_size)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None)
@given(trace=with_extra(), first_id=st.sampled_from([0, 1, 1000]))
def test_what_is_written_reads_back(tmp_path_factory, name, trace, first_id):
    path = tmp_path_factory.mktemp("f") / name
    assert kvtrace.write(trace, path, extra=True, first_id=first_id) == [str(path), f"{path}.meta.json"]
    found = kvtrace.read(path)
    if "parquet" not in name and trace.session is not None:  # Mooncake has sessions and no parents
        trace = Trace(**{**vars_of(trace), "parent": None, "session": numbered(trace.session)}, **kind_of(trace))
    assert found == trace
    assert not str(found.fixes)


def vars_of(columns):
    return {name: getattr(columns, name) for name in Columns.__dataclass_fields__}


def kind_of(trace):
    return {"block_size": trace.block_size, "tail": trace.tail}


def numbered(session):
    return None if (session < 0).all() else session


@settings(max_examples=25, deadline=None)
@given(trace=traces(unknown_outputs=True), tail=st.sampled_from(TAILS))
def test_bailian_reads_back_what_it_wrote(tmp_path_factory, trace, tail):
    path = tmp_path_factory.mktemp("f") / "t.jsonl"
    kvtrace.write(trace, path, format="bailian")
    once = kvtrace.read(path)
    assert set(once.extra) == {"type", "turn"}
    assert once.parent.tolist() == bailian.parents(trace).tolist()
    for name in ("timestamp", "input_length", "output_length", "hash_ids", "offsets"):
        assert np.array_equal(getattr(once, name), getattr(trace, name))
    text = path.read_bytes()
    kvtrace.write(once, path, format="bailian")
    assert path.read_bytes() == text
    assert kvtrace.read(path) == once


@settings(max_examples=25, deadline=None)
@given(trace=with_extra())
def test_all_roads_give_the_same_mooncake_bytes(tmp_path_factory, trace):
    place = tmp_path_factory.mktemp("f")
    kvtrace.write(trace, place / "t.jsonl")
    for name, format in itertools.product(["a.gz", "b.zst", "c"], format_table.FORMATS):
        if format == "agentic-mooncake" and (trace.input_length < 1).any():
            continue  # it has no empty prompts
        kvtrace.write(trace, place / name, format=format)
        kvtrace.write(kvtrace.read(place / name), place / "again.jsonl")
        assert format == "bailian" or (place / "again.jsonl").read_bytes() == (place / "t.jsonl").read_bytes()


def test_the_public_conversation_trace_is_written_as_it_was_read(folder, shared):
    source = shared / "data/mooncake/conversation_trace.jsonl"
    trace = kvtrace.read(source)
    assert (len(trace), len(trace.hash_ids), trace.distinct) == (12_031, 288_500, 182_790)
    assert (trace.block_size, trace.tail, trace.is_chained, str(trace.fixes)) == (512, "kept", True, "")
    kvtrace.write(trace, "t.jsonl")
    assert Path("t.jsonl").read_bytes() == source.read_bytes()
    for name in NAMES[1:-1]:
        kvtrace.write(trace, name)
        assert kvtrace.read(name) == trace


def test_ids_of_parquet_take_less_than_a_tenth(folder, shared):
    source = shared / "data/mooncake/conversation_trace.jsonl"
    kvtrace.write(kvtrace.read(source), "t.parquet")
    assert os.path.getsize("t.parquet") * 10 < os.path.getsize(source)


# -- writing -----------------------------------------------------------------------------------------------------


def test_a_row_is_as_json_dumps_prints_it(folder):
    kvtrace.write(toy("0 1", "0 2", block_size=512, gap_ms=3000), "t.jsonl")
    assert Path("t.jsonl").read_text() == (
        '{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [0, 1]}\n'
        '{"timestamp": 3000, "input_length": 1024, "output_length": 1, "hash_ids": [0, 2]}\n'
    )


def test_times_that_are_not_whole_are_written_shortest(folder):
    kvtrace.write(toy("0", "0", "1", gap_ms=0.5), "t.jsonl")
    assert [json.loads(line)["timestamp"] for line in open_lines("t.jsonl")] == [0, 0.5, 1]
    assert '"timestamp": 1,' in open_lines("t.jsonl")[2]


def open_lines(name):
    return Path(name).read_text().splitlines()


@settings(deadline=None)
@given(st.lists(st.integers(0, 10**13) | st.floats(0, 1e9), min_size=1, max_size=5))
def test_bailian_times_are_the_shortest_text_of_seconds(tmp_path_factory, times):
    path = tmp_path_factory.mktemp("f") / "t"
    columns = Columns(times, [1] * len(times), [1] * len(times), [0] * len(times), range(len(times) + 1))
    kvtrace.write(columns, path, format="bailian", block_size=1)
    assert [line.split('"timestamp": ')[1].split(",")[0] for line in open_lines(path)] == [
        repr(t / 1000) for t in times
    ]


def test_plain_columns_are_written_as_they_are(folder):
    # numbered in input order, not in time order: what --keep-order writes
    columns = Columns([9.0, 0.0], [2, 2], [1, 1], [0, 1, 0, 2], [0, 2, 4])
    unaudited.write(columns, "t.jsonl", block_size=1, first_id=1, tail="unique", meta={"profile": "exact"})
    assert [json.loads(line)["hash_ids"] for line in open_lines("t.jsonl")] == [[1, 2], [1, 3]]
    trace = kvtrace.read("t.jsonl")
    assert trace.fixes.rows_moved == 1 and trace.tail == "unique" and trace.meta == {"profile": "exact"}
    with pytest.raises(UsageError, match="plain columns need a block size"):
        kvtrace.write(columns, "u.jsonl")


def test_stdout_has_no_sidecar_and_a_pipe_reads_it(folder, monkeypatch):
    trace = toy("0 1", "0 2", block_size=4)
    for format in format_table.FORMATS:
        out = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out))
        assert kvtrace.write(trace, "-", format=format) == ["stdout"]
        stdin(monkeypatch, out.getvalue())
        assert kvtrace.read("-", block_size=4).hash_ids.tolist() == [0, 1, 0, 2]
    assert not list(folder.iterdir())


def test_a_trace_and_its_sidecar_appear_together_or_not_at_all(folder, monkeypatch):
    def failing(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(KvtraceError, match="No space left on device"):
        patch.setattr(os, "fsync", failing)
        kvtrace.write(toy("0 1"), "t.jsonl")
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    "columns",
    [
        Columns([float("nan")], [1], [1], [0], [0, 1]),
        Columns([0.0], [1], [1], [0], [0, 1], extra={"x": np.array([float("inf")])}),
        Columns([0.0], [1], [1], [0], [0, 1], extra={"x": np.array([object()])}),
    ],
    ids=["time", "extra number", "extra object"],
)
def test_what_json_does_not_know_is_refused_and_no_file_appears(folder, columns):
    with pytest.raises(InputError):
        kvtrace.write(columns, "t.jsonl", block_size=1, extra=True)
    assert not list(folder.iterdir())


def test_arguments_that_do_not_fit_are_told_before_any_work(folder):
    trace = toy("0 1")
    for path, options, said in [
        (
            "t.jsonl",
            {"format": "csv"},
            "'csv' is not a trace format. Try mooncake, bailian, agentic-mooncake, parquet, dataset",
        ),
        ("t.jsonl", {"block_size": 7}, "block_size is 7, but the trace has 1"),
        ("t.jsonl", {"tail": "dropped"}, "tail is 'dropped', but the trace has 'kept'"),
        ("t.jsonl", {"first_id": 2**63}, "makes an id larger than 64 bits"),
        ("t.jsonl", {"meta": {"from": Path("x")}}, "meta has a value that JSON cannot express"),
        ("gone/t.jsonl", {}, "the folder gone does not exist"),
        (".", {}, "is a folder"),
    ]:
        with pytest.raises(UsageError, match=said):
            kvtrace.write(trace, path, **options)
    for options, said in [
        ({"extra": "all"}, "'all' is not valid for extra. Try keep or ignore"),
        ({"threads": 0}, "threads must be at least 1"),
    ]:
        with pytest.raises(UsageError, match=said):
            kvtrace.read("t.jsonl", **options)
    clash = kvtrace.trace.columns.replace_columns(trace, extra={"hash_ids": np.array([1])})
    with pytest.raises(UsageError, match="conflicts with a key"):
        kvtrace.write(clash, "t.jsonl", block_size=1, extra=True)
    assert not list(folder.iterdir())


def test_the_name_tells_the_format_to_write(folder):
    for name, format in [
        ("t.parquet", "parquet"),
        ("t.parquet.gz", "parquet"),
        ("t.jsonl", "mooncake"),
        ("t", "mooncake"),
    ]:
        kvtrace.write(toy("0 1"), name)
        assert read_columns(name).format == format


# -- Mooncake ----------------------------------------------------------------------------------------------------


def test_sessions_are_numbered_by_first_appearance_whatever_they_are_called(folder):
    text = rows((0, 4, [0]), (1, 4, [0]), (2, 4, [1]), (3, 4, [2]))
    for name, line in zip(['"b"', '"a"', "null", '"b"'], text.splitlines(keepends=True), strict=True):
        text = text.replace(line, line.replace("}", f', "session_id": {name}}}'), 1)
    found = kvtrace.read(put(text), block_size=4)
    assert found.session.tolist() == [0, 1, -1, 0] and not found.extra


def test_other_keys_are_kept_or_ignored(folder):
    text = rows((0, 4, [0]), (1, 4, [1])).replace("}", ', "type": "text", "session_id": 3}', 1)
    kept, ignored = (kvtrace.read(put(text), block_size=4, extra=rule) for rule in ("keep", "ignore"))
    assert kept.extra["type"].tolist() == ["text", None] and not ignored.extra
    assert kept.session.tolist() == ignored.session.tolist() == [0, -1]


def test_extra_columns_are_written_when_asked_for_and_sessions_always(folder):
    text = rows((0, 4, [0])).replace("}", ', "mine": 7, "session_id": "s", "turn": 2}')
    trace, four = kvtrace.read(put(text), block_size=4), ["timestamp", "input_length", "output_length", "hash_ids"]
    kvtrace.write(trace, "plain.jsonl")
    kvtrace.write(trace, "rich.jsonl", extra=True)
    plain, rich = (json.loads(Path(name).read_text()) for name in ("plain.jsonl", "rich.jsonl"))
    assert list(plain) == [*four, "turn", "session_id"] and plain["session_id"] == 0 and plain["turn"] == 2
    assert list(rich) == [*four, "turn", "mine", "session_id"] and rich["mine"] == 7


def test_hashes_of_64_bits_become_small_ids(folder):
    big = [2**64 - 1, 2**63, 7]
    found = kvtrace.read(put(rows((0, 12, big), (5, 8, big[:2]))), block_size=4)
    assert found.hash_ids.tolist() == [0, 1, 2, 0, 1] and found.fixes.renumbered


def test_rows_out_of_order_are_sorted_and_counted(folder):
    found = kvtrace.read(put(rows((30, 4, [0]), (10, 8, [1, 2]), (20, 8, [1, 3]))), block_size=4)
    assert found.timestamp.tolist() == [0, 10, 20] and found.hash_ids.tolist() == [0, 1, 0, 2, 3]
    assert found.fixes.rows_moved == 2 and found.fixes.first_timestamp == 10


# -- Qwen-Bailian --------------------------------------------------------------------------------------------------


def chats(*chats, times=None):
    """Bailian rows: (chat, parent) pairs of one block each."""
    times = times or [row / 4 for row in range(len(chats))]
    rest = {"input_length": 16, "output_length": 1, "type": "text", "turn": 1}
    return "".join(
        json.dumps({"chat_id": chat, "parent_chat_id": parent, "timestamp": time, **rest, "hash_ids": [row]}) + "\n"
        for row, ((chat, parent), time) in enumerate(zip(chats, times, strict=True))
    )


def test_seconds_are_never_read_as_milliseconds(folder):
    found = kvtrace.read(put(chats((31, 8), (32, -1), times=[0.0, 61.114])), block_size=16)
    assert found.timestamp.tolist() == [0, 61114]
    again = kvtrace.read(put(chats((31, 8), (32, -1), times=[0.0, 61.114])), block_size=16, format="mooncake")
    assert again.timestamp.tolist() == [0, 61.114] and again.extra["chat_id"].tolist() == [31, 32]


def test_a_session_is_the_root_of_its_chain_of_parents(folder):
    #  7 <- 8 <- 9   and   4 <- 5
    found = kvtrace.read(put(chats((7, -1), (4, -1), (8, 7), (5, 4), (9, 8))), block_size=16)
    assert found.parent.tolist() == [-1, -1, 0, 1, 2]
    assert found.session.tolist() == [0, 1, 0, 1, 0]


def test_parents_that_are_not_there_or_come_later_are_counted(folder):
    #  1: no such request   2: itself   3: a later one
    found = kvtrace.read(put(chats((1, 99), (2, 2), (3, 4), (4, -1))), block_size=16)
    assert found.parent.tolist() == [-1, -1, -1, -1]
    assert found.session.tolist() == [0, 1, 2, 3]
    assert found.fixes.dangling_parents == 3


def test_a_parent_later_in_the_file_but_earlier_in_time_is_a_parent(folder):
    found = kvtrace.read(put(chats((2, 1), (1, -1), times=[5.0, 0.0])), block_size=16)
    assert found.parent.tolist() == [-1, 0] and found.session.tolist() == [0, 0]
    assert found.fixes.dangling_parents == 0


def test_of_two_requests_with_one_name_the_nearest_before_is_the_parent():
    #  row        0   1   2   3   4
    #  name       7   7   8   7   9
    #  parent of  -   7   7   7   7
    parent, lost, repeated = bailian.link(np.array([7, 7, 8, 7, 9]), np.array([-1, 7, 7, 7, 7]))
    assert parent.tolist() == [-1, 0, 1, 1, 3] and lost.tolist() == [] and repeated.tolist() == [1, 3]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(-1, 7)), min_size=1, max_size=12))
def test_links_equal_a_plain_search(pairs):
    names, wanted = [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def plain(row):
        bearers = [at for at, name in enumerate(names) if name == wanted[row]]
        before = [at for at in bearers if at < row]
        return -1 if wanted[row] == -1 or not bearers else before[-1] if before else bearers[0]

    parent, lost, repeated = bailian.link(np.array(names), np.array(wanted))
    assert parent.tolist() == [plain(row) for row in range(len(pairs))]
    assert lost.tolist() == [row for row, name in enumerate(wanted) if name != -1 and name not in names]
    assert repeated.tolist() == [row for row, name in enumerate(names) if name in names[:row]]


def test_turns_and_types_are_made_up_where_they_are_missing(folder):
    parent = np.array([-1, 0, 1, -1])
    trace = kvtrace.trace.columns.replace_columns(toy("0", "0 1", "0 1 2", "3"), parent=parent)
    trace.extra = {"type": np.array(["image", None, "text", None], dtype=object)}
    kvtrace.write(trace, "t.jsonl", format="bailian", block_size=1)
    found = [json.loads(line) for line in open_lines("t.jsonl")]
    assert [row["turn"] for row in found] == [1, 2, 3, 1]
    assert [row["type"] for row in found] == ["image", "text", "text", "text"]
    assert [row["parent_chat_id"] for row in found] == [-1, 0, 1, -1]


def test_sessions_without_parents_are_written_as_chains(folder):
    columns = kvtrace.trace.columns.replace_columns(toy("0", "1", "0 2", "3"), session=np.array([0, 1, 0, -1]))
    assert bailian.parents(columns).tolist() == [-1, -1, 0, -1]


def test_times_of_up_to_nanoseconds_are_exact():
    ms = np.array([0, 61114, 0.001, 123456789.123, 5e-7 * 1000])
    assert bailian.milliseconds(ms / 1000).tolist() == ms.tolist()


@settings(deadline=None)
@example(8_589_934_583)
@given(st.integers(0, 10**15))
def test_whole_milliseconds_survive_seconds(ms):
    assert bailian.milliseconds(np.array([ms / 1000])).tolist() == [ms]


def test_a_circle_of_parents_in_unverified_columns_ends():
    assert len(bailian.turns(np.array([1, 0, 2]))) == 3


# -- Parquet -------------------------------------------------------------------------------------------------------


def test_parquet_written_by_others_is_read(folder):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.table(
        {
            "timestamp": pa.array([0, 5], pa.int32()), "input_length": [8, 4], "output_length": [1, 2],
            "hash_ids": pa.array([[2**64 - 1, 3], [2**64 - 1]], pa.list_(pa.uint64())),
        }
    )  # fmt: skip
    pq.write_table(table, "t.parquet", row_group_size=1)
    found = kvtrace.read("t.parquet", block_size=4)
    assert found.hash_ids.tolist() == [0, 1, 0] and found.timestamp.tolist() == [0, 5]
    sliced = table.slice(1)
    pq.write_table(sliced, "t.parquet")
    assert kvtrace.read("t.parquet", block_size=4).hash_ids.tolist() == [0]


def test_a_small_parquet_file_does_not_fill_the_memory(folder, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    monkeypatch.setattr("kvtrace.formats.parquet.MANY_VALUES", 1 << 20)
    for ids, read in itertools.product(
        [np.zeros(1 << 24, np.int64), np.random.default_rng(1).permutation(1 << 20)],
        [kvtrace.read, kvtrace.formats.check],
    ):
        row = {"timestamp": [0], "input_length": [len(ids)], "output_length": [1], "hash_ids": [ids]}
        pq.write_table(pa.table(row), "t.parquet", compression="zstd")
        if len(ids) > 1 << 20:
            with pytest.raises(InputError, match="16,777,219 values. Such a file is not a trace"):
                read("t.parquet", block_size=1)
        else:
            read("t.parquet", block_size=1)


def test_parquet_that_is_no_trace_is_one_line(folder):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    sound = {"timestamp": [0], "input_length": [4], "output_length": [1], "hash_ids": [[0]]}
    for changed, said in [
        ({"input_length": None}, "the column input_length is missing"),
        ({"hash_ids": ["0"]}, "the column hash_ids does not have a list in every row"),
        ({"hash_ids": [["0"]]}, "the column hash_ids does not have lists of integers"),
        ({"hash_ids": pa.array([None], pa.list_(pa.int64()))}, "the column hash_ids does not have a list in every row"),
        ({"input_length": ["4"]}, "the column input_length does not have a number in every row"),
        ({"timestamp": pa.array([None], pa.int64())}, "the column timestamp does not have a number in every row"),
        ({"input_length": [4.5]}, "the column input_length has a fraction"),
    ]:
        columns = {name: values for name, values in (sound | changed).items() if values is not None}
        pq.write_table(pa.table(columns), "t.parquet")
        with pytest.raises(InputError, match=rf"^t\.parquet: {said}\.$"):
            kvtrace.read("t.parquet", block_size=4)
    put(b"PAR1 and no more", "t.parquet")
    with pytest.raises(InputError, match=r"^t\.parquet: cannot be read as Parquet"):
        kvtrace.read("t.parquet")


def test_parquet_tells_its_block_size_without_a_sidecar(folder):
    trace = toy("0 1", "0 2", block_size=7)
    unaudited.write(trace, "t.parquet", meta={"profile": "exact"})
    os.unlink(sidecar_path("t.parquet"))
    found = kvtrace.read("t.parquet")
    assert found == trace and found.meta == {"profile": "exact"}


# -- sidecars ------------------------------------------------------------------------------------------------------


def test_a_sidecar_says_what_rows_cannot(folder):
    kvtrace.write(toy("0 1", "0 2", block_size=7), "t.jsonl", first_id=5, meta={"tokenizer": "r1", "block_size": 3})
    said = json.loads(Path("t.jsonl.meta.json").read_text())
    assert said.pop("kvtrace") == {"version": kvtrace.__version__, "format_version": 1}
    assert said == {
        "block_size": 7, "tail": "kept", "requests": 2, "blocks": 4, "distinct_blocks": 3, "first_id": 5,
        "format": "mooncake", "tokenizer": "r1",
    }  # fmt: skip
    found = kvtrace.read("t.jsonl")
    assert found.block_size == 7 and found.meta == {"tokenizer": "r1"} and not found.fixes.renumbered
    kvtrace.write(found, "u.jsonl")
    assert json.loads(Path("u.jsonl.meta.json").read_text())["tokenizer"] == "r1"


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet", "t.dataset"])
def test_what_a_later_version_wrote_is_refused_and_not_misread(folder, monkeypatch, name):
    with monkeypatch.context() as later:
        later.setattr(sidecar, "FORMAT_VERSION", 2)
        kvtrace.write(toy("0 1", block_size=7), name)
    for _ in range(2 if name == "t.parquet" else 1):
        with pytest.raises(InputError, match=r"format version 2 is newer than 1\. Update kvtrace\."):
            kvtrace.read(name)
        Path(f"{name}.meta.json").unlink(missing_ok=True)  # Parquet has the same values in its metadata


def test_times_that_seconds_cannot_keep_are_counted(folder, capsys):
    unaudited.write(toy("0", "1"), "t.jsonl")
    put(rows((0, 1, [0]), (1000.0000000000001, 1, [1])))
    assert run(["convert", "t.jsonl", "--to", "bailian", "-o", "out.jsonl"]) == 0
    assert "time has more decimals than seconds can keep; a reader rounds it." in capsys.readouterr().err
    put(rows((0, 1, [0]), (1000.12345, 1, [1])))
    assert run(["convert", "t.jsonl", "--to", "bailian", "-o", "exact.jsonl"]) == 0
    assert "seconds can keep" not in capsys.readouterr().err
    assert kvtrace.read("exact.jsonl").timestamp.tolist() == [0, 1000.12345]


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"block_size": "CanaryQz7xKw"}, "block_size is not a whole number of at least 0."),
        ({"tail": ["CanaryQz7xKw"]}, "tail must be one of kept, unique, dropped, stated."),
        ({"profile": ["CanaryQz7xKw"]}, "profile is not a text."),
        ({"profile": "exact", "release": "CanaryQz7xKw"}, "release is not an object."),
        ({"profile": "exact", "release": {"settings": ["CanaryQz7xKw"]}}, "release.settings is not an object."),
        ({"log": json.loads("[" * 300 + "]" * 300)}, "the file is nested more than 50 levels deep."),
    ],
)
@pytest.mark.parametrize("command", ["analyze", "curve", "release -o out.jsonl", "convert -o out.jsonl", "audit"])
def test_a_sidecar_that_cannot_be_read_names_its_key(folder, capsys, values, fault, command):
    unaudited.write(toy("0 1", "0 2"), "t.jsonl")
    Path(sidecar_path("t.jsonl")).write_text(json.dumps({"block_size": 1} | values))
    status, text = run([command.split()[0], "t.jsonl", *command.split()[1:]]), "".join(capsys.readouterr())
    assert "CanaryQz7xKw" not in text and "internal error" not in text
    if command == "audit":
        assert status == 4 and "sidecar" in text
    else:
        assert status == 3 and text.startswith(f"kvtrace: t.jsonl.meta.json: {fault}") and text.count("\n") == 1


def test_the_sidecar_of_another_file_is_refused_unless_the_block_size_is_given(folder):
    kvtrace.write(toy("0 1", "0 2", block_size=7), "t.jsonl")
    put(rows((0, 12, [0, 1, 2])))
    with pytest.raises(
        InputError, match=r"the sidecar describes 2 requests, but the file has 1: it belongs to another file"
    ):
        kvtrace.read("t.jsonl")
    assert kvtrace.read("t.jsonl", block_size=4).block_size == 4
    put(rows((0, 12, [0, 1, 2]), (1, 8, [0, 1])))
    with pytest.raises(InputError, match="the sidecar describes 4 blocks, but the file has 5"):
        kvtrace.read("t.jsonl")


def test_what_is_given_may_not_contradict_the_sidecar(folder):
    kvtrace.write(toy("0 1", "0 2", block_size=7), "t.jsonl")
    assert kvtrace.read("t.jsonl", block_size=7, tail="kept").block_size == 7
    with pytest.raises(UsageError, match=r"the sidecar states 7, not --block-size 14\. Omit it"):
        kvtrace.read("t.jsonl", block_size=14)
    with pytest.raises(UsageError, match="the sidecar states kept, not --tail dropped"):
        kvtrace.read("t.jsonl", tail="dropped")


@pytest.mark.parametrize(
    "text, said",
    [
        ("{", "the file is not JSON"),
        ("[]", "the file is not a JSON object"),
        ('{"block_size": "7"}', "block_size is not a whole number"),
        ('{"block_size": 0}', "block_size must be at least 1"),
        ('{"block_size": 9223372036854775808}', "block_size must be at most 1,099,511,627,776 tokens"),
        ('{"requests": true}', "requests is not a whole number"),
        ('{"tail": "long"}', "tail must be one of kept, unique, dropped"),
    ],
)
def test_a_broken_sidecar_is_one_line(folder, text, said):
    put(rows((0, 12, [0, 1, 2])))
    put(text, "t.jsonl.meta.json")
    with pytest.raises(InputError, match=rf"^t\.jsonl\.meta\.json: {said}"):
        kvtrace.read("t.jsonl")


def test_a_sidecar_by_another_hand_may_say_little(folder):
    put(rows((0, 12, [0, 1, 2])))
    put('{"block_size": 5, "tokenizer": "mine"}', "t.jsonl.meta.json")
    assert kvtrace.read("t.jsonl").block_size == 5


def test_what_the_columns_have_but_a_reader_cannot_know_is_told_by_the_sidecar(folder):
    trace = Trace([0.0, 1.0], [5, 5], [1, 1], [0, 1, 0, 2], [0, 2, 4], block_size=4, tail="unique")
    kvtrace.write(trace, "t.jsonl")
    assert kvtrace.read("t.jsonl") == trace


# -- block sizes ---------------------------------------------------------------------------------------------------


def settled(lengths, blocks, **given):
    columns = Columns(
        np.zeros(len(lengths)), lengths, np.ones(len(lengths)), np.zeros(sum(blocks)), np.cumsum([0, *blocks])
    )
    return block_size.settle(ReadResult(columns, "trace.jsonl", "mooncake"), **given)


def test_one_size_that_fits_is_found():
    assert settled([10, 9, 2], [5, 5, 1]) == (2, "kept")  # 9 tokens in 5 blocks: 2 at most; 10 in 5: 2 at least
    assert settled([10, 11, 2], [3, 3, 0]) == (3, "dropped")


def test_among_several_one_power_of_two_is_found():
    assert settled([7000, 7500], [14, 15]) == (512, "kept")  # 500 to 535 fit


def test_a_size_that_both_rules_fit_has_no_tails():
    assert settled([8, 4], [2, 1], block_size=4) == (4, "kept")
    assert settled([8, 4], [2, 1], block_size=4, tail="dropped") == (4, "dropped")


def test_several_sizes_are_refused():
    with pytest.raises(InputError, match=r"^trace\.jsonl: all block sizes from 9 fit its prompts\. Try --block"):
        settled([9], [1])
    with pytest.raises(InputError, match=r"block sizes from 5 to 6 fit its prompts\. Try --block-size\.$"):
        settled([14, 20], [3, 4], tail="kept")


def test_a_wrong_size_names_the_first_row_that_breaks_it_and_one_that_fits():
    lengths, blocks = [512] * 16 + [6955], [1] * 16 + [14]
    with pytest.raises(RowError) as error:
        settled(lengths[16:], blocks[16:], block_size=16)
    assert str(error.value) == (
        "trace.jsonl:1: 14 hash_ids for 6,955 tokens; at block size 16 there should be 435. Try --block-size 512."
    )
    with pytest.raises(
        RowError, match=r"^trace\.jsonl:17: 40 hash_ids for 6,955 tokens; at block size 512, which fits"
    ):
        settled(lengths, [*blocks[:16], 40])


def test_a_multiple_of_the_right_size_names_the_commands_that_fold_blocks():
    with pytest.raises(
        RowError, match=r"Try --block-size 512\. For blocks of 1024 tokens, use `kvtrace convert --fold 2`"
    ):
        settled([6955], [14], block_size=1024)
    with pytest.raises(RowError, match=r"Try --block-size 512\.$"):
        settled([6955], [14], block_size=768)


def test_rows_of_no_tokens_fit_any_size():
    assert settled([0, 10, 9], [0, 5, 5]) == (2, "kept")
    with pytest.raises(InputError, match="all block sizes from 1"):
        settled([0], [0])


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), min_size=1, max_size=4),
    st.sampled_from(["kept", "dropped"]),
)
def test_sizes_that_fit_equal_a_plain_search(prompts, rule):
    lengths, blocks = np.array(prompts).T

    def plain(rows):
        return [b for b in range(1, 60) if (expected_blocks(lengths[:rows], b, rule) == blocks[:rows]).all()]

    found = block_size.fitting(lengths, blocks, rule)
    assert found.rows == max(rows for rows in range(len(lengths) + 1) if rows == 0 or plain(rows))
    if found.rows:
        assert [b for b in range(1, 60) if found.low <= b <= found.high] == plain(found.rows)


@settings(deadline=None)
@given(traces(unknown_outputs=True))
def test_an_inferred_size_is_the_trace_s_or_one_that_fits_as_well(trace):
    found = ReadResult(trace, "t", "mooncake")
    try:
        size, tail = block_size.settle(found)
    except RowError:
        raise
    except InputError:
        return  # several fit
    assert (expected_blocks(trace.input_length, size, tail) == trace.prompt_blocks).all()


def test_a_given_size_that_is_none_is_refused(folder):
    for wrong in (0, -4, 1.5, True, "16"):
        with pytest.raises(UsageError, match="block size must be"):
            kvtrace.read(put(rows((0, 4, [0]))), block_size=wrong)


# -- what is not a file -------------------------------------------------------------------------------------------


def test_reading_from_stdin_uses_no_sidecar(folder, monkeypatch):
    put('{"block_size": 3}', "-.meta.json")
    stdin(monkeypatch, rows((0, 10, [0, 1, 2, 3, 4]), (1, 9, [0, 1, 2, 3, 5])).encode())
    assert kvtrace.read("-").block_size == 2


def test_an_error_on_stdin_says_so(monkeypatch):
    stdin(monkeypatch, b"nonsense\n")
    with pytest.raises(RowError, match="^stdin:1: the row is not JSON"):
        kvtrace.read("-")


def test_any_number_of_threads_reads_the_same_trace(folder, monkeypatch):
    monkeypatch.setattr("kvtrace.formats.jsonl_read.PIECE", 300)
    trace = concat([toy("0 1 2", "0 1 3", "4")] * 40)
    kvtrace.write(trace, "t.jsonl")
    assert all(kvtrace.read("t.jsonl", threads=threads) == trace for threads in (None, 1, 2, 5))


def test_columns_as_they_stand_are_found(folder):
    found = read_columns(put("\n" + rows((30, 4, [9]), (10, 4, [9]))))
    assert found.columns.timestamp.tolist() == [30, 10] and found.columns.hash_ids.tolist() == [9, 9]
    assert [found.line(row) for row in range(2)] == [2, 3] and found.sidecar is None


@given(st.lists(st.integers(0, 2000) | st.integers(-(2**63), 2**63 - 1), max_size=9), st.booleans())
def test_a_sidecar_counts_distinct_blocks(ids, with_outputs):
    columns = Columns([0.0], [len(ids)], [1], ids, [0, len(ids)])
    if with_outputs:
        columns.output_ids, columns.output_offsets = np.array([7, 8]), np.array([0, 2])
    said = sidecar.describe(columns, block_size=1, tail="kept")
    assert said["distinct_blocks"] == len({*ids, *([7, 8] if with_outputs else [])})


def test_a_sidecar_describes_columns_it_was_made_for():
    trace = toy("0 1", "0 2")
    said = sidecar.load(sidecar.dump(sidecar.describe(trace, block_size=1, tail="kept")), "t")
    assert said.describes(trace) and not said.describes(trace[:1])
