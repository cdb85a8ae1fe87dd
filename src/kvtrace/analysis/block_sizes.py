"""Hit rates of a trace at larger block sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from .._base.results import DescribedResult, column, columns_in
from .._base.tables import TextTable
from ..trace.conversion import fold
from ..trace.domains import in_domains
from ..trace.hits import RATES, Hits, count_hits, unlimited_hits
from ..trace.trace import Trace
from ..trace.unknown import PREFIXES, require_known


@dataclass(frozen=True, repr=False)
class BlockSizeHits(DescribedResult):
    """Blocks and hits of a trace at one block size."""

    block_size: int = field(metadata=column("block size", ",", rank=0))
    blocks: int = field(metadata=column("blocks", ","))
    distinct_blocks: int = field(metadata=column("distinct", ","))
    hits: Hits = field(metadata=column(spread=RATES))  # of a cache that never evicts

    def _headline(self) -> str:
        rates = f"block_hit_rate={self.hits.block_hit_rate:.4f}, token_hit_rate={self.hits.token_hit_rate:.4f}"
        return f"block_size={self.block_size:,}, {self.blocks:,} blocks, {rates}"


def by_block_size(trace: Trace, factors: Iterable[int]) -> list[BlockSizeHits]:
    """Count the hits without eviction in larger blocks, exactly, by folding.

    Args:
        trace: The trace.
        factors: For each result, the factor by which blocks are larger.

    Returns:
        Block size, counts and hits for each factor.

    Raises:
        InputError: The ids do not form a forest.
        UnknownError: Shared prefixes are unknown.

    >>> from kvtrace.trace.building import toy
    >>> [(size.block_size, size.hits.hit_blocks) for size in by_block_size(toy("0 1 2", "0 1 3"), [1, 2])]
    [(1, 2), (2, 1)]
    """
    trace = in_domains(trace)
    require_known(trace, trace.meta, "the hit rate by block size", PREFIXES)
    return list(each_block_size(trace, factors))


def each_block_size(trace: Trace, factors: Iterable[int]) -> Iterator[BlockSizeHits]:
    """Like `by_block_size`, one result at a time. A factor that the one before it divides is folded from its blocks.

    >>> from kvtrace.trace.building import toy
    >>> [size.blocks for size in each_block_size(toy("0 1 2 3", "0 1 2"), [1, 2, 4])]
    [7, 4, 2]
    """
    folded, factor_before = trace, 1  # folding twice is folding by the product
    for factor in factors:
        if type(factor) is not int or factor < factor_before or factor % factor_before:
            folded, factor_before = trace, 1
        folded = fold(folded, factor // factor_before if factor_before > 1 else factor)
        factor_before = factor
        yield _folded(folded)


def _folded(trace):
    distinct = trace.distinct if trace.output_ids is None else len(np.unique(trace.hash_ids))
    return BlockSizeHits(trace.block_size, len(trace.hash_ids), distinct, count_hits(trace, unlimited_hits(trace)))


def block_size_table(sizes: list[BlockSizeHits]) -> TextTable:
    """A table of hit rates, one row for each block size."""
    table = TextTable("By block size")
    table.add_results(columns_in(BlockSizeHits), [size.to_dict() for size in sizes])
    return table
