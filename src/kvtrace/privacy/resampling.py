"""Rows drawn from what many contributors have in common: the step `resampled` of a release, which `public` takes.

Requests are drawn from the log, independently and of each contributor one on average. A drawn request becomes a cell:
the prefix that it shares with at least k drawn contributors, whether it extends an earlier request of its contributor,
and its lengths on a coarse grid. Cells of fewer than k drawn contributors climb to a coarser grid, or are left out. New
rows are made of the cells: lengths within the cell, links, times and order by chance. So all that is released follows
from the draws, and from a few numbers rounded to powers of two. Chance decides near the middle between two powers: with
a fixed threshold there, an attacker who wrote the rest of a log could see one more request. One contributor adds about
one draw to cells of at least k, whose numbers of draws vary by sqrt(k) by chance: even who knows all other requests
learns little about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .._base.arrays import offsets_of
from .._base.errors import UsageError
from ..trace.columns import Columns
from .trace_draft import RowBlocks, TraceDraft

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

ENOUGH = 1000  # draws, from which on contributors with many rows count more
BETWEEN = 0.25  # powers of two within which chance decides on the rounding
NEVER = 1 << 31  # more contributors, or cells, than any log has
QUARTILES = 1.349  # standard deviations of a normal distribution between its quartiles


class Grid(NamedTuple):
    """The ratios of the grids of lengths, and whether a cell keeps its shared prefix."""

    input: int  # blocks
    new: int  # blocks that neither the prefix nor the contributor's earlier requests have
    output: int  # tokens
    keeps_prefix: bool


LADDER = (  # from fine to coarse
    Grid(2, 2, 4, True), Grid(2, 4, 16, True), Grid(4, 16, 256, True),
    Grid(4, 16, 256, False), Grid(16, 256, 256, False),
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
    """A draft of new rows, about as many as the log has.

    Args:
        draft: The rows of a log, with tails as released and without blocks of outputs.
        contributor: Row -> number of its contributor, -1 = unknown: its row is not used.
        k: The least number of drawn contributors that have a kind of request, or a prefix, in common.
        rng: The randomness of the run.
        share_prefixes: Contributors share the prefixes that enough of them have; without it, they share no block.

    Raises:
        UsageError: Too few contributors have anything in common.

    >>> from kvtrace.trace.building import toy
    >>> draft = TraceDraft.of(toy(*["0 1"] * 64))
    >>> len(resample(draft, np.arange(64), 2, np.random.default_rng(1), share_prefixes=True))
    64
    """
    known = np.flatnonzero(contributor >= 0)
    blocks, who = draft.blocks.take(known), np.unique(contributor[known], return_inverse=True)[1].reshape(-1)
    reuse = reused_blocks(blocks, who)
    is_new = 2 * reuse < blocks.prompt_blocks()  # rare where conversations are long, so half of the draws are of these
    draws = np.concatenate([drawn_rows(who, rows, rng) for rows in (np.flatnonzero(is_new), np.flatnonzero(~is_new))])
    drawn, output = blocks.take(draws), draft.rows.output_length[known][draws]
    shapes = shapes_of(drawn, who[draws], reuse[draws], output, k if share_prefixes else NEVER)
    cells = cells_of(shapes, who[draws], k)
    if not len(cells):
        raise UsageError(
            f"nothing is left to release: no kind of request is common to {k} of the contributors that were drawn, and "
            f"the log has {int(who.max(initial=-1)) + 1:,}. Use a larger log, or --profile strict."
        )
    cell = repeated(cells.cell, is_new[draws], float(is_new.mean()), int(near_powers(len(known), rng)), rng)
    count = len(cell)
    depth = np.where(cells.prefix >= 0, shapes.depth[cells.example], 0)
    length, reuse, output = lengths_within(cells, depth, cell, rng)
    parent = parents_of(cells.prefix[cell], reuse, length, rng)
    time = times_of(parent, length, *pace_of(draft.rows.timestamp[known], who, is_new, rng), rng)
    order = np.argsort(time, kind="stable")
    linked = linked_blocks(drawn, cells, depth, cell, parent, np.minimum(reuse, length[parent]), length, order)
    rows = Columns(
        time[order] - time[order[0]], length[order] * draft.block_size, output[order], [], np.zeros(count + 1)
    )
    return TraceDraft(rows, linked, block_size=draft.block_size, tail=draft.tail, meta=draft.meta)


def drawn_rows(contributor: np.ndarray, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Some of the rows, drawn independently: of each contributor half a row on average, or fewer.

    A contributor with more rows is drawn more often, up to a power of two. It is the largest that leaves about ENOUGH
    draws, and at least one near the geometric mean of their numbers of rows.

    >>> drawn_rows(np.array([0, 0, 1, 2, 3]), np.arange(1, 5), np.random.default_rng(1))
    array([1, 4])
    """
    if not len(rows):
        return rows
    count = np.bincount(contributor[rows])
    limit = int(near_powers(np.exp(np.log(count[count > 0]).mean()), rng))
    enough = ENOUGH * 2 ** (rng.random() - 0.5)
    while np.minimum(count, 2 * limit).sum() >= enough * 2 * limit and limit < count.max():
        limit *= 2
    weight = np.minimum(count, limit)
    chance = (weight / weight.sum() / np.maximum(count, 1))[contributor[rows]]
    return rng.choice(rows, size=int(weight.sum()) // (2 * limit), p=chance / chance.sum())


def near_powers(values: ArrayLike, rng: np.random.Generator) -> np.ndarray:
    """The power of two nearest to each value, and between two powers one of them by chance.

    >>> near_powers([8, 9, 11.3, 11.3, 11.3, 11.3, 15], np.random.default_rng(1)).tolist()
    [8.0, 8.0, 8.0, 16.0, 8.0, 8.0, 16.0]
    """
    exact = np.log2(values)
    return 2.0 ** np.floor(exact + 0.5 + (rng.random(exact.shape) - 0.5) * BETWEEN)


def repeated(cell: np.ndarray, is_new: np.ndarray, share: float, count: int, rng: np.random.Generator) -> np.ndarray:
    """The cells of new rows: those of the draws, in turn, with about this share of new ones.

    >>> repeated(np.array([0, 1, -1, 2]), np.array([True, True, False, False]), 0.25, 8, np.random.default_rng(1))
    array([2, 2, 2, 0, 1, 2, 2, 2])
    """
    kept = [rng.permutation(cell[(cell >= 0) & (is_new == new)]) for new in (True, False)]
    smaller = min(share, 1 - share)
    smaller = min(0.5, float(near_powers(smaller, rng))) if smaller else 0.0
    wanted = round(count * (smaller if share < 0.5 else 1 - smaller)) if len(kept[1]) else count
    wanted = wanted if len(kept[0]) else 0
    return rng.permutation(np.concatenate([np.resize(kept[0], wanted), np.resize(kept[1], count - wanted)]))


def reused_blocks(blocks: RowBlocks, contributor: np.ndarray) -> np.ndarray:
    """The leading blocks of each prompt that an earlier prompt of its contributor has."""
    alone = RowBlocks(blocks.number.copy(), blocks.offsets, distinct=blocks.distinct, lengths=blocks.lengths)
    alone.split(contributor, NEVER)
    return alone.hits().astype(np.int64)


def shapes_of(blocks: RowBlocks, contributor: np.ndarray, reuse: np.ndarray, output: np.ndarray, k: int) -> Shapes:
    """The shapes of drawn rows; prefixes are those that at least k of their contributors have."""
    has_enough = blocks.contributors(contributor)[blocks.number] >= k
    leading = np.diff(offsets_of(has_enough)[blocks.offsets])  # never more contributors further down a prompt
    last = blocks.offsets[:-1] + leading - 1
    prefix = np.full(len(leading), -1)
    prefix[leading > 0] = blocks.number[last[leading > 0]]
    depth = blocks.blocks_in(leading).astype(np.int64)
    return Shapes(prefix, depth, np.where(reuse > depth, reuse, 0), blocks.prompt_blocks().astype(np.int64), output)


def class_of(values: np.ndarray, ratio: int) -> np.ndarray:
    """The class of each value on the grid 1, ratio, ratio^2, ... (ratio is a power of two); 0 for 0, -1 for unknown.

    >>> class_of(np.array([-1, 0, 1, 3, 4, 15, 16]), 4)
    array([-1,  0,  1,  1,  2,  2,  3])
    """
    doubled = np.frexp(values.astype(np.float64))[1] - 1  # floor(log2(value))
    return np.where(values > 0, doubled // (ratio.bit_length() - 1) + 1, np.sign(values))


def cells_of(shapes: Shapes, contributor: np.ndarray, k: int) -> Cells:
    """The cells of requests on the finest grid where at least k contributors share them."""
    cell, parts, count = np.full(len(contributor), -1), [], 0
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
        has_enough = np.bincount(pairs // NEVER, minlength=len(first)) >= k
        kept = has_enough[number]
        cell[rows[kept]] = (count - 1 + np.cumsum(has_enough))[number[kept]]
        parts.append([np.full(int(has_enough.sum()), level), rows[first[has_enough]],
                      *(values[first[has_enough]] for values in of_row)])  # fmt: skip
        count, rows = count + len(parts[-1][0]), rows[~kept]
    levels, example, prefix, extends, *classes = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Cells(cell, levels, prefix, extends, np.stack(classes, axis=1), example)


def _packed(prefix, extends, *classes) -> np.ndarray:
    """One number for each combination."""
    packed = (prefix + 1) * 2 + extends
    for values in classes:
        packed = packed * 65 + values + 1  # classes are from -1 to 63
    return packed


def lengths_within(
    cells: Cells, depth: np.ndarray, drawn: np.ndarray, rng
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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


def pace_of(
    timestamp: np.ndarray, contributor: np.ndarray, is_new: np.ndarray, rng: np.random.Generator
) -> tuple[float, np.ndarray]:
    """Twice the median time of new conversations, and the quartiles of a contributor's pauses: powers of two in ms.

    >>> time, is_new = np.array([0.0, 1024.0, 2048.0, 3072.0]), np.array([True, True, False, False])
    >>> pace_of(time, np.array([0, 1, 0, 1]), is_new, np.random.default_rng(1))
    (1024.0, array([2048., 2048., 2048.]))
    """
    order = np.argsort(contributor, kind="stable")
    pauses = np.diff(timestamp[order])[np.diff(contributor[order]) == 0]
    starts = timestamp[is_new] if is_new.any() else timestamp
    middle = np.median(starts - timestamp[0])
    quartiles = np.quantile(pauses, [0.25, 0.5, 0.75]) if len(pauses) else np.zeros(3)
    last, *rounded = near_powers(np.maximum(1.0, [2 * middle, *quartiles]), rng)
    return float(last), np.sort(rounded)


def times_of(parent: np.ndarray, length: np.ndarray, last_ms: float, pauses_ms: np.ndarray, rng) -> np.ndarray:
    """Times at random: evenly spread starts, and each further row a pause after the row that it extends."""
    time = rng.random(len(parent)) * last_ms
    low, middle, high = np.log2(pauses_ms)
    pause = 2.0 ** (middle + rng.standard_normal(len(parent)) * (high - low) / QUARTILES)  # log-normal
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
