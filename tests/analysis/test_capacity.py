"""Capacities as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace import UsageError
from kvtrace.analysis.capacities import MAX_BLOCKS, log_spaced, parse_capacities

UNITS = {"block_size": 512, "working_set": 1000, "kv_bytes_per_token": 1024}


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("1000", [1000]),
        ("1,2 , 3", [1, 2, 3]),
        ("1.5k", [1500]),
        ("2 blocks", [2]),
        ("1kblocks", [1000]),
        ("512tokens", [1]),
        ("1023 tokens", [1]),  # what fits
        ("64ktokens", [125]),
        ("50%", [500]),
        ("200%", [2000]),
        ("1MiB", [2]),
        ("1GB", [1907]),
        ("1gib", [2048]),
    ],
)
def test_blocks_tokens_bytes_and_shares(text, blocks):
    assert parse_capacities(text, **UNITS) == blocks


@pytest.mark.parametrize(
    "text", ["", ",", "many", "-5", "1 parsec", "5%%", "1e9", "0x10", "1k%", "nan", "9" * 400, "1.%"]
)
def test_what_is_no_capacity_is_refused(text):
    with pytest.raises(UsageError, match="is not a capacity"):
        parse_capacities(text, **UNITS)


@pytest.mark.parametrize("text", ["0", "511tokens", "0.01%", "100kB"])
def test_less_than_a_block_is_refused(text):
    with pytest.raises(UsageError, match="less than one block"):
        parse_capacities(text, **UNITS)


def test_more_than_any_cache_is_refused():
    with pytest.raises(UsageError, match=r"more than 281,474,976,710,656 blocks"):
        parse_capacities(str(MAX_BLOCKS + 1), **UNITS)


def test_bytes_need_a_model():
    with pytest.raises(UsageError, match="--model "):
        parse_capacities("24GiB", block_size=512, working_set=1000)


@given(st.integers(1, 10**6), st.integers(1, 10**9), st.integers(1, 60))
def test_auto_rises_and_ends_at_the_working_set(longest, working_set, points):
    longest = min(longest, working_set)
    found = log_spaced(longest, working_set, points)
    assert found == sorted(set(found)) and found[-1] == working_set and len(found) <= max(points, 2)
    assert found[0] == longest or points == 1
