"""A trace on its way to a release: its rows, and their blocks, which the steps of the release change in place.

Blocks are int32 numbers, 4 bytes a block reference. Where possible, a number stands for a run: consecutive blocks that
the same rows have. All steps treat the blocks of a run alike, so that they look at far fewer numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .._base.arrays import batches, in_first, joined, offsets_of
from .._native import numbering, sharing
from ..trace.building import require_rule
from ..trace.columns import TAILS, BlockRule, Columns, Tail, replace_columns, rows_of
from ..trace.hits import Hits, sum_hits
from ..trace.normalise import by_first_appearance
from ..trace.trace import Trace
from ..trace.trace_figures import Figures, figures_of


class TraceDraft:
    """Rows in order of time, their blocks, and the properties of a Trace of both.

    >>> from kvtrace.trace.building import toy
    >>> draft = TraceDraft.of(toy("0 1", "0 1 2"))
    >>> draft.hits().block_hit_rate, draft.trace()
    (0.4, Trace(2 requests, 5 blocks, 3 distinct, block_size=1, tail=kept))
    """

    rows: Columns
    blocks: RowBlocks
    block_size: int
    tail: BlockRule
    meta: dict[str, Any]

    def __init__(
        self,
        rows: Columns,
        blocks: RowBlocks,
        *,
        block_size: int,
        tail: BlockRule,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        self.rows = rows  # without blocks
        self.blocks = blocks
        self.block_size, self.tail, self.meta = block_size, tail, dict(meta or {})

    @classmethod
    def of(cls, trace: Trace) -> TraceDraft:
        """A draft of a trace, which does not change."""
        require_rule(trace.tail, "a release")
        if trace.is_chained and trace.output_ids is None:
            has_tail = (trace.input_length % trace.block_size > 0) & (trace.tail != "dropped")
            blocks = RowBlocks.in_runs(trace, has_tail)
        else:
            blocks = RowBlocks.of(trace)
        return cls(without_blocks(trace), blocks, block_size=trace.block_size, tail=trace.tail, meta=trace.meta)

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, rows: np.ndarray) -> None:
        """Keep some rows, in order: sessions and domains are renumbered, times start at 0, missing parents are -1."""
        self.rows, self.blocks = self.rows.take(rows), self.blocks.take(rows)
        self.rows.timestamp = self.rows.timestamp - self.rows.timestamp[0]
        self.rows.session = None if self.rows.session is None else by_first_appearance(self.rows.session)
        self.rows.domain = None if self.rows.domain is None else by_first_appearance(self.rows.domain)

    def set_tail(self, tail: Tail) -> bool:
        """Make tail blocks unique, or leave them out; False if the trace reveals no more already."""
        if TAILS.index(tail) <= TAILS.index(self.tail):
            return False
        references = self.blocks.tails(self.rows.input_length, self.rows.output_length, self.block_size)
        if tail == "unique":
            self.blocks.make_unique(references)
        else:
            self.blocks.drop(references)
        self.tail = tail
        return True

    def conversations(self) -> np.ndarray:
        """The conversation of each row, inferred from its blocks, from 0: rounded lengths do not change it."""
        return self.blocks.conversations(tails=self.tail != "dropped")

    def hits(self, *, outputs: bool = False) -> Hits:
        """The hits of a cache that never evicts; with `outputs`, in blocks of earlier outputs, too."""
        hits = self.blocks.hits(outputs=outputs).astype(np.int64)
        return sum_hits([(hits, self.blocks.prompt_blocks(), self.rows.input_length)], self.block_size)

    def columns(self) -> Columns:
        """The columns, with ids by first appearance."""
        self.blocks.by_first_appearance()
        return replace_columns(self.rows, **self.blocks.segments())

    def pieces(self) -> Iterator[Columns]:
        """As `columns`, some rows at a time; ids and parents are those of the whole."""
        self.blocks.by_first_appearance()
        for rows, segments in self.blocks.pieces():
            yield replace_columns(rows_of(self.rows, rows.start, rows.stop), **segments)

    def figures(self) -> Figures:
        """The figures of the trace."""
        self.blocks.by_first_appearance()
        blocks, distinct = int(self.blocks.prompt_blocks().sum()), self.blocks.distinct_blocks
        outputs = self.blocks.has_outputs
        return figures_of(self.rows, blocks, distinct, self.hits, outputs=outputs, meta=self.meta)

    def trace(self) -> Trace:
        """The trace, verified."""
        return Trace.from_columns(self.columns(), block_size=self.block_size, tail=self.tail, meta=self.meta)


def without_blocks(columns: Columns) -> Columns:
    """The same rows, each without blocks."""
    nothing = {"hash_ids": np.empty(0, np.int64), "offsets": np.zeros(len(columns) + 1, np.int64)}
    return replace_columns(columns, **nothing, output_ids=None, output_offsets=None)


REFERENCES = 1 << 17  # blocks in a piece: 1 MiB of ids


class RowBlocks:
    """The blocks of each row, its prompt's and then its output's, as numbers from 0.

    >>> from kvtrace.trace.building import toy
    >>> blocks = RowBlocks.of(toy("0 1", "0 1", "0 2"))
    >>> blocks.split(np.array([0, 1, 2]), 3), blocks.number.tolist()
    (True, [0, 1, 0, 3, 0, 2])
    """

    number: np.ndarray  # block reference -> number of its block, rows end to end, int32
    offsets: np.ndarray  # row r is number[offsets[r]:offsets[r + 1]], int64
    prompts: np.ndarray  # row -> blocks of its prompt; the others are its output's
    distinct: int  # numbers are below it
    has_outputs: bool
    lengths: np.ndarray | None  # number -> blocks of its run, int32; None = each number is one block

    def __init__(
        self,
        number: np.ndarray,
        offsets: np.ndarray,
        *,
        distinct: int,
        prompts: np.ndarray | None = None,
        lengths: np.ndarray | None = None,
    ) -> None:
        self.number, self.offsets, self.distinct = number, offsets, distinct
        self.has_outputs = prompts is not None
        self.prompts = np.diff(offsets) if prompts is None else prompts
        self.lengths = lengths

    @classmethod
    def of(cls, columns: Columns) -> RowBlocks:
        """A copy of the blocks of columns whose ids count from 0 by first appearance."""
        blocks, offsets, prompts = columns.hash_ids, columns.offsets, None
        if columns.output_ids is not None and columns.output_offsets is not None:
            prompts, outputs = np.diff(offsets), np.diff(columns.output_offsets)
            blocks = joined((blocks, prompts), (columns.output_ids, outputs))
            offsets = offsets + columns.output_offsets
        number = np.array(blocks, dtype=np.int32)
        return cls(number, offsets, distinct=int(number.max(initial=-1)) + 1, prompts=prompts)

    @classmethod
    def in_runs(cls, trace: Trace, has_tail: np.ndarray) -> RowBlocks:
        """Like `of`, in runs, for a chained trace of prompts; `has_tail` marks those with a partial last block.

        >>> from kvtrace.trace.building import toy
        >>> blocks = RowBlocks.in_runs(toy("0 1 2", "0 1 3"), np.array([False, False]))
        >>> blocks.number, blocks.lengths
        (array([0, 1, 0, 2], dtype=int32), array([2, 1, 1], dtype=int32))
        """
        number, offsets, lengths = sharing.runs(trace.hash_ids, trace.offsets, has_tail, trace.distinct)
        return cls(number, offsets, distinct=len(lengths), lengths=lengths)

    def take(self, rows: np.ndarray) -> RowBlocks:
        """The blocks of some rows, in their order."""
        number, offsets = numbering.take(self.number, self.offsets, rows)
        prompts = self.prompts[rows] if self.has_outputs else None
        return RowBlocks(number, offsets, distinct=self.distinct, prompts=prompts, lengths=self.lengths)

    # -- steps of a release, in place ----------------------------------------------------------------------------

    def make_unique(self, references: np.ndarray) -> np.ndarray:
        """Give each of these references a block of its own; returns the former number of each new block."""
        former = self.number[references]
        self.number[references] = self.distinct + np.arange(len(references), dtype=np.int32)
        self._add(former)
        return former

    def drop(self, references: np.ndarray) -> None:
        """Leave these references out."""
        kept = np.ones(len(self.number), dtype=bool)
        kept[references] = False
        before = offsets_of(kept)
        self.prompts = before[self.offsets[:-1] + self.prompts] - before[self.offsets[:-1]]
        self.number, self.offsets = self.number[kept], before[self.offsets]

    def pad(self, count: np.ndarray) -> None:
        """Add so many blocks of its own to the end of each row, which has no outputs.

        >>> from kvtrace.trace.building import toy
        >>> blocks = RowBlocks.of(toy("0 1", "0"))
        >>> blocks.pad(np.array([2, 0])), blocks.number
        (None, array([0, 1, 2, 3, 0], dtype=int32))
        """
        references = count if self.lengths is None else np.minimum(count, 1)  # a run is one reference
        new = self.distinct + np.arange(int(references.sum()), dtype=np.int32)
        self.number = joined((self.number, np.diff(self.offsets)), (new, references)).astype(np.int32)
        self.offsets, self.prompts = self.offsets + offsets_of(references), self.prompts + references
        self.distinct += len(new)
        if self.lengths is not None:
            self.lengths = np.concatenate([self.lengths, count[count > 0].astype(self.lengths.dtype)])

    def drop_outputs(self) -> None:
        """Leave out the blocks of all outputs."""
        if self.has_outputs:
            self.drop(np.flatnonzero(~self._in_prompts()))
            self.has_outputs = False

    def split(
        self,
        contributor: np.ndarray,
        k: int,
        member: np.ndarray | None = None,
        *,
        unknown: int = -1,
        unnamed: np.ndarray | None = None,
    ) -> bool:
        """Split each block of several contributors, if k does not count k of them, into one for each; False if none is.

        Blocks of one contributor are then split among its members by the same rule. k does not count the contributor
        `unknown`, whose blocks are split among all of its members, nor the members of rows that are `unnamed`.
        """
        count = self.contributors(contributor)
        few = count - self.in_rows(contributor == unknown) < k
        is_split = bool(len(self.split_where(contributor, count, few & (count > 1))))
        if member is None:
            return is_split
        is_alone = np.ones(self.distinct, dtype=bool)  # whether a block has one contributor; copies have
        is_alone[: len(count)] = few
        members = self.contributors(member)
        named = members - (0 if unnamed is None else self.in_rows(unnamed))
        few = is_alone & (members > 1) & ((named < k) | self.in_rows(contributor == unknown))
        return bool(len(self.split_where(member, members, few))) or is_split

    def split_where(self, contributor: np.ndarray, count: np.ndarray, is_split: np.ndarray) -> np.ndarray:
        """Split these blocks into one for each contributor; `count` is `contributors`'s result.

        The first contributor keeps the block's number. Returns the former number of each new block.
        """
        if not is_split.any():
            return np.empty(0, dtype=np.int32)
        former = sharing.split(self.number, self.offsets, contributor, count, is_split)
        self._add(former)
        return former

    def split_conversations(self, k: int, *, tails: bool) -> None:
        """Infer the conversations and split each block of 2 to k - 1 of them, until there is none.

        For runs. Each round looks only at the blocks that the last splits may have changed.

        >>> from kvtrace.trace.building import toy
        >>> blocks = RowBlocks.in_runs(toy("0 1", "0 2", "0 3"), np.zeros(3, dtype=bool))
        >>> blocks.split_conversations(4, tails=False), blocks.number.tolist()
        (None, [0, 1, 4, 2, 5, 3])
        """
        part, references, numbers = self, np.empty(0, np.int64), np.empty(0, np.int32)
        while True:
            conversation = part.conversations(tails=tails)
            count = part.contributors(conversation)
            few = (count > 1) & (count < k)
            if not few.any():
                return
            starts = sharing.unsettled(part.number, part.offsets, count, k)
            former = part.split_where(conversation, count, few)
            if part is not self:
                numbers = np.append(numbers, self.distinct + np.arange(len(former), dtype=np.int32))
                self._add(numbers[former])
                self.number[references] = numbers[part.number]
            below, inside, blocks = part._below(starts)
            if part is self:
                references, numbers = inside, blocks
            else:
                references, numbers = references[inside], numbers[blocks]
            part = below

    def _below(self, starts: np.ndarray) -> tuple[RowBlocks, np.ndarray, np.ndarray]:
        """The blocks of each row from a place on, as runs of their own: their references, and the number of each."""
        first = self.offsets[:-1] + starts
        rows = np.flatnonzero(first < self.offsets[1:])
        lengths = self.offsets[1:][rows] - first[rows]
        references = numbering.ranges(first[rows], lengths)
        number = self.number[references]
        former = numbering.by_first_appearance(number, self.distinct)
        assert self.lengths is not None
        part = RowBlocks(number, offsets_of(lengths), distinct=len(former), lengths=self.lengths[former])
        return part, references, former

    def _add(self, former: np.ndarray) -> None:
        """Count the numbers that follow the last one; each is as long as its former one."""
        self.distinct += len(former)
        if self.lengths is not None:
            self.lengths = np.concatenate([self.lengths, self.lengths[former]])

    # -- what they show ------------------------------------------------------------------------------------------

    def tails(self, input_length: np.ndarray, output_length: np.ndarray, block_size: int) -> np.ndarray:
        """The references to partial last blocks, of prompts and of outputs."""
        ends = self.offsets[:-1] + self.prompts
        references = [ends[(input_length % block_size > 0) & (self.prompts > 0)] - 1]
        if self.has_outputs:
            is_partial = ((input_length + output_length) % block_size > 0) & (ends < self.offsets[1:])
            references.append(self.offsets[1:][is_partial] - 1)
        return np.concatenate(references)

    def contributors(self, contributor: np.ndarray) -> np.ndarray:
        """The number of contributors of each block (int32); `contributor` has one number from 0 for each row."""
        return sharing.count_contributors(self.number, self.offsets, contributor, self.distinct)

    def in_rows(self, rows: np.ndarray) -> np.ndarray:
        """Whether each block is in any of these rows (row -> bool)."""
        is_inside = np.zeros(self.distinct, dtype=bool)
        if rows.any():
            is_inside[numbering.take(self.number, self.offsets, np.flatnonzero(rows))[0]] = True
        return is_inside

    def conversations(self, *, tails: bool) -> np.ndarray:
        """The conversation of each row, inferred from the blocks of prompts; `tails`: the last one may be partial."""
        enough = None
        if self.lengths is not None:  # all of a prompt, or all except a last block that is a run of its own
            ends = self.offsets[1:][self.prompts > 0] - 1
            enough = self.prompts.copy()
            enough[self.prompts > 0] -= tails & (self.lengths[self.number[ends]] == 1)
        return sharing.infer(self.number, self.offsets, self.prompts, tails, self.distinct, enough)

    def hits(self, is_new: np.ndarray | None = None, *, outputs: bool = False) -> np.ndarray:
        """The leading blocks of each prompt that an earlier prompt has, int32; with `outputs`, or an earlier output.

        `is_new` marks the blocks that no prompt (or output) before these rows has; without it, all are.
        """
        unseen = np.ones(self.distinct, dtype=bool) if is_new is None else is_new.copy()
        return self.blocks_in(sharing.leading_hits(self.number, self.offsets, self.prompts, unseen, outputs))

    def prompt_blocks(self) -> np.ndarray:
        """The number of blocks of each prompt."""
        return self.blocks_in(self.prompts)

    @property
    def distinct_blocks(self) -> int:
        """The number of distinct blocks, if all numbers are in use."""
        return self.distinct if self.lengths is None else int(self.lengths.sum())

    def blocks_in(self, leading: np.ndarray) -> np.ndarray:
        """The blocks of the first numbers of each row, which has `leading` of them."""
        if self.lengths is None:
            return leading
        before = offsets_of(self.lengths[self.number])
        return (before[self.offsets[:-1] + leading] - before[self.offsets[:-1]]).astype(leading.dtype)

    def first_blocks(self, rows: np.ndarray, count: np.ndarray) -> list[np.ndarray]:
        """The first blocks of some rows, as many as `count` says, each block with a number of its own."""
        part = self.take(rows)
        first_ids = None if self.lengths is None else offsets_of(self.lengths)
        segments = part.segments(first_ids)
        starts = segments["offsets"][:-1]
        return [segments["hash_ids"][start : start + some] for start, some in zip(starts, count, strict=True)]

    def first_rows(self) -> np.ndarray:
        """The first row that has each block, int32."""
        return sharing.first_rows(self.number, self.offsets, np.diff(self.offsets), self.distinct)

    def first_prompts(self) -> np.ndarray:
        """The first row whose prompt has each block, int32; -1 for blocks that only outputs have."""
        return sharing.first_rows(self.number, self.offsets, self.prompts, self.distinct)

    def by_first_appearance(self) -> np.ndarray:
        """Number the blocks by first appearance; returns the former number of each."""
        former = numbering.by_first_appearance(self.number, self.distinct)
        self.distinct = len(former)
        self.lengths = None if self.lengths is None else self.lengths[former]
        return former

    def pieces(self) -> Iterator[tuple[slice, dict[str, np.ndarray]]]:
        """As `segments`, some rows at a time."""
        first_ids = None if self.lengths is None else offsets_of(self.lengths)
        for rows in batches(offsets_of(self.prompt_blocks()), REFERENCES):
            offsets = self.offsets[rows.start : rows.stop + 1]
            prompts = self.prompts[rows] if self.has_outputs else None
            number = self.number[offsets[0] : offsets[-1]]
            part = RowBlocks(
                number, offsets - offsets[0], distinct=self.distinct, prompts=prompts, lengths=self.lengths
            )
            yield rows, part.segments(first_ids)

    def segments(self, first_ids: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """The blocks as columns of a trace: `hash_ids` and `offsets`, and those of outputs.

        `first_ids` is the id of the first block of each run, if the caller has it.
        """
        if self.lengths is not None:
            first_ids = offsets_of(self.lengths) if first_ids is None else first_ids
            lengths = self.lengths[self.number]
            ids = numbering.ranges(first_ids[self.number], lengths)
            return {"hash_ids": ids, "offsets": offsets_of(lengths)[self.offsets]}
        if not self.has_outputs:
            return {"hash_ids": self.number.astype(np.int64), "offsets": self.offsets}
        is_prompt, offsets = self._in_prompts(), offsets_of(self.prompts)
        return {
            "hash_ids": self.number[is_prompt].astype(np.int64), "offsets": offsets,
            "output_ids": self.number[~is_prompt].astype(np.int64), "output_offsets": self.offsets - offsets,
        }  # fmt: skip

    def _in_prompts(self) -> np.ndarray:
        """Whether each reference is a prompt's, not an output's."""
        return in_first(self.prompts, np.diff(self.offsets) - self.prompts)
