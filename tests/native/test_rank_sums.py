"""Sums over bins of ranks equal those of their twin."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace._native.recency import add_runs, add_sample
from tests.reference import rank_sums as slow

edges = st.lists(st.integers(1, 60), min_size=1, max_size=8, unique=True).map(sorted)
INTO, WEIGHTS = np.array([2, 0]), np.array([1.0, 0.5])


@st.composite
def runs_of_rows(draw):
    """Runs (row, blocks, rank, depth), and the blocks and tokens of each row."""
    runs, blocks, tokens, block_size = [], [], [], draw(st.integers(1, 4))
    for row in range(draw(st.integers(1, 4))):
        depth, rank = 0, 1
        for count in draw(st.lists(st.integers(1, 9), max_size=3)):
            rank += draw(st.integers(0, 20))
            runs.append((row, count, rank, depth))
            depth, rank = depth + count, rank + count
        blocks.append(depth + draw(st.integers(0, 3)))
        tokens.append(draw(st.integers(0, blocks[-1] * block_size)))
    return runs, blocks, tokens, block_size


def assert_equal(sums, expected):
    found = {i: sums[2, :, i].tolist() for i in range(sums.shape[2]) if sums[2, :, i].any()}
    expected = {i: values for i, values in expected.items() if any(values)}
    assert found.keys() == expected.keys()
    for i, values in expected.items():
        assert found[i] == pytest.approx(values)
    assert sums[0] == pytest.approx(sums[2] / 2) and not sums[1].any()


def columns(runs):
    return np.array(runs, np.int64).reshape(-1, 4).T


@given(runs_of_rows(), edges)
def test_runs_equal_their_twin(case, edges):
    runs, blocks, tokens, block_size = case
    sums = np.zeros((3, 3, len(edges)))
    add_runs(sums, np.array(edges), INTO, WEIGHTS, columns(runs), np.array(blocks), np.array(tokens), block_size)
    assert_equal(sums, slow.add_runs(edges, runs, blocks, tokens, block_size))


@given(runs_of_rows(), edges, st.integers(1, 5), st.data())
def test_samples_equal_their_twin(case, edges, step, data):
    runs, blocks, tokens, block_size = case
    sampled = [sum(run[1] for run in runs if run[0] == row) for row in range(len(blocks))]  # all that are hit
    offsets = np.concatenate([[0], np.cumsum(sampled)])
    depth = [min(i, blocks[row] - 1) for row, count in enumerate(sampled) for i in range(count)]
    skipped = [data.draw(st.integers(0, count)) for count in sampled]
    anchors = [[data.draw(st.integers(0, 30)) for _ in blocks], []]
    for row in range(len(blocks)):  # blocks of the sample that the near list has come before all others
        ranks = [rank + i for run_row, count, rank, index in runs if run_row == row
                 for i in range(count) if index + i >= skipped[row]]  # fmt: skip
        anchors[1].append(data.draw(st.integers(0, min(ranks, default=1) - 1)))
    sums = np.zeros((3, 3, len(edges)))
    hits = add_sample(
        sums, np.array(edges), INTO, WEIGHTS, columns(runs), np.array(skipped), offsets, np.array(depth, np.int64),
        np.array(anchors), np.array(blocks), np.array(tokens), block_size, step,
    )  # fmt: skip
    expected = slow.add_sample(edges, runs, skipped, offsets, depth, anchors, blocks, tokens, block_size, step)
    assert_equal(sums, expected)
    assert hits[:2].sum(axis=1) == pytest.approx(np.sum([[0, 0], *(v[:2] for v in expected.values())], axis=0))


def test_arguments_that_are_not_valid():
    run, one = np.array([[0], [1], [1], [0]]), np.array([1])
    with pytest.raises(ValueError, match="inconsistent"):
        add_runs(np.zeros((1, 3, 2)), one, np.array([0]), np.array([1.0]), run, one, one, 1)
    with pytest.raises(ValueError, match="column"):
        add_runs(np.zeros((1, 3, 1)), one, np.array([1]), np.array([1.0]), run, one, one, 1)
