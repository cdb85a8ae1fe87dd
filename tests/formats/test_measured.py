"""Measured columns in files: each format that has them gives them back, every other one names its loss."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings

import kvtrace
from kvtrace import InputError, UsageError
from kvtrace.formats import writing
from kvtrace.formats.converting import convert_file
from kvtrace.formats.dataset import open_dataset
from kvtrace.formats.lazy import LazyTrace
from kvtrace.formats.left_out import left_out
from kvtrace.formats.memory_needs import analyzing
from kvtrace.formats.open_pieces import open_pieces
from kvtrace.formats.rewriting import differences
from kvtrace.formats.targets import TARGETS
from kvtrace.text.prompts.writing import dag_of
from kvtrace.trace.building import toy
from kvtrace.trace.columns import MEASURED, measured_of, replace_columns
from kvtrace.trace.trace import Trace
from tests.strategies import measured_traces

ROW = {"timestamp": 0, "input_length": 4, "output_length": 1, "hash_ids": [0]}
NAMES = "cached_tokens, ttft_ms, e2e_ms, queue_ms"
FILES = ["t.jsonl", "t.jsonl.gz", "bailian.jsonl", "agentic.jsonl", "t.parquet", "t.parquet.zst", "day/"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def trace():
    """Three requests of which the second one's numbers are unknown."""
    columns = replace_columns(
        toy("0", "0 1", "0 2", block_size=4), cached_tokens=[0, -1, 4], ttft_ms=[12.25, np.nan, 3.0],
        e2e_ms=[50.0, np.nan, 40.5], queue_ms=[0.0, np.nan, 0.125], session=[0, 0, 1],
    )  # fmt: skip
    return Trace.from_columns(columns, block_size=4)


def put(*rows):
    with open("t.jsonl", "w") as file:
        file.writelines(f"{json.dumps(ROW | row)}\n" for row in rows)
    return "t.jsonl"


def format_of(name):
    return {"bailian.jsonl": "bailian", "agentic.jsonl": "agentic-mooncake", "day/": "dataset"}.get(name)


def same(one, other):
    mine, theirs = measured_of(one), measured_of(other)
    return mine.keys() == theirs.keys() and all(
        np.array_equal(mine[name], theirs[name], equal_nan=name != "cached_tokens") for name in mine
    )


@pytest.mark.parametrize("name", FILES)
@given(trace=measured_traces(unknown_outputs=True))
@settings(max_examples=15, deadline=None)
def test_a_file_gives_its_measured_columns_back(tmp_path_factory, name, trace):
    if name != "t.jsonl" and name.endswith(("parquet", "zst", "/")):
        pytest.importorskip("pyarrow")
    assume(name != "agentic.jsonl" or (trace.input_length > 0).all())  # it has no empty prompts
    path = tmp_path_factory.mktemp("measured") / name
    kvtrace.write(trace, path, format=format_of(name))
    again = kvtrace.read(path)
    assert same(again, trace) and not set(again.extra) & set(MEASURED)
    assert same(kvtrace.read(path, extra="ignore"), trace)
    opened = open_pieces(path).read()
    assert same(opened.result.columns, trace)
    assert set(measured_of(trace)) <= set(opened.fields) and not opened.unknown_columns
    assert differences(opened) == []
    assert kvtrace.formats.check(path) == []


def test_rows_omit_what_is_unknown(folder, trace):
    kvtrace.write(trace, "t.jsonl")
    rows = [json.loads(line) for line in Path("t.jsonl").read_text().splitlines()]
    assert [{name: row[name] for name in MEASURED if name in row} for row in rows] == [
        {"cached_tokens": 0, "ttft_ms": 12.25, "e2e_ms": 50, "queue_ms": 0}, {},
        {"cached_tokens": 4, "ttft_ms": 3, "e2e_ms": 40.5, "queue_ms": 0.125},
    ]  # fmt: skip
    assert '"ttft_ms": 3,' in Path("t.jsonl").read_text()


def test_keys_of_other_hands_are_read(folder):
    path = put({}, {"cached_tokens": None, "ttft_ms": 1e3}, {"cached_tokens": 4.0, "ttft_ms": 2, "queue_ms": None})
    trace = kvtrace.read(path, block_size=4)
    assert trace.cached_tokens.tolist() == [-1, -1, 4] and trace.cached_tokens.dtype == np.int64
    assert np.array_equal(trace.ttft_ms, [np.nan, 1000.0, 2.0], equal_nan=True)
    assert np.isnan(trace.queue_ms).all() and trace.e2e_ms is None and trace.extra == {}


@pytest.mark.parametrize(
    ("row", "rule", "message"),
    [({"cached_tokens": "4"}, "rows", "cached_tokens is not a whole number of 64 bits."),
     ({"cached_tokens": 0.5}, "rows", "cached_tokens is not a whole number of 64 bits."),
     ({"cached_tokens": True}, "rows", "cached_tokens is not a whole number of 64 bits."),
     ({"cached_tokens": 2**64}, "rows", "cached_tokens is not a whole number of 64 bits."),
     ({"cached_tokens": 5}, "cached_tokens", "cached_tokens is not from 0 to input_length."),
     ({"cached_tokens": -2}, "cached_tokens", "cached_tokens is not from 0 to input_length."),
     ({"ttft_ms": "12"}, "rows", "ttft_ms is not a number."),
     ({"e2e_ms": -0.5}, "e2e_ms", "e2e_ms is negative or longer than 2^53 ms."),
     ({"queue_ms": 1e300}, "queue_ms", "queue_ms is negative or longer than 2^53 ms.")],
)  # fmt: skip
def test_a_wrong_number_names_its_line(folder, row, rule, message):
    path = put({}, row, {"cached_tokens": 1, "ttft_ms": 1, "e2e_ms": 1, "queue_ms": 1})
    assert [(one.line, one.rule, one.message) for one in kvtrace.formats.check(path, block_size=4)] == [
        (2, rule, message)
    ]
    with pytest.raises(InputError) as caught:
        kvtrace.read(path, block_size=4)
    assert str(caught.value) == f"t.jsonl:2: {message}"


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [("cached_tokens", ["1", None, None], "the column cached_tokens does not have numbers."),
     ("cached_tokens", [0.5, None, 1.0], "the column cached_tokens has a number that is not a 64-bit integer."),
     ("ttft_ms", ["1", None, None], "the column ttft_ms does not have numbers.")],
)  # fmt: skip
def test_a_damaged_parquet_column_is_one_line(folder, trace, name, values, message):
    pa = pytest.importorskip("pyarrow")
    table = trace.to_arrow().drop_columns([name]).append_column(name, pa.array(values))
    pa.parquet.write_table(table, "t.parquet")
    with pytest.raises(InputError) as caught:
        kvtrace.read("t.parquet", block_size=4)
    assert str(caught.value) == f"t.parquet: {message}" and caught.value.__context__ is None


def test_parquet_of_other_hands_is_read(folder, trace):
    pa = pytest.importorskip("pyarrow")
    table = trace.to_arrow().drop_columns(["cached_tokens", "ttft_ms", "queue_ms"])
    table = table.append_column("cached_tokens", pa.array([0.0, None, 4.0]))
    table = table.append_column("ttft_ms", pa.array([1, None, 2], type=pa.int32()))
    pa.parquet.write_table(table.append_column("queue_ms", pa.nulls(3)), "t.parquet")
    read = kvtrace.read("t.parquet", block_size=4)
    assert read.cached_tokens.tolist() == [0, -1, 4] and np.isnan(read.queue_ms).all()
    assert np.array_equal(read.ttft_ms, [1, np.nan, 2], equal_nan=True)
    assert table.column("e2e_ms").to_pylist() == [50.0, None, 40.5]


def test_a_data_set_is_read_piece_by_piece_with_them(folder, trace):
    pytest.importorskip("pyarrow")
    kvtrace.write(trace, "day/", format="dataset")
    lazy = LazyTrace(open_dataset("day"), references=1)
    assert same(lazy, trace)
    kvtrace.write(replace_columns(trace, **dict.fromkeys(MEASURED)), "plain/", format="dataset", block_size=4)
    assert analyzing(open_dataset("day")).total > analyzing(open_dataset("plain")).total


def test_steps_of_convert_keep_them(folder, trace):
    kvtrace.write(trace, "t.jsonl")
    done = convert_file("t.jsonl", "out.jsonl", start_ms=1.0)
    assert done.losses == [] and same(kvtrace.read("out.jsonl"), trace[1:])
    with gzip.open("t.jsonl.gz", "wt") as file:
        file.write(Path("t.jsonl").read_text())
    assert same(kvtrace.read("t.jsonl.gz", block_size=4), trace)


@pytest.mark.parametrize("client", TARGETS)
def test_a_client_gets_none_of_them(folder, trace, client):
    kvtrace.write(trace, "t.jsonl")
    bare = replace_columns(trace, **dict.fromkeys(MEASURED))
    kvtrace.write(bare, "bare.jsonl", block_size=4)
    name = "out.csv" if client in ("vidur", "azure", "burstgpt", "libcachesim") else "out.jsonl"
    done = convert_file("t.jsonl", name, to=client)
    assert f"4 measured columns were left out: {NAMES}." in done.losses
    plain = convert_file("bare.jsonl", f"bare-{name}", to=client)
    assert [loss for loss in done.losses if "measured" not in loss] == plain.losses
    assert Path(name).read_bytes() == Path(f"bare-{name}").read_bytes()


def test_sessions_and_agents_name_their_loss(folder, trace):
    assert f"4 measured columns were left out: {NAMES}." in left_out(trace, "weka")
    assert f"4 measured columns were left out: {NAMES}." in dag_of(trace).losses
    for format in ("mooncake", "bailian", "agentic-mooncake", "parquet"):
        assert not [loss for loss in left_out(trace, format) if "measured" in loss]


@pytest.mark.parametrize("format", ["mooncake", "bailian", "agentic-mooncake"])
def test_an_extra_column_does_not_become_a_measured_one(folder, format):
    columns = replace_columns(toy("0"), extra={"ttft_ms": np.array(["soon"], dtype=object)})
    with pytest.raises(UsageError, match="the extra column 'ttft_ms' conflicts with the measured column"):
        writing.write(columns, "t.jsonl", format=format, block_size=1, extra=True)
