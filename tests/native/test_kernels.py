"""Each kernel agrees with its twin in tests/reference/ on random inputs, and with figures worked out elsewhere."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace._native import forest, numbering
from kvtrace._native.numbering import merge_ids
from tests.reference import forest as slow_forest
from tests.reference import ids as slow_ids
from tests.reference import ragged as slow_ragged
from tests.reference import siphash as slow_siphash
from tests.strategies import traces

VECTORS = json.loads((Path(__file__).parents[1] / "vectors/siphash.json").read_text())
int64 = st.integers(-(2**63), 2**63 - 1)


def cut(values, offsets):
    return [list(values[a:b]) for a, b in pairwise(offsets)]


def join(rows, dtype=np.int64):
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return np.array([value for row in rows for value in row], dtype=dtype), offsets


# -- SipHash -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hashed", [numbering.siphash128, slow_siphash.siphash128])
def test_the_official_vectors_pass(hashed):
    # key 00 01 ... 0f, message of n bytes 00 01 ...: the 64 vectors of SipHash's authors
    key = bytes.fromhex(VECTORS["key"])
    assert [hashed(key, bytes(range(n))).hex() for n in range(64)] == VECTORS["digests"]


def test_the_vectors_are_the_published_ones():
    assert VECTORS["digests"][0] == "a3817f04ba25a8e66df67214c7550293"
    assert VECTORS["digests"][15] == "5493e99933b0a8117e08ec0f97cfc3d9"
    assert VECTORS["digests"][63] == "5150d1772f50834a503e069a973fbd7c"


@given(st.binary(min_size=16, max_size=16), st.binary(max_size=300))
def test_siphash_equals_its_twin(key, message):
    assert numbering.siphash128(key, message) == slow_siphash.siphash128(key, message)


@pytest.mark.parametrize("length", [127, 128, 255, 256, 257, 4096])
def test_siphash_equals_its_twin_where_the_length_byte_turns(length):
    message = bytes(n % 251 for n in range(length))
    assert numbering.siphash128(bytes(16), message) == slow_siphash.siphash128(bytes(16), message)


@given(
    st.binary(min_size=16, max_size=16),
    st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=20), min_size=1, max_size=5),
    st.integers(1, 9),
    st.booleans(),
)
def test_chains_equal_their_twin(key, prompts, block_size, tail):
    tokens, offsets = join(prompts, np.uint32)
    roots = [bytes([row]) * 16 for row in range(len(prompts))]
    digests, block_offsets = numbering.chain(
        key, tokens, offsets, np.frombuffer(b"".join(roots), np.uint64), block_size, tail
    )
    found = [[d.tobytes() for d in row] for row in cut(digests, block_offsets)]
    assert found == slow_siphash.chain(key, prompts, roots, block_size, tail)


@pytest.mark.parametrize("case", VECTORS["chains"], ids=lambda case: f"{case['tokens']}-tokens")
def test_chains_at_boundary_lengths_are_as_recorded(case):
    tokens = np.arange(case["tokens"], dtype=np.uint32)
    digests, _ = numbering.chain(
        bytes.fromhex(VECTORS["key"]), tokens, np.array([0, len(tokens)]), np.zeros((1, 2), np.uint64), 16, True
    )
    assert [d.tobytes().hex() for d in digests] == case["digests"]


def test_equal_prefixes_and_only_they_have_equal_digests():
    #  a a b   and   a a c   share two blocks;   b a a   shares none though its blocks' tokens are the same
    tokens = np.array([1, 1, 2, 1, 1, 3, 2, 1, 1], dtype=np.uint32)
    digests, _ = numbering.chain(bytes(16), tokens, np.array([0, 3, 6, 9]), np.zeros((3, 2), np.uint64), 1, True)
    number, _ = slow_ids.renumber([d.tobytes() for d in digests])
    assert number == [0, 1, 2, 0, 1, 3, 4, 5, 6]


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError):
        numbering.chain(bytes(16), np.zeros(3, np.uint32), np.array([0, 4]), np.zeros((1, 2), np.uint64), 2, True)
    with pytest.raises(ValueError):
        numbering.siphash128(b"short", b"")


# -- numbering ---------------------------------------------------------------------------------------------------


@given(st.lists(int64) | st.lists(st.integers(0, 9)))
def test_renumbering_equals_its_twin(values):
    numbered, distinct = numbering.renumber(np.array(values, dtype=np.int64))
    assert (numbered.tolist(), distinct) == slow_ids.renumber(values)


def test_renumbering_grows_past_its_first_table():
    values = np.random.default_rng(1).integers(-(2**62), 2**62, 5000)
    values = np.concatenate([values, values[::-1]])
    assert numbering.renumber(values)[0].tolist() == slow_ids.renumber(values.tolist())[0]


@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**64 - 1)), max_size=400), max_size=4))
def test_the_digest_index_equals_its_twin_across_batches(batches):
    index = numbering.DigestIndex()
    found = [n for batch in batches for n in index.add(np.array(batch, dtype=np.uint64).reshape(-1, 2)).tolist()]
    assert (found, index.distinct) == slow_ids.renumber([digest for batch in batches for digest in batch])


def test_digests_are_found_once_they_were_added():
    index, digests = numbering.DigestIndex(), np.random.default_rng(4).integers(1, 2**63, (3000, 2)).astype(np.uint64)
    added = index.add(digests[:2000])
    found = index.find(np.concatenate([digests[::-1], digests[:1] ^ np.uint64(1)]))
    assert found.tolist() == [-1] * 1000 + added[::-1].tolist() + [-1]
    assert index.distinct == 2000 and (index.digests() == digests[:2000]).all()


def test_the_digest_index_grows_around_fresh_numbers():
    index, digests = numbering.DigestIndex(), np.random.default_rng(2).integers(1, 2**63, (3000, 2)).astype(np.uint64)
    first = index.add(digests[:500])
    fresh = index.fresh(1000)
    rest = index.add(digests[500:])
    assert np.concatenate([first, fresh, rest]).tolist() == list(range(4000))
    assert index.add(digests).tolist() == np.concatenate([first, rest]).tolist()


@given(st.lists(st.integers(0, 9)))
def test_renumbering_in_place_equals_its_twin(values):
    blocks = np.array(values, dtype=np.int32)
    former = numbering.by_first_appearance(blocks, 10)
    assert (blocks.tolist(), len(former)) == slow_ids.renumber(values)
    assert former[blocks].tolist() == values


streams = st.lists(st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=4), min_size=1, max_size=4)


@given(streams, st.data())
def test_merging_streams_equals_its_twin(streams, data):
    order = data.draw(st.permutations(range(sum(len(rows) for rows in streams))))
    chosen = order[: data.draw(st.integers(0, len(order)))]
    parts = [join(rows) for rows in streams]
    merged, offsets = merge_ids(
        [ids.astype(np.int32) for ids, _ in parts], [6] * len(parts), [offsets for _, offsets in parts],
        np.array(chosen, dtype=np.int64),
    )  # fmt: skip
    assert cut(merged.tolist(), offsets) == slow_ids.merge(streams, chosen)


def test_ids_and_rows_that_no_stream_has_are_not_merged():
    one = np.array([0, 1], dtype=np.int32), np.array([0, 2])
    for ids_seen, offsets, order, error in (
        ([0, 2], [0, 2], [0], ValueError), ([-1, 0], [0, 2], [0], ValueError), ([0, 1], [0, 1], [0], ValueError),
        ([0, 1], [0, 3, 2], [0], ValueError), ([0, 1], [0, 2], [2], IndexError), ([0, 1], [0, 2], [-1], IndexError),
    ):  # fmt: skip
        with pytest.raises(error):
            merge_ids([one[0], np.array(ids_seen, np.int32)], [2, 2], [one[1], np.array(offsets)], np.array(order))


@given(st.lists(st.integers(-1, 4)), st.integers(0, 3), st.sampled_from([0, -7, 2**62]))
def test_ids_that_count_on_are_counted_as_by_the_twin(steps, distinct, first):
    ids_seen = [first + step for step in steps]
    assert numbering.count_on(np.array(ids_seen, dtype=np.int64), first, distinct) == slow_ids.count_on(
        ids_seen, first, distinct
    )


# -- ragged rows -------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(int64, max_size=4), min_size=1), st.data())
def test_taking_rows_equals_its_twin(rows, data):
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1)))
    values, offsets = numbering.take(*join(rows), np.array(chosen, dtype=np.int64))
    assert cut(values.tolist(), offsets) == slow_ragged.take(rows, chosen)


@given(st.lists(st.lists(st.integers(-5, 5) | int64, max_size=4), min_size=1), st.sets(st.integers(-5, 5)))
def test_hashes_of_rows_equal_their_twin(rows, skipped):
    values, offsets = join(rows)
    skip = np.isin(values, sorted(skipped)) if skipped else None
    assert numbering.hash_rows(values, offsets, skip).tolist() == slow_ragged.hash_rows(rows, skipped)


def test_a_row_that_is_not_there_is_refused():
    with pytest.raises(IndexError):
        numbering.take(np.array([1]), np.array([0, 1]), np.array([1]))


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 5))))
def test_ranges_equal_their_twin(pairs):
    first, lengths = [start for start, _ in pairs], [length for _, length in pairs]
    assert numbering.ranges(np.array(first), np.array(lengths)).tolist() == slow_ragged.ranges(first, lengths)


# -- the forest --------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(-1, 6), max_size=5), min_size=1, max_size=6), st.data())
def test_walks_equal_their_twins_on_any_ids(prompts, data):
    full = [data.draw(st.integers(0, len(prompt))) for prompt in prompts]
    outputs = data.draw(
        st.none() | st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=len(prompts), max_size=len(prompts))
    )
    arrays = (*join(prompts), np.array(full), *(join(outputs) if outputs is not None else (None, None)))
    assert forest.verify(*arrays) == slow_forest.verify(prompts, full, outputs)


@given(traces())
def test_parents_depths_and_chains_equal_their_twins(trace):
    prompts, full = cut(trace.hash_ids, trace.offsets), trace.full_blocks.tolist()
    outputs = None if trace.output_ids is None else cut(trace.output_ids, trace.output_offsets)
    parent = forest.parents(
        trace.hash_ids, trace.offsets, trace.full_blocks, trace.output_ids, trace.output_offsets, trace.distinct
    )
    assert parent.tolist() == slow_forest.parents(prompts, full, outputs)
    assert forest.depths(parent).tolist() == slow_forest.depths(parent.tolist())
    visits = np.bincount(trace.hash_ids, minlength=trace.distinct)
    assert forest.runs(parent, visits).tolist() == slow_forest.runs(parent.tolist(), visits.tolist())


@given(st.lists(st.lists(st.integers(0, 4), max_size=5), min_size=1, max_size=6), st.data())
def test_chaining_equals_its_twin(prompts, data):
    full = [data.draw(st.integers(0, len(prompt))) for prompt in prompts]
    outputs = data.draw(
        st.none() | st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=len(prompts), max_size=len(prompts))
    )
    chained, chained_outputs = forest.chain(
        *join(prompts), np.array(full), *(join(outputs) if outputs is not None else (None, None)), 5
    )
    slow, slow_outputs = slow_forest.chain(prompts, full, outputs)
    assert chained.tolist() == [i for row in slow for i in row]
    assert outputs is None or chained_outputs.tolist() == [i for row in slow_outputs for i in row]
