"""The ids of session files: the kernel finds and numbers what its twin does."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvtrace._native.rows import PAD, find_lists, number_ids, number_rows
from tests.reference import ids as slow_ids
from tests.reference import session_ids as slow

TOKENS = [
    b'"hash_ids"', b'"hash_ids":', b'"hash_ids": [', b"[", b"]", b"{", b"}", b",", b":", b" ", b"\n", b"\t", b"0", b"7",
    b"12", b"007", b"-1", b"1.5", b"1e3", b"null", b'"a"', b'"', b"\\", b'\\"', b"[1,2]", b"[ 1 , 2 ]", b"[]",
    b"18446744073709551615", b"18446744073709551616", b"9223372036854775808", b"999999999999999999", b"\xff", b"[1,]",
]  # fmt: skip


def found(text):
    spans, offsets, ids = find_lists(text + bytes(PAD), len(text))
    return [
        (*span, ids[start:stop].tolist())
        for span, start, stop in zip(spans.tolist(), offsets[:-1], offsets[1:], strict=True)
    ]


@given(st.lists(st.sampled_from(TOKENS), max_size=30).map(b"".join))
@example(b'"hash_ids":[1')
@example(b'"hash_ids":[1,2]"hash_ids":[3]')
@example(b'{"a": "\\"hash_ids\\": [1]", "hash_ids" :\n[ 18446744073709551615 ]}')
@example(b'"hash_ids')
@example(b'"hash_ids"\\')
@example(b'"x\\')
def test_the_kernel_finds_the_lists_of_its_twin(text):
    assert found(text) == slow.find_lists(text)


def test_an_id_of_2_to_the_63_keeps_its_bits():
    assert found(b'{"hash_ids": [9223372036854775808]}') == [(13, 34, [-(2**63)])]


@given(st.lists(st.integers(0, 9) | st.integers(-(2**63), 2**63 - 1), max_size=40))
def test_ids_are_numbered_by_first_appearance(values):
    numbers, distinct = number_ids(np.array(values, dtype=np.int64))
    slow, count = slow_ids.renumber(values)
    assert numbers.tolist() == slow and len(distinct) == count and distinct[numbers].tolist() == values


def test_the_room_must_hold_the_ids():
    with pytest.raises(ValueError, match="too small"):
        find_lists(b"[1]" + bytes(PAD), 3, np.empty(1, dtype=np.int64))


def test_the_pad_is_required():
    with pytest.raises(ValueError, match="PAD"):
        find_lists(b"{}", 2)


@given(st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=6), max_size=8))
def test_rows_are_numbered_as_by_the_twin(rows):
    """Session 0 and 1 have keys of their own, in one table for each; session 2 has none."""
    table = {0: 0, 1: 5, 2: 10}
    rows = [[pair for pair in row if pair[0] == row[0][0]] for row in rows if row]  # a row is of one session
    numbers = np.array([key for row in rows for _, key in row], dtype=np.int32)
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    first = np.array([table[row[0][0]] for row in rows], dtype=np.int64)
    ids = number_rows(numbers, starts, lengths, first, np.arange(15), 15)
    assert ids.tolist() == [block for row in slow.number_rows(rows) for block in row]


@pytest.mark.parametrize(
    ("numbers", "starts", "lengths", "first", "keys"),
    [([0], [0], [2], [0], [0]), ([0], [-1], [1], [0], [0]), ([3], [0], [1], [0], [0]), ([0], [0], [1], [0], [9])],
)
def test_values_out_of_range_are_refused(numbers, starts, lengths, first, keys):
    with pytest.raises(ValueError, match="outside"):
        number_rows(np.array(numbers, dtype=np.int32), starts, lengths, first, keys, 2)
