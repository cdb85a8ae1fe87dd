"""The tree method and the multipliers: datagen README's example, laws, and kernels equal to their twins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvtrace
from kvtrace._native import synthesis as stretch_kernel
from kvtrace._native import synthesis as tree_kernel
from kvtrace.synthesis.draft import Draft, StretchState, scaled, stretched
from kvtrace.synthesis.tree import TreeStream, fit_tree
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace
from tests.reference import stretch as slow_stretch
from tests.reference import tree as slow_tree
from tests.strategies import traces

#  datagen README's prompts: 0 1 2 are the core, what is in brackets there is a prompt's own
FOUNDING = ("0 1 2 3", "0 1", "0 1 2", "0 4 5")


def stream(trace, seed=0, **limits):
    return TreeStream(fit_tree(trace), np.random.SeedSequence(seed), **limits)


def paths_of(draft):
    return [part.tolist() for part in np.split(draft.blocks, draft.offsets[1:-1])]


def draft_of(paths, tails):
    """A draft of paths; what else it holds does not matter to a stretch."""
    offsets = np.cumsum([0] + [len(path) for path in paths])
    blocks = np.array([block for path in paths for block in path], dtype=np.int32)
    none = np.full(len(paths), -1)
    return Draft(np.arange(len(paths), dtype=float), offsets, blocks, np.array(tails), none + 2, none, none)


def core_of(draft):
    return np.bincount(draft.blocks, minlength=1) >= 2


class Copies:
    """In place of random numbers: the copy that each row takes, of two."""

    def __init__(self, *copies):
        self.copies = copies

    def random(self, rows):
        assert rows == len(self.copies)
        return np.array(self.copies) / 2


def by_first_appearance(paths):
    number = {}
    return [[number.setdefault(block, len(number)) for block in path] for path in paths]


# -- the core tree -----------------------------------------------------------------------------------------------


def test_the_datagen_readme_core_has_the_visits_that_its_prompts_pay():
    #  root -4-> 0 -3-> 1 -2-> 2;  [4 5] leaves after 0, [3] after 2;  one prompt ends with 1, one with 2
    tree = fit_tree(toy(*FOUNDING))
    assert tree.visits.tolist() == [4, 4, 3, 2]
    assert tree.leaves.tolist() == [0, 1, 0, 1] and tree.ends.tolist() == [0, 0, 1, 1]
    assert tree.own_blocks.tolist() == [1, 2]


def test_blocks_that_the_same_prompts_visit_are_one_node():
    #  0 1 2 are visited by both: one node of three blocks
    tree = fit_tree(toy("0 1 2 3", "0 1 2 4 5"))
    assert tree.parent.tolist() == [-1, 0] and tree.length.tolist() == [0, 3]


@given(traces())
def test_the_tree_is_the_one_that_dictionaries_hold(trace):
    prompts = [trace.prompt(row).tolist() for row in range(len(trace))]
    if trace.input_length.sum() == 0:
        return
    tree = fit_tree(trace)
    shared, left = slow_tree.core([prompt for prompt in prompts if prompt])
    nodes = slow_tree.contracted(shared)
    ends_at = {(): 0} | dict(zip(_in_the_trees_order(nodes), range(1, len(nodes) + 1), strict=True))
    for prefix, node in ends_at.items():
        own = left.get(prefix, [])
        assert (tree.ends[node], tree.leaves[node]) == (own.count(0), len(own) - own.count(0))
        if prefix:
            before, blocks = nodes[prefix]
            assert tree.parent[node] == ends_at[before] and tree.length[node] == blocks
            assert tree.visits[node] == shared[prefix]
    assert tree.own_blocks.tolist() == sorted(blocks for own in left.values() for blocks in own if blocks)


def _in_the_trees_order(nodes):
    """The slow nodes by the ids of their first blocks."""
    return sorted(nodes, key=lambda prefix: prefix[len(nodes[prefix][0])])


@given(traces(), st.integers(0, 9))
def test_every_draft_is_a_trace(trace, seed):
    if trace.input_length.sum() == 0:
        return
    (draft,) = stream(trace, seed).chunks(50)
    columns = Columns(
        draft.arrival, draft.input_length(trace.block_size), draft.output_length, draft.blocks, draft.offsets
    )
    assert len(columns) == 50 and (draft.tail >= 1).all() and (draft.tail <= trace.block_size).all()
    made = Trace(
        columns.timestamp, columns.input_length, columns.output_length, columns.hash_ids, columns.offsets,
        block_size=trace.block_size,
    )  # fmt: skip
    assert made.is_chained
    assert draft.input_length(trace.block_size).min() >= fit_tree(trace).smallest
    size = {}  # a block stands for one number of tokens
    for path, tail in zip(paths_of(draft), draft.tail.tolist(), strict=True):
        for block in path[:-1]:
            assert size.setdefault(block, trace.block_size) == trace.block_size
        assert size.setdefault(path[-1], tail) == tail


@given(traces())
def test_means_of_prompts_are_those_of_the_trace_in_expectation(trace):
    """Not of a sample: what a walk is worth on average, from the tree's own weights."""
    used = trace.input_length > 0
    if not used.any():
        return
    tree, size = fit_tree(trace), trace.block_size
    tokens = (tree.ends * ((tree.depth - 1) * size + tree.tokens)).sum() + (tree.leaves * tree.depth * size).sum()
    if tree.leaves.sum():
        tokens += tree.leaves.sum() * ((tree.own_blocks.mean() - 1) * size + tree.last_tokens.mean())
    assert tokens / tree.rows == pytest.approx(trace.input_length[used].mean())


def test_a_request_that_ends_on_a_shared_partial_block_keeps_it():
    #  blocks of four; both prompts are six tokens and share their tail of two: so is every prompt of the sample
    trace = Trace.from_columns(Columns([0.0, 1.0], [6, 6], [1, 1], [0, 1, 0, 1], [0, 2, 4]), block_size=4)
    (draft,) = stream(trace).chunks(20)
    assert set(draft.input_length(4).tolist()) == {6}


def test_a_partial_block_of_two_sizes_is_each_prompts_own():
    #  block 1 ends a prompt of six tokens and one of seven: only block 0 can be shared
    trace = Trace.from_columns(Columns([0.0, 1.0], [6, 7], [1, 1], [0, 1, 0, 1], [0, 2, 4]), block_size=4)
    tree = fit_tree(trace)
    assert tree.visits.tolist() == [2, 2] and tree.last_tokens.tolist() == [2, 3]


def test_a_partial_block_that_others_fill_is_shared_by_those_alone():
    #  blocks of four; block 1 is full for prompts of eight and ten tokens, and ends one of six: that one leaves after 0
    columns = Columns([0.0, 1.0, 2.0], [8, 10, 6], [1, 1, 1], [0, 1, 0, 1, 2, 0, 1], [0, 2, 5, 7])
    tree = fit_tree(Trace.from_columns(columns, block_size=4))
    assert tree.tokens.tolist() == [4, 4, 4] and tree.visits.tolist() == [3, 3, 2]
    assert tree.ends.tolist() == [0, 0, 1] and tree.leaves.tolist() == [0, 1, 1]
    assert tree.own_blocks.tolist() == [1, 1] and tree.last_tokens.tolist() == [2, 2]


def test_dropped_tails_are_a_prompts_own():
    #  blocks of four, tails dropped: six tokens are block 0 and two tokens more, in a block of its own
    trace = Trace.from_columns(
        Columns([0.0, 1.0], [6, 4], [1, 1], [0, 0], [0, 1, 2]), block_size=4, tail="dropped"
    )  # fmt: skip
    tree = fit_tree(trace)
    assert (tree.own_blocks.tolist(), tree.last_tokens.tolist(), tree.smallest) == ([1], [2], 4)


def test_nothing_to_fit_is_said():
    for trace in (Trace.from_columns(Columns([], [], [], [], [0]), block_size=1), toy("", "")):
        with pytest.raises(kvtrace.InputError, match="has no prompts"):
            fit_tree(trace)


# -- the stream --------------------------------------------------------------------------------------------------


@given(st.integers(1, 400), st.integers(0, 5))
def test_rows_do_not_depend_on_how_many_are_asked_for_at_a_time(size, seed):
    def limit(tokens):
        return tokens > 1

    trace = toy(*FOUNDING, gap_ms=3.0)
    (whole,) = stream(trace, seed, accept=limit).chunks(400)
    parts = list(stream(trace, seed, accept=limit).chunks(400, size))
    assert [path for part in parts for path in paths_of(part)] == paths_of(whole)
    for name in ("arrival", "tail", "output_length"):
        assert np.array_equal(np.concatenate([getattr(part, name) for part in parts]), getattr(whole, name))


def test_chunks_go_on_where_they_stopped():
    (whole,) = stream(toy(*FOUNDING)).chunks(30)
    twice = stream(toy(*FOUNDING))
    (first,), (second,) = twice.chunks(15), twice.chunks(15)
    assert paths_of(first) + paths_of(second) == paths_of(whole)
    assert [*first.arrival, *second.arrival] == whole.arrival.tolist()


def test_refused_walks_are_walked_again_and_arrivals_do_not_wait():
    free, limited = (next(stream(toy(*FOUNDING), accept=accept).chunks(200)) for accept in (None, lambda n: n >= 3))
    assert free.input_length(1).min() == 2 and limited.input_length(1).min() == 3
    assert np.array_equal(free.arrival, limited.arrival)


def test_a_limit_that_nothing_meets_ends():
    with pytest.raises(kvtrace.InputError, match="100 prompts in a row were outside the limits"):
        list(stream(toy(*FOUNDING), accept=lambda n: n > 9, max_rejections=100).chunks(1))


def test_rejections_are_counted_in_a_row_over_batches_of_walks():
    def from_the_third_batch_on():  # 65,536 walks are shown at a time
        shown = iter([False, False, True])
        return lambda tokens: np.full(len(tokens), next(shown))

    with pytest.raises(kvtrace.InputError, match="131,071 prompts in a row"):
        list(stream(toy(*FOUNDING), accept=from_the_third_batch_on(), max_rejections=131_071).chunks(1))
    (draft,) = stream(toy(*FOUNDING), accept=from_the_third_batch_on(), max_rejections=131_072).chunks(1)
    assert len(draft) == 1


def test_draws_are_independent_of_each_other(shared):
    """datagen's leaf lengths and remainders shared a random stream, and correlated 0.90."""
    (draft,) = stream(kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")).chunks(60_000)
    fresh = draft.tail < 512
    for other in (draft.path_blocks, draft.output_length):
        assert abs(np.corrcoef(draft.tail[fresh], other[fresh])[0, 1]) < 0.02


def test_one_time_for_all_is_one_time_for_all():
    (draft,) = stream(toy("0 1", "0 2", gap_ms=0.0)).chunks(10)
    assert draft.arrival.tolist() == [0.0] * 10


@pytest.mark.parametrize("seed", [0, 1])
def test_half_a_million_requests_keep_the_means(shared, seed):
    """The datagen README's own test."""
    trace = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")
    drafts = list(stream(trace, seed).chunks(500_000))
    tokens = np.concatenate([draft.input_length(512) for draft in drafts])
    outputs = np.concatenate([draft.output_length for draft in drafts])
    assert len(tokens) == 500_000
    assert tokens.mean() == pytest.approx(trace.input_length.mean(), rel=0.01)
    assert outputs.mean() == pytest.approx(trace.output_length.mean(), rel=0.01)
    rate, own_rate = 500_000 / drafts[-1].arrival[-1], len(trace) / trace.timestamp[-1]
    assert rate == pytest.approx(own_rate, rel=0.01)
    multiples, own_multiples = (tokens % 512 == 0).mean(), (trace.input_length % 512 == 0).mean()
    assert multiples == pytest.approx(own_multiples, abs=0.002)  # datagen: 10 % of rows


# -- the multipliers ---------------------------------------------------------------------------------------------


def readme_example(**knobs):
    draft = draft_of([[int(word) for word in prompt.split()] for prompt in FOUNDING], [1] * 4)
    return paths_of(stretched(draft, core_of(draft), StretchState(1), **knobs))


def test_prefixes_twice_as_long_are_those_of_the_datagen_readme():
    assert readme_example(prefix_len=2) == [[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5], [0, 1, 7, 8]]


def test_two_roots_are_those_of_the_datagen_readme_by_first_appearance():
    #  its rows 2 and 4 take the other copy, whose ids are greater by 10 there
    theirs = [[0, 1, 2, 3, 4, 5, 6], [10, 11, 12, 13], [0, 1, 2, 3, 4, 5], [10, 11, 14, 15]]
    ours = [[0, 1, 2, 3, 4, 5, 6], [7, 8, 9, 10], [0, 1, 2, 3, 4, 5], [7, 8, 11, 12]]
    assert readme_example(prefix_len=2, roots=2, rng=Copies(0, 1, 0, 1)) == ours == by_first_appearance(theirs)


def test_prompts_of_twice_their_own_length_share_as_much_as_before():
    assert readme_example(prompt_len=2) == [[0, 1, 2, 3, 4], [0, 1], [0, 1, 2], [0, 5, 6, 7, 8]]


def test_a_shared_partial_block_outlives_any_shortening():
    #  blocks of four; both prompts end on block 1, which holds two tokens: 0 keeps one block, the partial one its own
    draft = draft_of([[0, 1], [0, 1]], [2, 2])
    shorter = stretched(draft, core_of(draft), StretchState(4), prefix_len=0.0)
    assert paths_of(shorter) == [[0, 1], [0, 1]] and shorter.tail.tolist() == [2, 2]


@st.composite
def drafts(draw):
    """(draft, block size) of a random trace's rows that have blocks."""
    trace = draw(traces(outputs=False).filter(lambda trace: trace.input_length.sum() > 0))
    rows = [row for row in range(len(trace)) if len(trace.prompt(row))]
    size = trace.block_size
    return draft_of([trace.prompt(row).tolist() for row in rows], (trace.input_length[rows] - 1) % size + 1), size


multipliers = st.one_of(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0]), st.floats(0, 4))


@given(drafts(), multipliers, multipliers, st.integers(1, 3), st.integers(1, 5))
def test_stretches_equal_their_twin_in_chunks_of_any_size(made, prefix_len, prompt_len, roots, size):
    draft, block_size = made
    rng, state, found = np.random.default_rng(3), StretchState(block_size), []
    for start in range(0, len(draft), size):
        rows = range(start, min(start + size, len(draft)))
        part = draft_of([paths_of(draft)[row] for row in rows], draft.tail[rows.start : rows.stop])
        knobs = {"prefix_len": prefix_len, "prompt_len": prompt_len, "roots": roots, "rng": rng}
        found += paths_of(stretched(part, core_of(draft), state, **knobs))
    again = np.random.default_rng(3)
    copies = (again.random(len(draft)) * roots).astype(int).tolist() if roots > 1 else [0] * len(draft)
    assert found == slow_stretch.stretched(
        paths_of(draft), draft.tail.tolist(), core_of(draft), copies,
        block_size=block_size, prefix_len=prefix_len, prompt_len=prompt_len,
    )  # fmt: skip
    assert found == by_first_appearance(found)
    parents = {}
    for path in found:
        assert path, "every path has a block"
        for before, block in zip([-1, *path], path, strict=False):
            assert parents.setdefault(block, before) == before


@given(drafts())
def test_a_stretch_by_one_changes_nothing(made):
    draft, block_size = made
    assert paths_of(stretched(draft, core_of(draft), StretchState(block_size))) == paths_of(draft)


def test_the_numbers_of_core_blocks_outlive_their_chunk_in_a_table_half_empty():
    #  300 prompts of one block, each twice, then 300 others: 600 core blocks, more than half of the first 1,024 slots
    state = StretchState(4)
    for first in (0, 300):
        draft = draft_of([[first + i] for i in range(300)] * 2, [4] * 600)
        assert paths_of(stretched(draft, np.ones(600, dtype=bool), state)) == paths_of(draft)
    assert state.used == 600 and len(state.keys) >= 1_200
    draft = draft_of([[i] for i in range(600)], [4] * 600)
    assert paths_of(stretched(draft, np.ones(600, dtype=bool), state)) == paths_of(draft)


@given(drafts(), multipliers, multipliers, multipliers)
def test_a_larger_multiplier_never_gives_a_shorter_prompt(made, one, other, same):
    draft, block_size = made
    low, high = sorted([one, other])
    for name, fixed in (("prefix_len", "prompt_len"), ("prompt_len", "prefix_len")):
        short, long = (
            stretched(draft, core_of(draft), StretchState(block_size), **{name: by, fixed: same}).input_length(
                block_size
            )
            for by in (low, high)
        )
        assert (short <= long).all()


@given(st.integers(0, 500), st.floats(0, 8))
def test_scaled_counts_are_rounded_halves_up_and_never_lost(blocks, by):
    found = int(scaled(np.array([blocks]), by)[0])
    assert found == slow_stretch.scaled(blocks, by)
    assert blocks == 0 or found == 1 or abs(found - blocks * by) <= 0.5


def test_x1_5_lies_between_x1_and_x2(shared):
    """datagen's x1.5 acted as x2."""
    (draft,) = stream(kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")).chunks(20_000)
    tokens = [
        stretched(draft, core_of(draft), StretchState(512), prefix_len=by).input_length(512).mean()
        for by in (1, 1.5, 2)
    ]
    assert (tokens[1] - tokens[0]) / (tokens[2] - tokens[0]) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"prefix_len": -1}, "prefix length multiplier is -1"),
        ({"prompt_len": float("nan")}, "prompt length multiplier is nan"),
        ({"roots": 0}, "prefix root multiplier is 0"),
        ({"roots": 1.5}, "prefix root multiplier is 1.5"),
    ],
)
def test_a_bad_multiplier_is_said(knobs, said):
    with pytest.raises(kvtrace.UsageError, match=said):
        readme_example(**knobs)


def test_a_stretch_beyond_all_numbers_is_said():
    for by in (1e9, 1e300):
        with pytest.raises(kvtrace.InputError, match="Try smaller multipliers|Try fewer requests"):
            readme_example(prefix_len=by)


# -- kernels -----------------------------------------------------------------------------------------------------


@st.composite
def walks(draw):
    nodes = draw(st.integers(1, 8))
    parent = [-1] + [draw(st.integers(0, node - 1)) for node in range(1, nodes)]
    length = [0] + [draw(st.integers(1, 3)) for _ in range(1, nodes)]
    rows = draw(st.lists(st.tuples(st.integers(0, nodes - 1), st.integers(0, 3)), max_size=12))
    return [row[0] for row in rows], [row[1] for row in rows], parent, length


@given(walks())
def test_paths_through_a_tree_equal_their_twin(walk):
    node, own, parent, length = walk
    first = np.full(len(parent), -1, dtype=np.int32)
    arrays = (np.array(values, dtype=np.int64) for values in (node, own, parent, length))
    blocks, offsets, fresh = tree_kernel.core_paths(*arrays, first, 0)
    found = [blocks[offsets[row] : offsets[row + 1]].tolist() for row in range(len(node))]
    assert found == slow_tree.paths(node, own, parent, length)
    assert fresh == len({block for path in found for block in path})


def test_kernels_refuse_arrays_that_do_not_fit():
    one = np.zeros(1, dtype=np.int32)
    with pytest.raises(IndexError):
        tree_kernel.core_paths(np.array([1]), one, np.array([-1]), one, one, 0)
    with pytest.raises(ValueError):
        tree_kernel.core_paths(one, one, np.array([-1, 0]), one, one, 0)
    with pytest.raises(IndexError):
        stretch_kernel.core_blocks(np.array([1]), np.array([0, 1]), np.array([True]))


@given(st.dictionaries(st.integers(0, 1 << 40), st.integers(0, 99), max_size=30))
def test_a_table_with_more_slots_holds_the_same(held):
    keys, firsts = np.full(64, -1, dtype=np.int64), np.full(64, -1, dtype=np.int32)
    keys[: len(held)], firsts[: len(held)] = list(held), list(held.values())
    keys, firsts = stretch_kernel.moved(keys, firsts, 128)
    assert dict(zip(keys[keys >= 0].tolist(), firsts[keys >= 0].tolist(), strict=True)) == held
