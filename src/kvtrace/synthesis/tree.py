"""The tree method, as in datagen's README: a core tree of shared blocks, random walks down it, and independent lengths.

The core is the radix tree of blocks that at least two prompts share, with edges weighted by visits. A walk goes from
the root to the node where a request ends or leaves the core, and then adds unique blocks. Lengths, outputs and arrivals
are drawn independently, each from its own random stream.

The method keeps means and the core tree. It does not keep the correlation of input and output lengths, reuse times, or
the drift of the rate; `attach` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .._base.arrays import offsets_of
from .._base.errors import InputError
from .._base.results import Result
from .._base.step_work import report_work
from .._native import synthesis as kernel
from ..trace.building import with_whole_prompts
from ..trace.columns import require_trace
from ..trace.domains import in_domains
from ..trace.prefix_forest import Chains, Forest, forest
from ..trace.trace import Trace
from ..trace.unknown import OUTPUTS, PREFIXES, require_known
from .draft import Draft
from .fidelity import Figures, figures_of

TRIES = 1 << 16  # walks drawn at a time, for any chunk size
BATCHES = 1 << 14  # arrival times drawn at a time
NUMBERS = 1 << 31  # largest number of blocks in a draft
STREAMS = ("walk", "own_blocks", "last_tokens", "output_length", "batch", "gap_ms")  # random streams

Accept = Callable[[np.ndarray], np.ndarray]  # input lengths -> mask of accepted walks


@dataclass(frozen=True, eq=False, repr=False)
class Tree(Result):
    """A core tree with its weights, and the distributions of lengths and arrivals.

    Node 0 is the root and has no blocks. The parent of a node has a lower number.
    """

    method = "tree"
    fidelity = None  # a tree is not saved
    time_step_ms = 1  # times keep milliseconds
    block_size: int
    tail: str  # treatment of partial blocks in the trace: one of trace.TAILS
    rows: int  # fitted requests
    duration_ms: float  # from the first request to the last
    parent: np.ndarray  # node -> parent node, -1 = none
    length: np.ndarray  # node -> blocks in it
    tokens: np.ndarray  # node -> tokens in its last block
    ends: np.ndarray  # node -> requests that end at it
    leaves: np.ndarray  # node -> requests that leave the core after it, with unique blocks
    own_blocks: np.ndarray  # unique blocks of the requests that leave the core, sorted
    last_tokens: np.ndarray  # tokens in the last unique block of these requests, sorted
    output_length: np.ndarray  # of all requests, sorted
    batch: np.ndarray  # requests at each distinct arrival time, sorted
    gap_ms: np.ndarray  # ms between distinct arrival times, sorted
    figures: Figures  # of the trace

    def _headline(self) -> str:
        return f"{self.rows:,} requests, {len(self.parent):,} nodes, block_size={self.block_size}"

    def _columns(self) -> dict[str, np.ndarray]:
        """One row for each node of the core tree."""
        return {name: getattr(self, name) for name in ("parent", "length", "tokens", "ends", "leaves")}

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
        """Tokens of the shortest possible prompt."""
        ended, left = self.depth[self.ends > 0], self.depth[self.leaves > 0]
        lengths = [*((ended - 1) * self.block_size + self.tokens[self.ends > 0])]
        if len(left):
            lengths.append((left.min() + self.own_blocks[0] - 1) * self.block_size + self.last_tokens[0])
        return int(min(lengths))


def fit_tree(trace: Trace) -> Tree:
    """Fit the tree model: the core tree of blocks that at least two prompts share, and the distributions to draw from.

    A prompt that ends on a core block keeps the size of that block, partial or not.

    Raises:
        InputError: The trace has no prompts, or its ids do not form a forest.
        UnknownError: Shared prefixes or output lengths are unknown.

    >>> from kvtrace.trace.building import toy
    >>> tree = fit_tree(toy("0 1 2 3", "0 1", "0 1 2", "0 4 5"))
    >>> tree.parent.tolist(), tree.length.tolist()  # the root, then 0, 1 and 2
    ([-1, 0, 1, 2], [0, 1, 1, 1])
    >>> tree.visits.tolist(), tree.ends.tolist(), tree.leaves.tolist()
    ([4, 4, 3, 2], [0, 0, 1, 1], [0, 1, 0, 1])
    >>> tree.own_blocks
    array([1, 2])
    """
    require_trace(trace)
    require_known(trace, trace.meta, "the model of a trace", PREFIXES, OUTPUTS)
    trace = in_domains(with_whole_prompts(trace))
    path_blocks, last_tokens = _path_blocks(trace), _last_tokens(trace)
    used = np.flatnonzero(path_blocks > 0)  # an empty prompt has no path
    if not len(used):
        raise InputError("the trace has no prompts, so there is nothing to fit.")
    visits, length, core_blocks = _shared(trace)
    report_work(2, 3)
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
        figures=figures_of(trace),
    )  # fmt: skip


class TreeStream:
    """An endless stream of requests from random walks down a tree.

    `accept` marks the accepted walks by their input lengths. Rejected walks are redrawn. Arrivals are independent of
    walks, so limits on lengths do not change the request rate.

    Raises:
        InputError: More than max_rejections walks in a row were rejected.

    >>> from kvtrace.trace.building import toy
    >>> tree = fit_tree(toy("0 1 2 3", "0 1", "0 1 2", "0 4 5"))
    >>> [len(draft) for draft in TreeStream(tree, np.random.SeedSequence(7)).chunks(100_000)]
    [65536, 34464]
    """

    def __init__(
        self, tree: Tree, seeds: np.random.SeedSequence, *, accept: Accept | None = None, max_rejections: int = 10_000
    ):
        self._tree, self._accept, self._max_rejections = tree, accept, max_rejections
        # Philox is counter-based: the n-th number of a stream does not depend on the chunk size
        self._random = {
            name: np.random.Generator(np.random.Philox(seed))
            for name, seed in zip(STREAMS, seeds.spawn(len(STREAMS)), strict=True)
        }
        self._exits = _exits(tree)
        self._first = np.full(len(tree.parent), -1, dtype=np.int32)  # node -> number of its first block
        self._fresh = 0  # the next unused block number
        self._walked, self._arrived = _RowBuffer(self._walks()), _RowBuffer(self._arrivals())

    def chunks(self, rows: int, size: int = TRIES) -> Iterator[Draft]:
        """The next rows as drafts of at most `size` rows. The rows do not depend on the size."""
        while rows > 0:
            count = min(rows, size)
            (arrival,) = self._arrived.take(count)
            node, own, last = self._walked.take(count)
            yield self._draft(arrival, node, own, last)
            rows -= count

    def _draft(self, arrival, node, own, last) -> Draft:
        tree = self._tree
        if self._fresh + int((tree.depth[node] + own).sum()) >= NUMBERS:
            raise InputError(f"the sample has more than {NUMBERS:,} distinct blocks. Try fewer requests.")
        blocks, offsets, self._fresh = kernel.core_paths(node, own, tree.parent, tree.length, self._first, self._fresh)
        none = np.full(len(node), -1, dtype=np.int64)
        return Draft(
            arrival, offsets, blocks, last.astype(np.int32), self._drawn("output_length", len(node)), none, none.copy()
        )

    def _walks(self) -> Iterator[tuple[np.ndarray, ...]]:
        """(node, unique blocks, tokens in the last block) of accepted walks.

        A weighted walk exits at a node as often as the requests of the trace did, so one draw gives the exit node.
        """
        tree, nodes, rejected = self._tree, len(self._tree.parent), 0
        while True:
            left = self._exits[self._random_indices("walk", TRIES, len(self._exits))]
            node, has_own = left % nodes, left >= nodes
            own, last = np.zeros(TRIES, dtype=np.int64), tree.tokens[node]
            own_blocks, last_tokens = self._drawn("own_blocks", TRIES), self._drawn("last_tokens", TRIES)
            own[has_own], last[has_own] = own_blocks[has_own], last_tokens[has_own]
            if self._accept is None:
                yield node, own, last
                continue
            accepted = np.asarray(self._accept((tree.depth[node] + own - 1) * tree.block_size + last), dtype=bool)
            rows, rejected, gives_up = _before_giving_up(accepted, rejected, self._max_rejections)
            yield node[rows], own[rows], last[rows]
            if gives_up:
                raise InputError(
                    f"{self._max_rejections:,} prompts in a row were outside the limits on input length. "
                    "Try wider limits, or a larger --max-rejections."
                )

    def _arrivals(self) -> Iterator[tuple[np.ndarray, ...]]:
        """(arrival,) of requests; the first is 0."""
        now, is_first = 0.0, True
        while True:
            gaps = self._drawn("gap_ms", BATCHES)
            if is_first:
                gaps[0], is_first = 0.0, False
            times = now + np.cumsum(gaps)
            now = times[-1]
            yield (np.repeat(times, self._drawn("batch", BATCHES)),)

    def _drawn(self, name: str, count: int) -> np.ndarray:
        """Draw values from one of the distributions of the tree."""
        values = getattr(self._tree, name)
        if not len(values):
            return np.zeros(count, dtype=np.int64)  # no request has unique blocks, so the values are unused
        return values[self._random_indices(name, count, len(values))]

    def _random_indices(self, stream: str, count: int, below: int) -> np.ndarray:
        return (self._random[stream].random(count) * below).astype(np.int64)


class _RowBuffer:
    """A buffer over chunks of columns, which returns any number of rows."""

    def __init__(self, chunks: Iterator[tuple[np.ndarray, ...]]):
        self._chunks = chunks
        self._rest: list[tuple[np.ndarray, ...]] = []

    def take(self, rows: int) -> tuple[np.ndarray, ...]:
        """The next rows of each column."""
        while (buffered := sum(len(chunk[0]) for chunk in self._rest)) < rows:
            self._rest.append(next(self._chunks))
        whole = tuple(np.concatenate(parts) for parts in zip(*self._rest, strict=True))
        self._rest = [tuple(column[rows:] for column in whole)] if buffered > rows else []
        return tuple(column[:rows] for column in whole)


# -- helpers, in the order of their use --------------------------------------------------------------------------


def _path_blocks(trace) -> np.ndarray:
    """Blocks of each prompt, including a partial block that the trace drops."""
    return -(-trace.input_length // trace.block_size)


def _last_tokens(trace) -> np.ndarray:
    """Tokens in the last block of each prompt."""
    return trace.input_length - (_path_blocks(trace) - 1) * trace.block_size


def _shared(trace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(block -> prompts that share it, block -> tokens, row -> leading blocks that are core).

    A partial block is shared if all prompts with it end on it with the same number of tokens. Otherwise it is unique to
    each of these prompts, because a block has one size.
    """
    visits = np.bincount(trace.hash_ids, minlength=trace.distinct)
    length = np.full(trace.distinct, trace.block_size, dtype=np.int64)
    rest = trace.input_length % trace.block_size
    rows = np.flatnonzero((rest > 0) & (trace.tail != "dropped"))  # rows that end on a partial block
    last = trace.hash_ids[trace.offsets[1:][rows] - 1]
    length[last] = rest[rows]
    agree = np.bincount(last[rest[rows] == length[last]], minlength=trace.distinct)
    alone = agree[last] != visits[last]
    length[last[alone]] = trace.block_size
    visits -= np.bincount(last[alone], minlength=trace.distinct)
    # a block has at most as many visits as its parent, so the core blocks of a prompt are its first blocks
    counted = offsets_of(visits[trace.hash_ids] >= 2)
    core_blocks = counted[trace.offsets[1:]] - counted[trace.offsets[:-1]]
    core_blocks[rows[alone]] -= visits[last[alone]] >= 2
    return visits, length, core_blocks


def _core(parent, visits, length) -> tuple[np.ndarray, Chains]:
    """The core blocks, and their chains as a forest."""
    core = np.flatnonzero(visits >= 2)
    place = np.full(
        len(parent) + 1, -1, dtype=np.int64
    )  # block -> index among core blocks; the last entry is for no parent
    place[core] = np.arange(len(core))
    return core, Forest(place[parent[core]], visits[core], length[core]).chains


def _exit_nodes(trace, core_blocks, core, chains) -> np.ndarray:
    """The node after which each request ends or leaves the core; 0, the root, if it has no core block."""
    node = np.zeros(len(trace), dtype=np.int64)
    inside = core_blocks > 0
    deepest = trace.hash_ids[trace.offsets[:-1][inside] + core_blocks[inside] - 1]
    node[inside] = chains.chain[np.searchsorted(core, deepest)] + 1
    return node


def _tokens_of(length, chains) -> np.ndarray:
    """Tokens in the last block of each chain: the minimum, because only a last block can be partial."""
    tokens = np.full(len(chains), np.iinfo(np.int64).max)
    np.minimum.at(tokens, chains.chain, length)
    return tokens


def _exits(tree) -> np.ndarray:
    """One value for each request: the node it ends at, or nodes + the node after which it leaves the core."""
    both = np.concatenate([tree.ends, tree.leaves])
    return np.repeat(np.arange(len(both), dtype=np.int32), both)


def _before_giving_up(accepted, rejected, max_rejections) -> tuple[np.ndarray, int, bool]:
    """(accepted rows, rejections in a row at the end, whether a run of rejections was longer than max_rejections).

    >>> _before_giving_up(np.array([True, False, False, True]), 0, 1)
    (array([0]), 2, True)
    """
    rows = np.flatnonzero(accepted)
    runs = np.diff(rows, prepend=-1, append=len(accepted)) - 1  # rejections before each accepted row, and at the end
    runs[0] += rejected
    too_long = np.flatnonzero(runs > max_rejections)
    if len(too_long):
        return rows[: too_long[0]], int(runs[too_long[0]]), True
    return rows, int(runs[-1]), False
