"""Trace: its five invariants, what is normalised on the way in, and what cutting and joining do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvtrace
from kvtrace.trace.building import TraceBuilder, concat, toy
from kvtrace.trace.columns import Columns, replace_columns
from kvtrace.trace.normalise import normalise
from kvtrace.trace.trace import Trace, first_seen
from tests.strategies import traces


def columns(ids, times=None, lengths=None, **named):
    """Columns at block size 4, full blocks unless lengths are given."""
    blocks = [len(row) for row in ids]
    return Columns(
        np.arange(len(ids)) if times is None else times,
        [4 * n for n in blocks] if lengths is None else lengths,
        np.ones(len(ids)),
        [i for row in ids for i in row],
        np.concatenate([[0], np.cumsum(blocks)]),
        **named,
    )


def made(*args, tail="kept", **named):
    return Trace(**vars(columns(*args, **named)), block_size=4, tail=tail)


def refused(*args, tail="kept", **named):
    with pytest.raises(kvtrace.InputError) as error:
        made(*args, tail=tail, **named)
    return str(error.value)


# -- the invariants ----------------------------------------------------------------------------------------------


def test_a_time_beyond_whole_milliseconds_is_named():
    assert made([[0], [1]], times=[0, 2.0**53]).timestamp[-1] == 2**53
    message = "row 1: the timestamp is more than 2^53 ms (285,000 years) after the first."
    assert refused([[0], [1]], times=[0, 2.0**54]) == message
    assert refused([[0], [1]], times=[0, np.inf]).startswith("row 1: the timestamp is not finite.")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("times", [[-np.inf, 5.0], [-1e308, 1e308]])
def test_times_whose_span_overflows_are_one_line(times):
    with pytest.raises(kvtrace.InputError, match=r"^row \d: the timestamp is not finite\.$"):
        Trace.from_columns(columns([[0], [1]], times=times), block_size=4)


def test_offsets_rise_to_the_number_of_references():
    bad = columns([[0, 1]])
    bad.offsets = np.array([0, 3])
    with pytest.raises(kvtrace.InputError, match="offsets do not ascend from 0 to 2"):
        Trace(**vars(bad), block_size=4)


def test_a_kept_tail_counts_as_a_block():
    assert made([[0, 1]], lengths=[5]).full_blocks.tolist() == [1]
    assert "2 hash_ids for 9 tokens; at block size 4 there should be 3" in refused([[0, 1]], lengths=[9])


def test_a_dropped_tail_does_not():
    assert len(made([[0, 1]], lengths=[11], tail="dropped")) == 1
    assert "2 hash_ids for 7 tokens" in refused([[0, 1]], lengths=[7], tail="dropped")


def test_a_unique_tail_is_shared_by_nobody():
    assert "row 0: its tail block is shared" in refused([[0, 1], [0, 1]], lengths=[6, 6], tail="unique")
    assert made([[0, 1], [0, 2]], lengths=[6, 6], tail="unique").tail == "unique"


def test_times_begin_at_zero_and_never_fall():
    assert "row 2: the timestamp is less than" in refused([[0], [1], [2]], times=[0, 5, 4])
    assert "row 0: the first timestamp is not 0. Use Trace.from_columns" in refused([[0]], times=[7])
    assert "not finite" in refused([[0], [1]], times=[0, np.inf])


def test_ids_are_numbered_by_first_appearance():
    assert "row 1: ids do not count 0, 1, 2" in refused([[0], [2]])
    assert "row 0: ids do not count 0, 1, 2" in refused([[1]])


def test_an_id_after_two_others_loads_but_is_not_chained():
    trace = made([[0, 1], [2, 1]])
    assert not trace.is_chained
    with pytest.raises(kvtrace.InputError, match="do not form a forest"):
        trace.require_chained()
    assert trace.chained().is_chained and trace.chained().hash_ids.tolist() == [0, 1, 2, 3]


def test_lengths_are_not_negative():
    assert "row 1: input_length is negative" in refused([[0], []], lengths=[4, -1])


def test_a_parent_is_an_earlier_row():
    assert "row 0: the parent is not an earlier row" in refused([[0], [1]], parent=[1, -1])


def test_a_column_has_one_value_a_request():
    assert "session has 1 values, but there are 2 requests" in refused([[0], [1]], session=[0])
    assert "extra column 'type' has 1 values" in refused([[0], [1]], extra={"type": np.array(["a"])})


def test_output_blocks_continue_the_chain_after_the_last_full_block():
    #  prompt 0 1, of which 1 is a tail of 2 tokens;  output of 6 tokens: block 2 holds the 2 and 2 more, 3 the rest
    whole = made([[0, 1]], lengths=[6], output_ids=[2], output_offsets=[0, 1])
    assert whole.is_chained
    tree = kvtrace.trace.forest(whole)
    assert tree.parent.tolist() == [-1, 0, 0]
    message = "2 output_hash_ids for 1 tokens after 6; at block size 4 there should be 1"
    assert message in refused([[0, 1]], lengths=[6], output_ids=[2, 3], output_offsets=[0, 2])


def test_a_request_may_have_no_output_blocks():
    assert made([[0], [1]], output_ids=[2], output_offsets=[0, 0, 1]).distinct == 3


def test_arrays_are_read_only_and_the_callers_are_left_alone():
    ids = np.array([0, 1])
    trace = Trace([0.0], [8], [1], ids, [0, 2], block_size=4)
    with pytest.raises(ValueError):
        trace.hash_ids[0] = 5
    ids[0] = 0


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "16"])
def test_a_block_size_is_a_whole_number_from_one(size):
    with pytest.raises(kvtrace.UsageError, match="whole number of tokens"):
        Trace([], [], [], [], [0], block_size=size)


def test_an_empty_trace_is_a_trace():
    trace = Trace([], [], [], [], [0], block_size=4)
    assert len(trace) == 0 and trace.distinct == 0 and trace[:0] == trace


# -- mending -----------------------------------------------------------------------------------------------------


def test_rows_are_sorted_by_time_and_equal_times_keep_their_order():
    normalised, fixes = normalise(columns([[0], [1], [2]], times=[5, 3, 3]))
    assert normalised.timestamp.tolist() == [0, 0, 2] and normalised.hash_ids.tolist() == [0, 1, 2]
    assert (fixes.rows_moved, fixes.first_timestamp) == (2, 3.0)
    assert "2 rows were sorted by time" in str(fixes)


def test_ids_of_any_size_are_renumbered():
    found = columns([[2**63 - 1, -7], [2**63 - 1, 5]])
    normalised, fixes = normalise(found)
    assert normalised.hash_ids.tolist() == [0, 1, 0, 2] and fixes.renumbered


def test_unsigned_64_bit_hashes_keep_their_bits():
    found = Columns([0.0], [8], [1], np.array([2**64 - 1, 2**63], dtype=np.uint64), [0, 2])
    assert normalise(found)[0].hash_ids.tolist() == [0, 1]


def test_a_fraction_is_no_id():
    with pytest.raises(kvtrace.InputError, match="fraction"):
        Columns([0.0], [8], [1], [0.5, 1], [0, 2])


def test_parents_follow_their_rows_and_dangling_ones_become_roots():
    #  rows at 2, 0, 1; the first follows the second, the third follows the first, which comes after it
    normalised, fixes = normalise(columns([[0], [1], [2]], times=[2, 0, 1], parent=[1, -1, 0]))
    assert normalised.parent.tolist() == [-1, -1, 0] and fixes.dangling_parents == 1


@given(traces(unknown_outputs=True))
def test_mending_a_trace_changes_nothing(trace):
    again, fixes = normalise(trace)
    assert str(fixes) == ""
    assert Trace(**vars(replace_columns(again)), block_size=trace.block_size) == trace


# -- cutting and joining -----------------------------------------------------------------------------------------


def test_a_slice_is_a_trace_of_its_own():
    trace = made([[0, 1], [0, 2], [0, 2, 3]], times=[0, 10, 15], session=[4, 5, 5], parent=[-1, 0, 1])
    part = trace[1:]
    assert part.hash_ids.tolist() == [0, 1, 0, 1, 2]
    assert part.timestamp.tolist() == [0, 5]
    assert part.session.tolist() == [0, 0] and part.parent.tolist() == [-1, 0]


def test_rows_are_selected_by_number_or_mask_in_time_order():
    trace = toy("0", "1", "2", "3")
    assert trace[[2, 0]] == trace[[0, 2]] == trace[np.array([True, False, True, False])]
    assert trace[[-1]].timestamp.tolist() == [0]
    assert trace.window(1, 3) == trace[1:3]


@pytest.mark.parametrize("rows", [[9], [0, 0], [0.5], [-9], np.array([True])])
def test_a_selection_that_makes_no_sense_is_refused(rows):
    with pytest.raises(kvtrace.UsageError):
        toy("0", "1")[rows]


@given(traces(unknown_outputs=True), st.data())
def test_selecting_everything_changes_nothing_and_twice_is_once(trace, data):
    assert trace[:] == Trace.from_columns(trace, block_size=trace.block_size)
    rows = data.draw(st.lists(st.integers(0, len(trace) - 1), unique=True))
    again = data.draw(st.lists(st.integers(0, len(rows) - 1), unique=True)) if rows else []
    assert trace[rows][again] == trace[np.sort(rows).astype(int)[np.array(again, dtype=int)]]


@given(traces(unknown_outputs=True), st.integers(0, 12))
def test_cut_in_two_and_joined_with_shared_ids_is_the_same_sharing(trace, at):
    builder = TraceBuilder()
    rows = np.arange(len(trace))
    for part in (rows[:at], rows[at:]):
        piece = trace.take(part)
        piece.parent = None if trace.parent is None else trace.parent[part]
        builder.add(piece)
    assert builder.finish(block_size=trace.block_size) == trace


@given(traces(unknown_outputs=True), traces())
def test_concatenation_keeps_ids_disjoint(a, b):
    if a.block_size != b.block_size:
        with pytest.raises(kvtrace.UsageError, match="different block sizes"):
            concat([a, b])
        return
    both = concat([a, b])
    assert (len(both), both.distinct) == (len(a) + len(b), a.distinct + b.distinct)
    assert np.array_equal(both[: len(a)].hash_ids, a.hash_ids)


def test_concatenation_in_time_and_with_shared_ids():
    a, b = toy("0 1", "0 2", gap_ms=10), toy("0 1")
    assert concat([a, b], gap_ms=5).timestamp.tolist() == [0, 10, 15]
    assert concat([a, b], overlay=True).timestamp.tolist() == [0, 0, 10]
    assert concat([a, b], shared=True).distinct == 3


def test_a_column_that_one_trace_lacks_is_filled():
    a = made([[0]], session=[0], parent=[-1], extra={"type": np.array(["text"], dtype=object), "n": np.array([1])})
    both = concat([a, made([[0]])])
    assert both.session.tolist() == [0, -1] and both.extra["type"].tolist() == ["text", None]
    assert both.extra["n"].tolist() == [1, None]


def test_nothing_to_concatenate():
    with pytest.raises(kvtrace.UsageError, match="at least one trace"):
        concat([])


@given(traces(unknown_outputs=True))
def test_chaining_a_forest_changes_nothing_and_of_anything_gives_a_forest(trace):
    assert trace.chained() is trace
    loose = replace_columns(trace)
    loose.hash_ids = loose.hash_ids % 3
    loose.output_ids = None if loose.output_ids is None else loose.output_ids % 3
    assert Trace.from_columns(loose, block_size=trace.block_size).chained().is_chained


@given(traces(outputs=False, unknown_outputs=True))
def test_first_seen_marks_each_block_once(trace):
    assert first_seen(trace).sum() == trace.distinct


def test_equality_is_of_columns_block_size_and_tail():
    assert toy("0 1") == toy("0 1") and toy("0 1") != toy("0", "1") and toy("0 1") != toy("0 1", block_size=2)
    assert toy("0") != "a trace" and "Trace(1 requests, 1 blocks" in repr(toy("0"))
