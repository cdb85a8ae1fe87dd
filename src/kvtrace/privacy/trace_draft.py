"""A trace on its way to a release: its rows, and their blocks, which the steps of the release change in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..trace.columns import TAILS, Columns, replace_columns, rows_of
from ..trace.hits import Hits, sum_hits
from ..trace.normalise import by_first_appearance
from ..trace.stated import require_rule
from ..trace.trace import Trace
from ..trace.trace_figures import Figures, figures_of
from .row_blocks import RowBlocks


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
    tail: str
    meta: dict[str, Any]

    def __init__(
        self, rows: Columns, blocks: RowBlocks, *, block_size: int, tail: str, meta: Mapping[str, Any] | None = None
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

    def set_tail(self, tail: str) -> bool:
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
