"""The founding document's method: a core tree of shared blocks, a walk down it, and lengths drawn one by one.

Blocks that several prompts hold are the core, contracted to a radix tree whose edges are weighted by visits. A walk
goes from the root to where a request ends or leaves the core, and what it adds there is its own. Lengths, outputs and
arrivals are drawn each by itself, from a random stream of its own, so that no draw depends on another's.

The method keeps means, and the tree; it loses what joins them: which output belongs to which prompt, when a block is
used again, how the rate drifts. `attach` keeps those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .._base.errors import InputError
from .._native import tree as kernel
from ..trace.prefix_forest import Chains, Forest, forest
from ..trace.trace import Trace
from .draft import Draft

TRIES = 1 << 16  # walks that are drawn together, however many rows are asked for at a time
BATCHES = 1 << 14  # arrival times that are drawn together
NUMBERS = 1 << 31  # block numbers that a draft can hold
STREAMS = ("walk", "own_blocks", "last_tokens", "output_length", "batch", "gap_ms")  # of random numbers

Accept = Callable[[np.ndarray], np.ndarray]  # input lengths -> True where a walk may stay


@dataclass(frozen=True, eq=False)
class Tree:
    """A core tree with its weights, and the distributions that are drawn from beside it.

    Node 0 is the root and holds no block; a node's parent has a lower number.
    """

    method = "tree"
    block_size: int
    tail: str  # what the trace's partial blocks are: one of trace.TAILS
    rows: int  # requests that it was fitted on
    duration_ms: float  # from the first of them to the last
    parent: np.ndarray  # node -> the node before it, -1 = none
    length: np.ndarray  # node -> blocks in it
    tokens: np.ndarray  # node -> tokens in its last block
    ends: np.ndarray  # node -> requests that end with it
    leaves: np.ndarray  # node -> requests that leave the core after it, with blocks of their own
    own_blocks: np.ndarray  # what those add, in blocks, one value each, rising
    last_tokens: np.ndarray  # tokens in the last block that they add, one value each, rising
    output_length: np.ndarray  # one value a request, rising
    batch: np.ndarray  # requests of each distinct time, rising
    gap_ms: np.ndarray  # ms from each distinct time to the next, rising

    @cached_property
    def visits(self) -> np.ndarray:
        """Requests that reach each node: the weight of the edge to it."""
        visits = self.ends + self.leaves
        for node in range(len(visits) - 1, 0, -1):
            visits[self.parent[node]] += visits[node]
        return visits

    @cached_property
    def depth(self) -> np.ndarray:
        """Blocks from the root to the end of each node."""
        depth = self.length.copy()
        for node in range(1, len(depth)):
            depth[node] += depth[self.parent[node]]
        return depth

    @property
    def smallest(self) -> int:
        """Tokens of the shortest prompt that a walk can give."""
        ended, left = self.depth[self.ends > 0], self.depth[self.leaves > 0]
        lengths = [*((ended - 1) * self.block_size + self.tokens[self.ends > 0])]
        if len(left):
            lengths.append((left.min() + self.own_blocks[0] - 1) * self.block_size + self.last_tokens[0])
        return int(min(lengths))


def fit_tree(trace: Trace) -> Tree:
    """The core tree of a trace: blocks that two prompts or more hold, and what to draw beside it.

    A prompt that ends on a core block keeps that block's size, partial or not. InputError where the trace has no
    prompts, or its ids form no forest.

    >>> from kvtrace.trace.building import toy
    >>> tree = fit_tree(toy("0 1 2 3", "0 1", "0 1 2", "0 4 5"))
    >>> tree.parent.tolist(), tree.length.tolist()  # the root, then 0, 1 and 2
    ([-1, 0, 1, 2], [0, 1, 1, 1])
    >>> tree.visits.tolist(), tree.ends.tolist(), tree.leaves.tolist()
    ([4, 4, 3, 2], [0, 0, 1, 1], [0, 1, 0, 1])
    >>> tree.own_blocks
    array([1, 2])
    """
    path_blocks, last_tokens = _path_blocks(trace), _last_tokens(trace)
    used = np.flatnonzero(path_blocks > 0)  # an empty prompt has no path
    if not len(used):
        raise InputError("the trace holds no prompts, so there is nothing to fit.")
    visits, length, core_blocks = _shared(trace)
    core, chains = _core(forest(trace).parent, visits, length)
    own = (path_blocks - core_blocks)[used]
    exit_node = _exit_nodes(trace, core_blocks, core, chains)[used]
    nodes = len(chains) + 1
    times, batch = np.unique(trace.timestamp[used], return_counts=True)
    return Tree(
        block_size=trace.block_size, tail=trace.tail, rows=len(used), duration_ms=float(times[-1] - times[0]),
        parent=np.concatenate([[-1], chains.parent + 1]).astype(np.int32),
        length=np.concatenate([[0], chains.blocks]),
        tokens=np.concatenate([[trace.block_size], _tokens_of(length[core], chains)]),
        ends=np.bincount(exit_node[own == 0], minlength=nodes), leaves=np.bincount(exit_node[own > 0], minlength=nodes),
        own_blocks=np.sort(own[own > 0]), last_tokens=np.sort(last_tokens[used][own > 0]),
        output_length=np.sort(trace.output_length[used]),
        batch=np.sort(batch), gap_ms=np.sort(np.diff(times)) if len(times) > 1 else np.zeros(1),
    )  # fmt: skip


class TreeStream:
    """Requests walked down a tree, for as long as they are asked for.

    `accept` is shown the input lengths of walks and says which may stay; the others are walked again, and arrivals do
    not wait for them, so limits on lengths leave the request rate as it is. InputError when more than max_rejections
    walks in a row were refused.

    >>> from kvtrace.trace.building import toy
    >>> tree = fit_tree(toy("0 1 2 3", "0 1", "0 1 2", "0 4 5"))
    >>> [len(draft) for draft in TreeStream(tree, np.random.SeedSequence(7)).chunks(100_000)]
    [65536, 34464]
    """

    def __init__(
        self, tree: Tree, seeds: np.random.SeedSequence, *, accept: Accept | None = None, max_rejections: int = 10_000
    ):
        self._tree, self._accept, self._max_rejections = tree, accept, max_rejections
        # Philox counts: the n-th number of a stream is the same however many are asked for at a time
        self._random = {
            name: np.random.Generator(np.random.Philox(seed))
            for name, seed in zip(STREAMS, seeds.spawn(len(STREAMS)), strict=True)
        }
        self._exits = _exits(tree)
        self._first = np.full(len(tree.parent), -1, dtype=np.int32)  # node -> number of its first block
        self._fresh = 0  # the next new block number
        self._walked, self._arrived = _Cut(self._walks()), _Cut(self._arrivals())

    def chunks(self, rows: int, size: int = TRIES) -> Iterator[Draft]:
        """The next rows as drafts of `size` rows or fewer; the rows are the same for every size."""
        while rows > 0:
            taken = min(rows, size)
            (arrival,) = self._arrived.take(taken)
            node, own, last = self._walked.take(taken)
            yield self._draft(arrival, node, own, last)
            rows -= taken

    def _draft(self, arrival, node, own, last) -> Draft:
        tree = self._tree
        if self._fresh + int((tree.depth[node] + own).sum()) >= NUMBERS:
            raise InputError(f"the sample has more than {NUMBERS:,} distinct blocks. Try fewer requests.")
        blocks, offsets, self._fresh = kernel.paths(node, own, tree.parent, tree.length, self._first, self._fresh)
        none = np.full(len(node), -1, dtype=np.int64)
        return Draft(
            arrival, offsets, blocks, last.astype(np.int32), self._drawn("output_length", len(node)), none, none.copy()
        )

    def _walks(self) -> Iterator[tuple[np.ndarray, ...]]:
        """(node, own blocks, tokens in the last block) of walks that may stay.

        A walk down the weights leaves the tree at a node as often as the trace's requests did: one draw says where.
        """
        tree, nodes, refused = self._tree, len(self._tree.parent), 0
        while True:
            left = self._exits[self._places("walk", TRIES, len(self._exits))]
            node, has_own = left % nodes, left >= nodes
            own, last = np.zeros(TRIES, dtype=np.int64), tree.tokens[node]
            own_blocks, last_tokens = self._drawn("own_blocks", TRIES), self._drawn("last_tokens", TRIES)
            own[has_own], last[has_own] = own_blocks[has_own], last_tokens[has_own]
            if self._accept is None:
                yield node, own, last
                continue
            stays = np.asarray(self._accept((tree.depth[node] + own - 1) * tree.block_size + last), dtype=bool)
            kept, refused, gives_up = _before_giving_up(stays, refused, self._max_rejections)
            yield node[kept], own[kept], last[kept]
            if gives_up:
                raise InputError(
                    f"{self._max_rejections:,} prompts in a row were outside the limits on input length. "
                    "Try wider limits, or more rejections."
                )

    def _arrivals(self) -> Iterator[tuple[np.ndarray, ...]]:
        """(arrival,) of requests, the first at 0."""
        now, is_first = 0.0, True
        while True:
            gaps = self._drawn("gap_ms", BATCHES)
            if is_first:
                gaps[0], is_first = 0.0, False
            times = now + np.cumsum(gaps)
            now = times[-1]
            yield (np.repeat(times, self._drawn("batch", BATCHES)),)

    def _drawn(self, name: str, count: int) -> np.ndarray:
        """So many values of one of the tree's distributions."""
        values = getattr(self._tree, name)
        if not len(values):
            return np.zeros(count, dtype=np.int64)  # no request has blocks of its own: nobody looks
        return values[self._places(name, count, len(values))]

    def _places(self, stream: str, count: int, below: int) -> np.ndarray:
        return (self._random[stream].random(count) * below).astype(np.int64)


class _Cut:
    """Pieces of columns, taken in whatever lengths are asked for."""

    def __init__(self, pieces: Iterator[tuple[np.ndarray, ...]]):
        self._pieces = pieces
        self._rest: list[tuple[np.ndarray, ...]] = []

    def take(self, rows: int) -> tuple[np.ndarray, ...]:
        while (held := sum(len(piece[0]) for piece in self._rest)) < rows:
            self._rest.append(next(self._pieces))
        whole = tuple(np.concatenate(parts) for parts in zip(*self._rest, strict=True))
        self._rest = [tuple(column[rows:] for column in whole)] if held > rows else []
        return tuple(column[:rows] for column in whole)


# -- helpers, in the order of their use --------------------------------------------------------------------------


def _path_blocks(trace) -> np.ndarray:
    """Blocks of each prompt, the partial one included even where the trace drops it."""
    return -(-trace.input_length // trace.block_size)


def _last_tokens(trace) -> np.ndarray:
    """Tokens in the last block of each prompt."""
    return trace.input_length - (_path_blocks(trace) - 1) * trace.block_size


def _shared(trace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(block -> prompts that share it, block -> tokens, row -> leading blocks that are core).

    A partial block is shared by prompts that all end on it with as many tokens. Where a file gives it another size
    elsewhere, it is each such prompt's own, since a block stands for one number of tokens.
    """
    visits = np.bincount(trace.hash_ids, minlength=trace.distinct)
    length = np.full(trace.distinct, trace.block_size, dtype=np.int64)
    rest = trace.input_length % trace.block_size
    rows = np.flatnonzero((rest > 0) & (trace.tail != "dropped"))  # these end on a partial block
    last = trace.hash_ids[trace.offsets[1:][rows] - 1]
    length[last] = rest[rows]
    agree = np.bincount(last[rest[rows] == length[last]], minlength=trace.distinct)
    alone = agree[last] != visits[last]
    length[last[alone]] = trace.block_size
    visits -= np.bincount(last[alone], minlength=trace.distinct)
    # a block is shared by no more prompts than its parent is, so a prompt's core blocks are its first ones
    counted = np.concatenate([[0], np.cumsum(visits[trace.hash_ids] >= 2)])
    core_blocks = counted[trace.offsets[1:]] - counted[trace.offsets[:-1]]
    core_blocks[rows[alone]] -= visits[last[alone]] >= 2
    return visits, length, core_blocks


def _core(parent, visits, length) -> tuple[np.ndarray, Chains]:
    """The core blocks, and the chains that they form as a forest of their own."""
    core = np.flatnonzero(visits >= 2)
    place = np.full(len(parent) + 1, -1, dtype=np.int64)  # block -> place among the core; the last is for no parent
    place[core] = np.arange(len(core))
    return core, Forest(place[parent[core]], visits[core], length[core]).chains


def _exit_nodes(trace, core_blocks, core, chains) -> np.ndarray:
    """The node after which each request ends or leaves the core; 0, the root, where it holds no core block."""
    node = np.zeros(len(trace), dtype=np.int64)
    inside = core_blocks > 0
    deepest = trace.hash_ids[trace.offsets[:-1][inside] + core_blocks[inside] - 1]
    node[inside] = chains.chain[np.searchsorted(core, deepest)] + 1
    return node


def _tokens_of(length, chains) -> np.ndarray:
    """Tokens in the last block of each chain: its smallest, since only a last block is partial."""
    tokens = np.full(len(chains), np.iinfo(np.int64).max)
    np.minimum.at(tokens, chains.chain, length)
    return tokens


def _exits(tree) -> np.ndarray:
    """One value a request of the trace: the node it ended with, or nodes + the node it left the core after."""
    both = np.concatenate([tree.ends, tree.leaves])
    return np.repeat(np.arange(len(both), dtype=np.int32), both)


def _before_giving_up(stays, refused, most) -> tuple[np.ndarray, int, bool]:
    """(places that stay, refusals in a row at the end, True if before that there were more than `most`).

    >>> _before_giving_up(np.array([True, False, False, True]), 0, 1)
    (array([0]), 2, True)
    """
    kept = np.flatnonzero(stays)
    runs = np.diff(kept, prepend=-1, append=len(stays)) - 1  # refusals before each that stays, and after the last
    runs[0] += refused
    too_long = np.flatnonzero(runs > most)
    if len(too_long):
        return kept[: too_long[0]], int(runs[too_long[0]]), True
    return kept, int(runs[-1]), False
