"""The forest of a trace's blocks: the array parent[block] and others over blocks; Chains is its radix-tree view."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .._base.results import Result
from .columns import require_trace
from .trace import Trace


@dataclass(frozen=True, eq=False, repr=False)
class Forest(Result):
    """Blocks as a forest; a parent's id is always less than its children's."""

    parent: np.ndarray  # block -> the block before it, -1 = root
    visits: np.ndarray  # block -> prompts that have it
    length: np.ndarray  # block -> tokens: block_size, or fewer for a tail block

    def _headline(self) -> str:
        return f"{len(self):,} blocks, {len(self.roots):,} roots, deepest={int(self.depth.max(initial=0)):,}"

    def _columns(self) -> dict[str, np.ndarray]:
        return {"parent": self.parent, "depth": self.depth, "visits": self.visits, "length": self.length}

    def __len__(self) -> int:
        return len(self.parent)

    @cached_property
    def depth(self) -> np.ndarray:
        """Blocks from the root to each block, including the block."""
        from .._native import forest

        return forest.depths(self.parent)

    @cached_property
    def roots(self) -> np.ndarray:
        """The first blocks of prompts."""
        return np.flatnonzero(self.parent < 0)

    @cached_property
    def children(self) -> np.ndarray:
        """Number of children of each block."""
        return np.bincount(self.parent[self.parent >= 0], minlength=len(self))

    @cached_property
    def chains(self) -> Chains:
        """The radix-tree view: runs of blocks with equal visits as one node."""
        return _chains(self)


@dataclass(frozen=True, eq=False)
class Chains:
    """Runs of blocks that the same requests visit, as the nodes of a radix tree."""

    chain: np.ndarray  # block -> its chain
    head: np.ndarray  # chain -> its first block
    parent: np.ndarray  # chain -> the chain before it, -1 = root
    blocks: np.ndarray  # chain -> blocks in it
    visits: np.ndarray  # chain -> prompts that have it

    def __len__(self) -> int:
        return len(self.head)


def forest(trace: Trace) -> Forest:
    """The forest of a trace's blocks; InputError if its ids do not form one.

    >>> from kvtrace.trace.building import toy
    >>> tree = forest(toy("0 1 2", "0 1 3"))
    >>> tree.parent, tree.visits, tree.depth
    (array([-1,  0,  1,  1]), array([2, 2, 1, 1]), array([1, 2, 3, 3]))
    >>> tree.chains.blocks, tree.chains.parent
    (array([2, 1, 1]), array([-1,  0,  0]))
    """
    from .._native import forest as kernel

    require_trace(trace)
    trace.require_chained()
    parent = kernel.parents(
        trace.hash_ids, trace.offsets, trace.full_blocks, trace.output_ids, trace.output_offsets, trace.distinct
    )
    visits = np.bincount(trace.hash_ids, minlength=trace.distinct)
    return Forest(parent, visits, block_lengths(trace))


def block_lengths(trace: Trace) -> np.ndarray:
    """Tokens of each block: the block size, or fewer for a tail block.

    >>> from kvtrace.trace.columns import Columns
    >>> block_lengths(Trace([0.0], [6], [1], [0, 1], [0, 2], block_size=4))
    array([4, 2])
    """
    length = np.full(trace.distinct, trace.block_size, dtype=np.int64)
    if trace.tail in ("kept", "unique"):
        _shorten(length, trace.hash_ids, trace.offsets, trace.input_length % trace.block_size)
        if trace.output_ids is not None:
            both = trace.input_length + trace.output_length
            _shorten(length, trace.output_ids, trace.output_offsets, both % trace.block_size)
    return length


def _shorten(length, ids, offsets, rest):
    """Set the lengths of the tail blocks: the last block of each row with a partial block."""
    has_tail = (rest > 0) & (np.diff(offsets) > 0)
    length[ids[offsets[1:][has_tail] - 1]] = rest[has_tail]


def _chains(tree: Forest) -> Chains:
    from .._native import forest as kernel

    chain = kernel.runs(tree.parent, tree.visits)
    reached = np.maximum.accumulate(chain)  # chains are numbered in the order of their heads
    head = np.flatnonzero(np.diff(reached, prepend=-1) > 0)
    before = tree.parent[head]
    return Chains(
        chain=chain,
        head=head,
        parent=np.where(before < 0, -1, chain[before]),
        blocks=np.bincount(chain, minlength=len(head)),
        visits=tree.visits[head],
    )
