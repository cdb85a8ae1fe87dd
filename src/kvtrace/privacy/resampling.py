"""Rows drawn from what many contributors have in common: the step `resampled` of a release, which `public` takes.

No row of the log is released. Each request becomes a cell: the prefix that it shares with enough other contributors,
whether it extends an earlier request of its own contributor, and its lengths on a coarse grid. Cells of too few
contributors climb to a coarser grid, or are left out. Cells are then drawn independently from the mixture of all
contributors, and rows are made of them: lengths within the cell, links, times and order by chance. So all that is
released follows from the draws and a few rounded numbers. Their number is limited, so that nobody can tell from them
whether one contributor was there: for n draws from a mixture p or q, the total variation distance is at most
sqrt((1 + chi2(p, q))^n - 1) / 2, as the square of the distance is at most a quarter of chi2 (Cauchy-Schwarz).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .._base.arrays import offsets_of
from .._base.errors import UsageError
from ..trace.columns import Columns
from .trace_draft import RowBlocks, TraceDraft

ADVANTAGE = 0.1  # the share of right alarms may exceed that of false ones by this: 55 of 100 guesses are right
WIDEST = 3  # the floor of contributors is drawn from k to this many times k
NEVER = 1 << 31  # more contributors, or cells, than any log has
CUTS = (1.0, 0.99, 0.95, 0.9, 0.75, 0.5)  # quantiles of contributors; the rest of them counts less
ENOUGH = 20  # draws for each cell
ROUNDS = 8  # the weights of contributors depend on the mixture, and the mixture on them
TINY = 1e-12  # squared distances are at least this


class Grid(NamedTuple):
    """The ratios of the grids of lengths, and whether a cell keeps its shared prefix."""

    input: int  # blocks
    new: int  # blocks that neither the prefix nor the contributor's earlier requests have
    output: int  # tokens
    keeps_prefix: bool


LADDER = (  # from fine to coarse
    Grid(2, 2, 4, True), Grid(2, 4, 16, True), Grid(4, 16, 256, True), Grid(4, 16, 256, False), Grid(16, 256, 256, False)
)  # fmt: skip
RATIOS = np.array([grid[:3] for grid in LADDER])


@dataclass(frozen=True)
class Shapes:
    """What cells are made of, for each request, in blocks."""

    prefix: np.ndarray  # number of the last block that enough contributors have, -1 = none
    depth: np.ndarray  # blocks up to it
    reuse: np.ndarray  # leading blocks that an earlier request of its contributor has, if these are more; else 0
    length: np.ndarray
    output: np.ndarray  # tokens, -1 = unknown


@dataclass(frozen=True)
class Cells:
    """Cells that enough contributors share."""

    cell: np.ndarray  # request -> its cell, -1 = left out
    level: np.ndarray  # cell -> its grid in LADDER
    prefix: np.ndarray  # cell -> number of the last block of its prefix, -1 = none
    extends: np.ndarray  # cell -> whether its requests extend earlier ones of their contributor
    classes: np.ndarray  # cell -> classes of input, new blocks and output
    example: np.ndarray  # cell -> one of its requests, which has its prefix

    def __len__(self) -> int:
        return len(self.level)


def resample(
    draft: TraceDraft, contributor: np.ndarray, k: int, rng: np.random.Generator, *, share_prefixes: bool
) -> TraceDraft:
    """A draft of drawn rows, about as many as the log has.

    Args:
        draft: The rows of a log, with tails as released and without blocks of outputs.
        contributor: Row -> number of its contributor, -1 = unknown: its row is not used.
        k: The least number of contributors; the floor is drawn from k to 3 k, and is never written.
        rng: The randomness of the run.
        share_prefixes: Contributors share the prefixes that enough of them have; without it, they share no block.

    Raises:
        UsageError: Too few contributors have anything in common.

    >>> from kvtrace.trace.building import toy
    >>> draft = TraceDraft.of(toy(*["0 1"] * 64))
    >>> resample(draft, np.arange(64), 2, np.random.default_rng(1), share_prefixes=True).trace()
    Trace(64 requests, 128 blocks, 2 distinct, block_size=1, tail=kept)
    """
    known = np.flatnonzero(contributor >= 0)
    who = np.unique(contributor[known], return_inverse=True)[1].reshape(-1)
    blocks, floor = draft.blocks.take(known), int(rng.integers(k, WIDEST * k + 1))
    shapes = shapes_of(draft.rows.output_length[known], blocks, who, floor if share_prefixes else NEVER)
    cells = cells_of(shapes, who, floor)
    used = np.flatnonzero(cells.cell >= 0)
    share, most = mixture(cells.cell[used], who[used], len(cells)) if len(used) else (np.empty(0), 0)
    if not most:
        raise UsageError(
            f"nothing is left to release: the log has {int(who.max(initial=-1)) + 1:,} contributors, and {k} to "
            f"{WIDEST * k} of them must have a kind of request in common. Use a larger log, or --profile strict."
        )
    count = 1 << round(math.log2(len(used)))
    draws = rng.choice(len(cells), size=min(int(rng.integers((most + 1) // 2, most + 1)), count), p=share)
    drawn = rng.permutation(np.resize(draws, count))  # all that follows depends on the draws, and not on the log
    depth = np.where(cells.prefix >= 0, shapes.depth[cells.example], 0)
    length, reuse, output = lengths_within(cells, depth, drawn, rng)
    parent = parents_of(cells.prefix[drawn], reuse, length, rng)
    time = times_of(parent, length, *pace_of(draft.rows.timestamp[known], who), rng)
    order = np.argsort(time, kind="stable")
    linked = linked_blocks(blocks, cells, depth, drawn, parent, np.minimum(reuse, length[parent]), length, order)
    rows = Columns(
        time[order] - time[order[0]], length[order] * draft.block_size, output[order], [], np.zeros(count + 1)
    )
    return TraceDraft(rows, linked, block_size=draft.block_size, tail=draft.tail, meta=draft.meta)


def shapes_of(output: np.ndarray, blocks: RowBlocks, contributor: np.ndarray, floor: int) -> Shapes:
    """The shapes of requests; prefixes are those of at least `floor` contributors."""
    has_enough = blocks.contributors(contributor)[blocks.number] >= floor
    before = offsets_of(has_enough)[blocks.offsets]
    leading = np.diff(before)  # never more contributors further down a prompt
    last = blocks.offsets[:-1] + leading - 1
    prefix = np.full(len(leading), -1)
    prefix[leading > 0] = blocks.number[last[leading > 0]]
    alone = RowBlocks(blocks.number.copy(), blocks.offsets, distinct=blocks.distinct, lengths=blocks.lengths)
    alone.split(contributor, NEVER)
    depth, own = blocks.blocks_in(leading), alone.hits().astype(np.int64)
    return Shapes(prefix, depth, np.where(own > depth, own, 0), blocks.prompt_blocks().astype(np.int64), output)


def class_of(values: np.ndarray, ratio: int) -> np.ndarray:
    """The class of each value on the grid 1, ratio, ratio^2, ... (ratio is a power of two); 0 for 0, -1 for unknown.

    >>> class_of(np.array([-1, 0, 1, 3, 4, 15, 16]), 4)
    array([-1,  0,  1,  1,  2,  2,  3])
    """
    doubled = np.frexp(values.astype(np.float64))[1] - 1  # floor(log2(value))
    return np.where(values > 0, doubled // (ratio.bit_length() - 1) + 1, np.sign(values))


def cells_of(shapes: Shapes, contributor: np.ndarray, floor: int) -> Cells:
    """The cells of requests on the finest grid where at least `floor` contributors share them."""
    cell, parts, found = np.full(len(contributor), -1), [], 0
    rows = np.arange(len(contributor))  # not in a cell yet
    for level, grid in enumerate(LADDER):
        prefix, depth = (shapes.prefix[rows], shapes.depth[rows]) if grid.keeps_prefix else (np.full(len(rows), -1), 0)
        reuse, length = shapes.reuse[rows], shapes.length[rows]
        of_row = (
            prefix, reuse > 0, class_of(length, grid.input), class_of(length - np.maximum(reuse, depth), grid.new),
            class_of(shapes.output[rows], grid.output),
        )  # fmt: skip
        _, first, number = np.unique(_packed(*of_row), return_index=True, return_inverse=True)
        number = number.reshape(-1)
        pairs = np.unique(number * NEVER + contributor[rows])
        has_enough = np.bincount(pairs // NEVER, minlength=len(first)) >= floor
        kept = has_enough[number]
        cell[rows[kept]] = (found - 1 + np.cumsum(has_enough))[number[kept]]
        parts.append([np.full(int(has_enough.sum()), level), rows[first[has_enough]],
                      *(values[first[has_enough]] for values in of_row)])  # fmt: skip
        found, rows = found + len(parts[-1][0]), rows[~kept]
    level, example, prefix, extends, *classes = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Cells(cell, level, prefix, extends, np.stack(classes, axis=1), example)


def _packed(prefix, extends, *classes) -> np.ndarray:
    """One number for each combination."""
    packed = (prefix + 1) * 2 + extends
    for values in classes:
        packed = packed * 65 + values + 1  # classes are from -1 to 63
    return packed


def mixture(cell: np.ndarray, contributor: np.ndarray, cells: int) -> tuple[np.ndarray, int]:
    """The share of each cell in the mixture of all contributors, and how many draws of it hide each contributor.

    A contributor counts by its requests, but those with many, or with rare cells, count less: their weight is cut where
    it would tell more than that of most others. The cut is as mild as enough draws allow, and at most at the median.

    >>> mixture(np.array([0, 1] * 50), np.arange(100), 2)
    (array([0.5, 0.5]), 384)
    """
    pairs, count = np.unique(contributor * NEVER + cell, return_counts=True)
    who, cell = np.unique(pairs // NEVER, return_inverse=True)[1].reshape(-1), pairs % NEVER
    for quantile in CUTS:
        share, most = _cut_mixture(cell, who, count, cells, quantile)
        if most >= ENOUGH * cells:
            break
    return share, most


def _cut_mixture(cell, who, count, cells, quantile) -> tuple[np.ndarray, int]:
    requests = np.bincount(who, count).astype(np.float64)
    own = count / requests[who]  # the share of each cell among a contributor's requests
    weight = requests
    for _ in range(ROUNDS):
        share = np.bincount(cell, weight[who] * own, cells)
        share /= share.sum()
        distance = np.bincount(who, own * own / share[cell]) - 1  # chi2 of a contributor's shares from all
        spread = np.sqrt(np.maximum(distance, TINY))
        tells = weight / (weight.sum() - weight) * spread if len(requests) > 1 else np.ones(1)
        weight = np.minimum(requests, np.quantile(requests * spread, quantile) / spread)
    return share, int(math.log1p(4 * ADVANTAGE**2) / math.log1p(max(float(tells.max()) ** 2, TINY)))


def lengths_within(cells: Cells, depth: np.ndarray, drawn: np.ndarray, rng) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Blocks, reused blocks and output tokens of each drawn row, spread evenly over the logarithms of its cell."""
    classes, ratios = cells.classes[drawn], RATIOS[cells.level[drawn]].astype(np.float64)
    values = np.floor(ratios ** (np.maximum(classes, 1) - 1 + rng.random(classes.shape))).astype(np.int64)
    input, new, output = np.where(classes > 0, values, classes).T
    length = np.maximum(input, depth[drawn])
    return length, np.where(cells.extends[drawn], np.maximum(length - new, depth[drawn]), 0), output


def parents_of(prefix: np.ndarray, reuse: np.ndarray, length: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The row that each row extends, -1 = none: a shorter one of the same prefix that has the reused blocks.

    Where possible, each row is extended once. Without a row that is long enough, the longest shorter one is taken.

    >>> parents_of(np.array([-1, -1, -1]), np.array([0, 3, 5]), np.array([3, 5, 8]), np.random.default_rng(1))
    array([-1,  0,  1])
    """
    order = np.lexsort((length, prefix))  # row of each rank
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    far = int(length.max()) + 1
    group = np.unique(prefix, return_inverse=True)[1].reshape(-1) * far
    ranked = (group + length)[order]
    rows = np.flatnonzero(reuse > 0)
    rows = rows[np.lexsort((reuse[rows], group[rows]))]
    start, low = np.searchsorted(ranked, group[rows]), np.searchsorted(ranked, group[rows] + reuse[rows])
    turn = np.arange(len(rows))
    place = np.maximum.accumulate(low - turn) + turn  # the next rank that is long enough and not extended yet
    chance = low + (rng.random(len(rows)) * (rank[rows] - low)).astype(np.int64)
    place = np.where(place < rank[rows], place, np.where(low < rank[rows], chance, rank[rows] - 1))
    parent = np.full(len(order), -1)
    parent[rows] = np.where(place >= start, order[place], -1)
    return parent


def pace_of(timestamp: np.ndarray, contributor: np.ndarray) -> tuple[float, float]:
    """The mean time between requests, and the median one between requests of a contributor, as powers of two in ms.

    >>> pace_of(np.array([0.0, 900.0, 2000.0, 3000.0]), np.array([0, 1, 0, 1]))
    (1024.0, 2048.0)
    """
    order = np.argsort(contributor, kind="stable")
    is_next = np.diff(contributor[order]) == 0
    mean = float(timestamp[-1] - timestamp[0]) / max(1, len(timestamp) - 1)
    pauses = np.diff(timestamp[order])[is_next]
    median = float(np.median(pauses)) if len(pauses) else mean
    gap, pause = (2.0 ** round(math.log2(max(1.0, value))) for value in (mean, median))
    return gap, pause


def times_of(parent: np.ndarray, length: np.ndarray, gap_ms: float, pause_ms: float, rng) -> np.ndarray:
    """Times at random: evenly spread starts, and each further row a pause after the row that it extends."""
    time = rng.random(len(parent)) * gap_ms * len(parent)
    pause = rng.exponential(pause_ms, len(parent))
    for row in np.argsort(length, kind="stable").tolist():  # parents are not longer
        if parent[row] >= 0:
            time[row] = time[parent[row]] + pause[row]
    return time


def linked_blocks(blocks, cells, depth, drawn, parent, reuse, length, order) -> RowBlocks:
    """The blocks of the rows in the order of time: those of the prefix or of the extended row, then new ones."""
    offsets = offsets_of(length[order])
    ids, new = np.empty(int(offsets[-1]), dtype=np.int32), blocks.distinct_blocks
    start = np.empty(len(order), dtype=np.int64)
    start[order] = offsets[:-1]
    used = np.unique(drawn[cells.prefix[drawn] >= 0])
    paths = dict(zip(used.tolist(), blocks.first_blocks(cells.example[used], depth[used]), strict=True))
    none = ids[:0]
    for row, cell, above in zip(order.tolist(), drawn[order].tolist(), parent[order].tolist(), strict=True):
        shared = paths.get(cell, none) if above < 0 else ids[start[above] : start[above] + reuse[row]]
        first, fresh = start[row], length[row] - len(shared)
        ids[first : first + len(shared)] = shared
        ids[first + len(shared) : first + length[row]] = np.arange(new, new + fresh)
        new += fresh
    return RowBlocks(ids, offsets, distinct=int(new))
