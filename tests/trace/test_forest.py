"""The forest and its radix view, worked out by hand."""

import pytest
from hypothesis import given

import kvtrace
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace
from tests.strategies import traces


def test_a_forest_is_one_array_with_others_beside_it():
    #  0 - 1 - 2        two requests end at 1 and 2, a third has a root of its own
    #  3
    tree = kvtrace.trace.forest(toy("0 1", "0 1 2", "3"))
    assert tree.parent.tolist() == [-1, 0, 1, -1]
    assert tree.visits.tolist() == [2, 2, 1, 1]
    assert tree.depth.tolist() == [1, 2, 3, 1]
    assert tree.roots.tolist() == [0, 3]
    assert tree.children.tolist() == [1, 1, 0, 0]


def test_chains_contract_blocks_with_equal_visits():
    #  0 1 | 2 3 | 4      two requests share 0 1; then 2 3 and 4 are one request's each
    chains = kvtrace.trace.forest(toy("0 1 2 3", "0 1 4")).chains
    assert chains.chain.tolist() == [0, 0, 1, 1, 2]
    assert chains.head.tolist() == [0, 2, 4]
    assert chains.parent.tolist() == [-1, 0, 0]
    assert chains.blocks.tolist() == [2, 2, 1]
    assert chains.visits.tolist() == [2, 1, 1]


def test_the_founding_example_has_three_core_nodes():
    #  the founding document's four lists: 0, 1 and 2 are visited more than once, each by other requests
    tree = kvtrace.trace.forest(toy("0 1 2 3", "0 1", "0 1 2", "0 4 5"))
    assert tree.visits.tolist() == [4, 3, 2, 1, 1, 1]
    assert tree.chains.blocks[tree.chains.visits > 1].tolist() == [1, 1, 1]


def test_a_tail_block_holds_what_is_left():
    trace = Trace([0.0, 1.0], [6, 4], [1, 1], [0, 1, 0], [0, 2, 3], block_size=4)
    assert kvtrace.trace.forest(trace).length.tolist() == [4, 2]


def test_an_unchained_trace_has_no_forest():
    loose = Trace.from_columns(Columns([0.0], [3], [1], [0, 1, 0], [0, 3]), block_size=1)
    with pytest.raises(kvtrace.InputError, match="do not form a forest"):
        kvtrace.trace.forest(loose)


@given(traces(unknown_outputs=True))
def test_parents_come_first_and_lengths_add_up(trace):
    tree = kvtrace.trace.forest(trace)
    assert all(before < block for block, before in enumerate(tree.parent))
    assert tree.length[trace.hash_ids].sum() == trace.input_length.sum()
    assert tree.chains.blocks.sum() == len(tree)
    assert tree.visits.sum() == len(trace.hash_ids)
