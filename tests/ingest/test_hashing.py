"""Digests: what must be equal is, what must differ does."""

import numpy as np

from kvtrace.ingest.hashing import BlockHasher, context
from kvtrace.ingest.keys import Key


def hasher(tail="kept", secret=bytes(16), block_size=2):
    return BlockHasher(Key(secret), block_size=block_size, tail=tail)


def digests(hasher, prompt, words="{}"):
    found, _ = hasher.prompts((np.array(prompt, np.uint32), np.array([0, len(prompt)])), hasher.roots([words]))
    return [d.tobytes() for d in found]


def test_another_key_gives_other_digests():
    assert not set(digests(hasher(), [1, 2, 3, 4])) & set(digests(hasher(secret=bytes([1]) * 16), [1, 2, 3, 4]))


def test_another_root_shares_nothing():
    #  the same tokens for another model, adapter or image are other KV
    h = hasher()
    assert not set(digests(h, [1, 2], context(model="a"))) & set(digests(h, [1, 2], context(model="b")))
    assert digests(h, [1, 2], context(model="a", adapter=None)) == digests(h, [1, 2], context(model="a"))


def test_a_partial_block_is_not_a_full_one():
    assert digests(hasher(), [1]) != digests(hasher(), [1, 0])[:1]


def test_only_shared_tails_have_digests():
    assert [len(digests(hasher(tail), [1, 2, 3])) for tail in ("kept", "unique", "dropped")] == [2, 1, 1]


def test_output_blocks_are_those_of_prompt_and_output_together():
    #  prompt 1 2 3 with output 4 5: blocks 12 | 34 | 5;  the next turn's prompt 1 2 3 4 5 6 shares 12 | 34
    h = hasher()
    prompt, roots = (np.array([1, 2, 3], np.uint32), np.array([0, 3])), h.roots(["{}"])
    found = h.prompts(prompt, roots)
    output = (np.array([4, 5], np.uint32), np.array([0, 2]))
    outputs, offsets = h.outputs(prompt, found, output, roots, np.array([True]))
    whole = digests(h, [1, 2, 3, 4, 5])
    assert [d.tobytes() for d in outputs] == whole[1:] and offsets.tolist() == [0, 2]
    assert h.outputs(prompt, found, output, roots, np.array([False]))[1].tolist() == [0, 0]


def test_an_output_after_less_than_a_block_begins_at_the_root():
    h = hasher(block_size=4)
    prompt, roots = (np.array([1], np.uint32), np.array([0, 1])), h.roots(["{}"])
    output = (np.array([2, 3, 4, 5], np.uint32), np.array([0, 4]))
    outputs, _ = h.outputs(prompt, h.prompts(prompt, roots), output, roots, np.array([True]))
    assert [d.tobytes() for d in outputs] == digests(h, [1, 2, 3, 4, 5])


def test_sessions_are_digests_and_none_is_zero():
    found = hasher().sessions(["a", None, "a", "b"])
    assert found[1].tolist() == [0, 0] and (found[0] == found[2]).all() and not (found[0] == found[3]).any()
