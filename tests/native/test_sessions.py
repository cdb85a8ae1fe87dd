"""The kernels of session trees against their twins, and what they refuse."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace._base.arrays import offsets_of
from kvtrace._native import synthesis
from tests.reference import sessions as slow


def flat(rows):
    """The values of rows, end to end."""
    return np.array([value for row in rows for value in row], dtype=np.int64)


@given(st.data(), st.integers(0, 2**63), st.integers(1, 12), st.integers(1, 4))
def test_a_deal_equals_its_twin(data, seed, slots, cells):
    small = st.integers(-9, 9)
    rows = st.lists(small, min_size=2, max_size=2)
    values = data.draw(st.lists(rows, min_size=slots, max_size=slots))
    targets = data.draw(st.lists(rows, min_size=cells, max_size=cells))
    weights = data.draw(st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), min_size=cells, max_size=cells))
    cell = data.draw(st.lists(st.integers(0, cells - 1), min_size=slots, max_size=slots))
    kind = data.draw(st.lists(st.integers(0, 2), min_size=slots, max_size=slots))
    classes = [[slot for slot in range(slots) if kind[slot] == number] for number in range(3)]
    item = np.arange(slots)
    synthesis.deal(values, targets, weights, cell, item, flat(classes), offsets_of([*map(len, classes)]), seed, 30)
    assert item.tolist() == slow.deal(values, targets, weights, cell, range(slots), classes, seed, 30)
    assert sorted(item.tolist()) == list(range(slots))
    assert all(kind[slot] == kind[number] for slot, number in enumerate(item.tolist()))


chains = st.lists(st.lists(st.integers(-40, 40), max_size=6), min_size=1, max_size=4)


@given(chains, st.integers(1, 20))
def test_contexts_equal_their_twin(nets, least):
    net, starts = flat(nets), offsets_of([*map(len, nets)])
    item, first = np.arange(len(net)), np.full(len(nets), least + 3)
    tokens = synthesis.contexts(starts, first, net, item, least)
    items = [list(range(start, stop)) for start, stop in pairwise(starts.tolist())]
    expected, reordered = slow.contexts(items, first.tolist(), net.tolist(), least)
    assert tokens.tolist() == expected and item.tolist() == flat(reordered).tolist()
    assert tokens.min() >= least


@st.composite
def waits(draw):
    """Rows that wait for earlier rows."""
    rows = draw(st.integers(1, 8))
    base = [draw(st.integers(-1, row - 1)) for row in range(rows)]
    joins = [draw(st.lists(st.integers(0, row - 1), max_size=2)) if row else [] for row in range(rows)]
    numbers = st.lists(st.integers(0, 50), min_size=rows, max_size=rows)
    return (
        base,
        draw(st.lists(st.integers(0, 1), min_size=rows, max_size=rows)),
        draw(numbers),
        draw(numbers),
        draw(numbers),
        joins,
    )


@given(waits())
def test_arrivals_equal_their_twin(drawn):
    base, completion, delay, service, start, joins = drawn
    found = synthesis.arrivals(base, completion, delay, service, start, offsets_of([*map(len, joins)]), flat(joins))
    assert found.tolist() == slow.arrivals(base, completion, delay, service, start, joins)


@given(st.data(), st.integers(1, 8))
def test_paths_equal_their_twin(data, rows):
    lengths = [data.draw(st.integers(0, 6)) for _ in range(rows)]
    source = [data.draw(st.integers(-1, row - 1)) for row in range(rows)]
    root, keep = [], []
    for row in range(rows):
        keep.append(data.draw(st.integers(0, min(lengths[row], lengths[source[row]] if source[row] >= 0 else 6))))
        tree = data.draw(st.integers(0, 2))
        root.append([6 * tree + depth for depth in range(6)] if source[row] < 0 else [])
    found = synthesis.paths(offsets_of(lengths), source, keep, offsets_of([*map(len, root)])[:-1], flat(root), 18)
    expected = slow.paths(lengths, source, keep, root)
    assert found.tolist() == flat(expected).tolist()


@pytest.mark.parametrize(
    ("kernel", "arguments"),
    [
        (synthesis.deal, ([[1.0]], [[1.0]], [[1.0]], [1], np.array([0]), [0], [0, 1], 1, 1)),  # a missing cell
        (synthesis.deal, ([[1.0]], [[1.0]], [[1.0]], [0], np.array([3]), [0], [0, 1], 1, 1)),  # an item
        (synthesis.deal, ([[1.0]], [[1.0, 2.0]], [[1.0]], [0], np.array([0]), [0], [0, 1], 1, 1)),
        (synthesis.contexts, ([0, 2], [1], [1], np.array([0]), 1)),
        (synthesis.contexts, ([0, 1], [1], [1], np.array([1]), 1)),
        (synthesis.arrivals, ([0], [0], [0], [0], [0], [0, 0], [])),  # waits for itself
        (synthesis.arrivals, ([-1], [0], [0], [0], [0], [0, 1], [0])),
        (synthesis.arrivals, ([-1], [0, 1], [0], [0], [0], [0, 0], [])),
        (synthesis.paths, ([0, 2], [0], [1], [0], [], 0)),  # takes blocks of itself
        (synthesis.paths, ([0, 2], [-1], [3], [0], [0, 1, 2], 3)),  # keeps more than it has
        (synthesis.paths, ([0, 2], [-1], [2], [0], [0], 3)),
        (synthesis.paths, ([0, 1, 2], [-1, 0], [0, 1], [0, 0], [], -1)),
    ],
)
def test_what_does_not_fit_is_refused(kernel, arguments):
    with pytest.raises((IndexError, ValueError)):
        kernel(*arguments)
