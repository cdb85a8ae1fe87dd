"""Measured columns: kept by every cut and every joint, and held to be what they claim."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace._base.errors import InputError
from kvtrace.trace import convert, fold
from kvtrace.trace.building import TraceBuilder, concat, toy
from kvtrace.trace.columns import MEASURED, NUMBERS, Columns, measured_of, numbers_of, replace_columns, rows_of
from kvtrace.trace.conversion import speed_up
from kvtrace.trace.domains import in_domains
from kvtrace.trace.trace import Trace


def measured_trace(rows=6, block_size=2):
    """Requests of which every second measured number is unknown."""
    trace = toy(*(f"0 {row + 1}" for row in range(rows)), block_size=block_size)
    known = np.arange(rows) % 2 == 0
    columns = replace_columns(
        trace, cached_tokens=np.where(known, np.arange(rows) % 4, -1), ttft_ms=np.where(known, 2.5, np.nan),
        e2e_ms=np.where(known, np.arange(rows) * 10.0, np.nan), queue_ms=np.where(known, np.nan, 0.0),
        service_ms=np.full(rows, 7.0),
    )  # fmt: skip
    return Trace.from_columns(columns, block_size=block_size)


def same(one, other):
    """Whether both have the same measured columns with the same numbers."""
    mine, theirs = numbers_of(one), numbers_of(other)
    return mine.keys() == theirs.keys() and all(
        np.array_equal(mine[name], theirs[name], equal_nan=mine[name].dtype.kind == "f") for name in mine
    )


def test_each_row_of_the_table_is_a_column():
    assert list(MEASURED) == ["cached_tokens", "ttft_ms", "e2e_ms", "queue_ms"]
    assert [name for name in Columns.__dataclass_fields__ if name in NUMBERS] == list(NUMBERS)
    trace = measured_trace()
    assert list(measured_of(trace)) == list(MEASURED) and numbers_of(toy("0")) == {}
    for name, values in numbers_of(trace).items():
        assert values.dtype == NUMBERS[name].dtype and not values.flags.writeable
    assert trace == measured_trace() and trace != replace(trace, ttft_ms=None)
    assert trace != replace(trace, cached_tokens=np.zeros(6))


def replace(trace, **changed):
    return Trace.from_columns(replace_columns(trace, **changed), block_size=trace.block_size)


@given(st.data())
def test_a_cut_keeps_the_numbers_of_its_rows(data):
    trace = measured_trace()
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, 5)))), dtype=np.int64)
    start, stop = sorted(data.draw(st.lists(st.integers(0, 6), min_size=2, max_size=2)))
    for name, values in numbers_of(trace).items():
        assert np.array_equal(getattr(trace[rows], name), values[rows], equal_nan=True)
        assert np.array_equal(getattr(trace.take(rows[::-1]), name), values[rows[::-1]], equal_nan=True)
        assert np.array_equal(getattr(rows_of(trace, start, stop), name), values[start:stop], equal_nan=True)


def test_rows_are_sorted_with_their_numbers():
    columns = Columns([5.0, 0.0], [1, 1], [1, 1], [0, 1], [0, 1, 2], cached_tokens=[1, 0], ttft_ms=[1.5, np.nan])
    trace = Trace.from_columns(columns, block_size=1)
    assert trace.cached_tokens.tolist() == [0, 1] and trace.ttft_ms[1] == 1.5


def test_what_one_part_does_not_have_is_unknown():
    both = concat([measured_trace(), toy("0", block_size=2), replace(measured_trace(), e2e_ms=None)])
    for name, values in numbers_of(both).items():
        known = NUMBERS[name].is_known(values)
        assert values.dtype == NUMBERS[name].dtype and not known[6]
        assert np.array_equal(known[:6], NUMBERS[name].is_known(getattr(measured_trace(), name)))
    assert np.isnan(both.e2e_ms[7:]).all() and both.cached_tokens[7] == 0
    builder = TraceBuilder()
    for start in range(0, 6, 2):
        builder.add(rows_of(measured_trace(), start, start + 2))
    assert same(builder.columns(), measured_trace())


def test_folding_faster_clocks_and_domains_leave_them():
    trace = measured_trace()
    in_two = replace(trace, domain=[0, 1] * 3)
    for other in (fold(trace, 2), speed_up(trace, 4.0), in_domains(in_two), convert(trace, factor=2, ratio=3.0)):
        assert same(trace, other)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [("cached_tokens", [0, 5, -1], "row 1: cached_tokens is not from 0 to input_length."),
     ("cached_tokens", [4, 0, -2], "row 2: cached_tokens is not from 0 to input_length."),
     ("ttft_ms", [0.0, np.nan, -0.5], "row 2: ttft_ms is negative or longer than 2^53 ms."),
     ("e2e_ms", [np.inf, 1.0, 1.0], "row 0: e2e_ms is negative or longer than 2^53 ms."),
     ("queue_ms", [1.0, 1e300, 1.0], "row 1: queue_ms is negative or longer than 2^53 ms."),
     ("queue_ms", [1.0, 2.0], "queue_ms has 2 values, but there are 3 requests."),
     ("cached_tokens", [0.5, 1.0, 1.0], "a column of whole numbers contains a fraction.")],
)  # fmt: skip
def test_a_number_that_cannot_be_is_refused(name, values, message):
    with pytest.raises(InputError) as caught:
        Trace.from_columns(replace_columns(toy("0 1", "0 2", "3 4", block_size=2), **{name: values}), block_size=2)
    assert str(caught.value) == message


def test_all_of_a_prompt_can_be_cached():
    assert replace(toy("0 1"), cached_tokens=[2]).cached_tokens[0] == 2


def test_unknown_numbers_are_null_in_arrow():
    pytest.importorskip("pyarrow")
    table = measured_trace(2).to_arrow()
    assert table.select(list(NUMBERS)).to_pylist() == [
        {"service_ms": 7.0, "cached_tokens": 0, "ttft_ms": 2.5, "e2e_ms": 0.0, "queue_ms": None},
        {"service_ms": 7.0, "cached_tokens": None, "ttft_ms": None, "e2e_ms": None, "queue_ms": 0.0},
    ]
