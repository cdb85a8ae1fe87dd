"""Forests that grow by attachment: the kernel and its twin, and what a path attaches to."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace._native.growth import Growth
from tests.conftest import drawn
from tests.reference import growth as slow

GRID = [1.0, 2.0, 3.0, 4.0, 5.0, 6.5, 8.0, 10.0, 12.0, 14.0, 17.0, 20.0, 25.0, 30.0, 35.0, 40.0]
ONES = [1.0] * 16


@st.composite
def rows(draw):
    """Records of random requests, block size 4."""
    hits = draw(st.integers(0, 5))
    whole = hits > 0 and draw(st.booleans())
    kind = draw(st.integers(0, 17))
    shallow, deep = max(hits - draw(st.integers(0, 2)), min(hits, 1)), min(hits + draw(st.integers(0, 2)), 6)
    length = hits if whole else hits + draw(st.integers(1, 4))
    tail = 4 if whole and kind < 15 else draw(st.integers(1, 4))
    distance, fork = draw(st.integers(0, 30)), draw(st.integers(0, max(0, hits - 1)))
    fork_distance = draw(st.integers(0, distance))
    return hits, shallow, deep, length, distance, fork, fork_distance, kind, tail, draw(st.integers(0, 1))


efforts = st.sampled_from([(1, 24, 3, 0), (3, 2, 1, 0.5), (16, 24, 3, 0.3), (4, 5, 2, 1), (2, 1, 1, 0.5)])
corrections = st.sampled_from([ONES, [1.0, 1.5] * 8])


@settings(max_examples=drawn(200))
@given(
    st.lists(st.lists(rows(), min_size=1, max_size=6), min_size=1, max_size=8), st.sampled_from([3, 10, 1000]),
    st.booleans(), corrections, st.tuples(efforts, efforts, st.sampled_from([(0, 0), (500, 2000)])),
)  # fmt: skip
def test_the_growth_equals_its_twin(windows, horizon, counts_partial, correction, efforts):
    fast = Growth(6, horizon, 4, GRID, correction, counts_partial, *efforts)
    twin = slow.Growth(6, horizon, 4, GRID, correction, counts_partial, *efforts)
    wanted, first = [], 0
    for records in windows:
        wanted += [(*row, first + place) for *row, place in twin.grow(records)]
        first += len(records)
    columns = np.array([[*record, number] for number, records in enumerate(windows) for record in records])
    blocks, tail, session, parent, order = fast.grow(*columns.T)
    assert order.tolist() == [row[-1] for row in wanted]
    assert blocks.tolist() == [block for path, *_ in wanted for block in path]
    assert list(zip(tail, session, parent, strict=True)) == [tuple(rest[:-1]) for _, *rest in wanted]


def grown(*records, horizon=1000, forest=None):
    """Paths and tails of rows given as (hits, length, distance, kind, tail), at block size 4."""
    forest, found = forest or Growth(8, horizon, 4, GRID, ONES), []
    for number, (hits, length, distance, kind, tail) in enumerate(records):
        values = hits, hits, hits, length, distance, 0, 0, kind, tail, 0, number
        blocks, tails, *_ = forest.grow(*([value] for value in values))
        found.append((blocks.tolist(), int(tails[0])))
    return found


def test_a_path_attaches_to_the_block_of_the_nearest_distance():
    three = [(0, 1, 0, 0, 4)] * 3  # three roots, with 2, 1 and 0 blocks used since
    assert [grown(*three, (1, 2, distance, 0, 4))[-1][0] for distance in (2, 1, 0)] == [[0, 3], [1, 3], [2, 3]]


def test_a_path_attaches_at_the_wanted_depth_or_above():
    assert grown((0, 2, 0, 0, 4), (2, 4, 0, 0, 4))[-1][0] == [0, 1, 2, 3]
    assert grown((0, 1, 0, 0, 4), (2, 4, 0, 0, 4))[-1][0] == [0, 1, 2, 3]  # there is no depth 2: one block is shared
    assert grown((2, 4, 0, 0, 4))[-1][0] == [0, 1, 2, 3]  # nothing is there at all


def test_nothing_follows_a_partial_block():
    assert grown((0, 2, 0, 0, 3), (2, 3, 0, 0, 4))[-1][0] == [0, 2, 3]


def test_a_request_that_was_seen_whole_has_the_tail_of_the_other():
    assert grown((0, 2, 0, 0, 3), (2, 2, 0, 15, 1))[-1] == ([0, 1], 3)


def test_a_whole_request_attaches_to_a_partial_block_of_about_its_size():
    two = (0, 1, 0, 0, 1), (0, 1, 0, 0, 3)
    assert [grown(*two, (1, 1, 0, 15, tail))[-1] for tail in (1, 3)] == [([0], 1), ([1], 3)]


def test_what_is_beyond_the_horizon_is_forgotten():
    two = (0, 1, 0, 0, 4), (0, 3, 0, 0, 4)
    assert grown(*two, (1, 2, 3, 0, 4), horizon=3)[-1][0] == [0, 4]
    assert grown(*two, (1, 2, 3, 0, 4), horizon=2)[-1][0] == [1, 4]


def test_memory_is_bounded_by_the_horizon():
    forest, rows = Growth(1, 500, 4, GRID, ONES), 2000
    zero, one = np.zeros(rows), np.ones(rows)
    for _ in range(20):
        forest.grow(zero, zero, zero, 4 * one, zero, zero, zero, zero, one, zero, np.arange(rows))
    assert forest.remembered < 5000  # of 160,000


def test_hits_that_no_block_gives_are_asked_of_the_next_rows():
    one, ask = (0, 2, 0, 0, 4), (1, 2, 30, 0, 4)  # the record asks for an old block
    paths = [path for path, _ in grown(*[one] * 3, *[ask] * 3)]
    assert paths[3][0] == 0  # the oldest there is, and too recent: it hits at capacities that the record does not
    assert len({path[0] for path in paths[3:]}) > 1  # so the following rows ask for fewer hits


def test_the_row_that_fits_best_goes_first_in_its_window_if_hits_are_lacking():
    forest = Growth(8, 1000, 4, GRID, ONES)
    columns = np.array([  # hits, shallow, deep, length, distance, fork, fork distance, kind, tail, continues, window
        (1, 1, 1, 3, 0, 0, 0, 0, 4, 0, 0), (5, 5, 5, 6, 0, 0, 0, 0, 4, 0, 1), (3, 3, 3, 5, 0, 0, 0, 0, 4, 0, 1),
    ])  # fmt: skip
    *_, order = forest.grow(*columns.T)
    assert order.tolist() == [0, 2, 1]  # five blocks to share are there once the path of five was drawn
