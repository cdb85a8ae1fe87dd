"""Dependencies and service times in Parquet and data sets: they come back as they were, piece by piece too."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvtrace
from kvtrace import InputError, Trace
from kvtrace.formats import reading
from kvtrace.formats.dataset import DatasetWriter, open_dataset
from kvtrace.formats.lazy import LazyTrace
from kvtrace.formats.memory_needs import analyzing
from kvtrace.formats.open_pieces import open_pieces
from kvtrace.formats.rewriting import differences
from kvtrace.trace.building import concat, toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.dependencies import Dependencies
from tests.conftest import drawn
from tests.strategies import waiting_traces

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")
STRUCT = {"row": 0, "trigger": "completion", "relation": "sequence", "delay_ms": 250.0}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def pair():
    """A request, and one that starts 250 ms after its end; only the first one's service time is known."""
    waits = Dependencies.of([[], [(0, "completion", "sequence", 250.0)]])
    columns = replace_columns(toy("0", "0 1"), dependencies=waits, service_ms=[40.0, np.nan])
    return Trace.from_columns(columns, block_size=1)


def table_of(trace, **columns):
    """The Arrow table of a trace, with other columns in place of some."""
    table = trace.to_arrow()
    for name, values in columns.items():
        table = table.drop_columns([name]).append_column(name, values)
    return table


@given(waiting_traces(unknown_outputs=True), st.sampled_from(["t.parquet", "t.parquet.zst"]))
@settings(max_examples=drawn(40), deadline=None)
def test_a_parquet_file_keeps_all_columns(tmp_path_factory, trace, name):
    path = tmp_path_factory.mktemp("parquet") / name
    kvtrace.write(trace, path)
    assert kvtrace.read(path) == trace
    opened = open_pieces(path).read()
    assert opened.result.columns.dependencies == trace.dependencies
    assert np.array_equal(opened.fields["service_ms"], trace.service_ms, equal_nan=True)
    assert not opened.unknown_columns and differences(opened) == []


@given(waiting_traces(unknown_outputs=True), st.integers(1, 4), st.integers(1, 40))
@settings(max_examples=drawn(40), deadline=None)
def test_a_data_set_in_parts_keeps_all_columns(tmp_path_factory, trace, rows, references):
    path = tmp_path_factory.mktemp("dataset") / "t.dataset"
    with DatasetWriter(path, block_size=trace.block_size, tail=trace.tail, rows=rows) as writer:
        writer.add(trace)
    assert reading.read(path) == trace == open_dataset(path).trace()
    stream = LazyTrace(open_dataset(path), references=references)
    assert stream.dependencies == trace.dependencies
    assert np.array_equal(stream.service_ms, trace.service_ms, equal_nan=True)
    assert len(trace.dependencies.row) <= open_dataset(path).count_dependencies()


def test_arrow_has_a_list_of_structs_and_no_number_where_a_time_is_unknown(pair):
    table = pair.to_arrow()
    assert table.column("dependencies").to_pylist() == [[], [STRUCT]]
    assert table.column("service_ms").to_pylist() == [40.0, None]


def test_a_trace_without_them_has_no_such_columns(folder):
    kvtrace.write(toy("0"), "t.parquet")
    assert kvtrace.read("t.parquet").dependencies is None
    assert set(pa.parquet.read_schema("t.parquet").names) == {"timestamp", "input_length", "output_length", "hash_ids"}


def test_tables_by_other_writers_are_read(folder, pair):
    column = pa.array([[], [{"delay_ms": 250, "relation": "sequence", "row": 0, "trigger": "completion", "more": 1}]])
    pa.parquet.write_table(table_of(pair, dependencies=column, service_ms=pa.array([40, None])), "t.parquet")
    assert kvtrace.read("t.parquet", block_size=1) == pair


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [("dependencies", [None, [STRUCT]], "does not have a list in every row"),
     ("dependencies", [0, 1], "does not have a list in every row"),
     ("dependencies", [[], [1]], "does not have lists of row, trigger, relation, delay_ms"),
     ("dependencies", [[], [{"row": 0}]], "does not have lists of row, trigger, relation, delay_ms"),
     ("dependencies", [[], [None, STRUCT]], "does not have a number as row in every dependency"),
     ("dependencies", [[], [STRUCT | {"row": 0.5}]], "does not have a number as row in every dependency"),
     ("dependencies", [[], [STRUCT | {"delay_ms": "1"}]], "does not have a number as delay_ms in every dependency"),
     ("dependencies", [[], [STRUCT | {"trigger": 1}]], "does not have a text as trigger in every dependency"),
     ("dependencies", [[], [STRUCT | {"relation": None}]], "does not have a text as relation in every dependency"),
     ("service_ms", ["1", None], "does not have numbers")],
)  # fmt: skip
def test_damaged_columns_are_one_line(folder, pair, column, values, message):
    pa.parquet.write_table(table_of(pair, **{column: pa.array(values)}), "t.parquet")
    for read in (kvtrace.read, lambda path, **_: open_pieces(path).read()):
        with pytest.raises(InputError, match=rf"^t\.parquet: the column {column} {message}\.$"):
            read("t.parquet", block_size=1)


@pytest.mark.parametrize(
    ("values", "message"),
    [([[], [STRUCT | {"row": 7}]], "the request waits for a row that does not exist."),
     ([[], [STRUCT | {"row": -1}]], "the request waits for a row that does not exist."),
     ([[], [STRUCT | {"row": 1}]], "the request waits for itself or for a later row."),
     ([[], [STRUCT | {"delay_ms": -1.0}]], "a delay is negative, not a number, or longer than 2^53 ms."),
     ([[], [STRUCT | {"delay_ms": np.nan}]], "a delay is negative, not a number, or longer than 2^53 ms."),
     ([[], [STRUCT | {"trigger": "end"}]], "the trigger of a dependency is none of dispatch, completion."),
     ([[], [STRUCT | {"relation": ""}]],
      "the relation of a dependency is none of sequence, spawn, join, replay_barrier."),
     ([1.0, -2.0], "the service time is negative or longer than 2^53 ms.")],
)  # fmt: skip
def test_check_and_read_name_the_row(folder, pair, values, message):
    column, rule = ("service_ms", "service times") if "service" in message else ("dependencies", "dependencies")
    pa.parquet.write_table(table_of(pair, **{column: pa.array(values)}), "t.parquet")
    found = kvtrace.formats.check("t.parquet", block_size=1)
    assert [(one.line, one.rule, one.message) for one in found] == [(2, rule, message)]
    with pytest.raises(InputError, match=rf"^t\.parquet:2: {re.escape(message)}$"):
        kvtrace.read("t.parquet", block_size=1)


def test_two_requests_that_wait_for_each_other_are_a_violation(folder, pair):
    column = pa.array([[STRUCT | {"row": 1}], [STRUCT]])
    pa.parquet.write_table(table_of(pair, dependencies=column), "t.parquet")
    assert [one.message for one in kvtrace.formats.check("t.parquet", block_size=1)] == [
        "the request waits for itself or for a later row."
    ]


def test_files_that_are_read_and_concatenated_keep_their_dependencies(folder, pair):
    kvtrace.write(pair, "a.parquet")
    kvtrace.write(pair, "b.dataset")
    for shared in (False, True):
        both = concat([kvtrace.read("a.parquet"), kvtrace.read("b.dataset")], shared=shared)
        assert both.dependencies.row.tolist() == [0, 2] and both.dependencies.request.tolist() == [1, 3]
        assert both[2:].dependencies == pair.dependencies


def test_the_memory_for_dependencies_is_in_the_bound(folder):
    trace = toy(*["0"] * 50)
    waits = Dependencies.of([[(row, "completion", "sequence", 0.0) for row in range(number)] for number in range(50)])
    sizes = []
    for columns in (trace, replace_columns(trace, dependencies=waits)):
        kvtrace.write(Trace.from_columns(columns, block_size=1), "t.dataset")
        sizes.append(analyzing(open_dataset("t.dataset")).total)
    assert sizes[1] - sizes[0] >= 100 * len(waits.row)
