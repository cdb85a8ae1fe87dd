"""A step of the scheduler as arrays: tokens and positions, where their KV goes, and the blocks of each request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .prompts import Tokens

Part = tuple[int, int, int, int]  # row, tokens before, chunk, tokens that are known


@dataclass(frozen=True, eq=False)
class Batch:
    """The parts of a step, chunks of prompts first, then requests with one token; tokens lie end to end."""

    rows: np.ndarray
    before: np.ndarray  # part -> tokens that are computed
    counts: np.ndarray  # part -> tokens of this step
    samples: np.ndarray  # part -> whether its last token gives an output token
    tables: np.ndarray  # part, place -> physical block; 0 beyond the blocks that a request needs
    tokens: np.ndarray
    positions: np.ndarray
    places: np.ndarray  # token -> where its KV goes: block * block size + offset
    chunks: int  # parts with several tokens
    block_size: int

    @classmethod
    def of(cls, parts: list[Part], tokens: Tokens, cache: Any) -> Batch:
        """The arrays of a step whose blocks are in a PagedCache."""
        parts = sorted(parts, key=lambda part: part[2] == 1)  # in the scheduler's order otherwise
        rows, before, counts, known = np.array(parts, dtype=np.int64).T
        size, ends = cache.block_size, before + counts
        tables = np.zeros((len(parts), int(-(-ends.max() // size))), dtype=np.int32)
        for place, row in enumerate(rows):
            blocks = cache.table(int(row))[: tables.shape[1]]
            tables[place, : len(blocks)] = blocks
        part = np.repeat(np.arange(len(parts)), counts)
        positions = np.arange(len(part)) - np.repeat(np.cumsum(counts) - counts, counts) + before[part]
        drawn = [tokens.of(int(row))[begin:end] for row, begin, end in zip(rows, before, ends, strict=True)]
        places = tables[part, positions // size].astype(np.int64) * size + positions % size
        return cls(
            rows, before, counts, ends == known, tables, np.concatenate(drawn), positions, places,
            int((counts > 1).sum()), size,
        )  # fmt: skip

    @classmethod
    def made_up(cls, contexts: list[int], counts: list[int], blocks: int, block_size: int, vocabulary: int) -> Batch:
        """A batch with random tokens and blocks, to try and time a model; each part gives an output token."""
        random = np.random.default_rng(0)
        parts = sorted(zip(contexts, counts, strict=True), key=lambda part: part[1] == 1)
        before, chunk = np.array(parts, dtype=np.int64).T
        places = -(-(before + chunk).max() // block_size)
        several = len(parts) * places > blocks  # requests that have a block, as those that share a prefix
        drawn = random.integers(blocks, size=len(parts) * places) if several else random.permutation(blocks)
        tables = drawn[: len(parts) * places].reshape(len(parts), places).astype(np.int32)
        part = np.repeat(np.arange(len(parts)), chunk)
        positions = np.arange(len(part)) - np.repeat(np.cumsum(chunk) - chunk, chunk) + before[part]
        slots = tables[part, positions // block_size].astype(np.int64) * block_size + positions % block_size
        return cls(
            np.arange(len(parts)), before, chunk, np.ones(len(parts), dtype=bool), tables,
            random.integers(vocabulary, size=len(part)), positions, slots, int((chunk > 1).sum()), block_size,
        )  # fmt: skip

    @property
    def ends(self) -> np.ndarray:
        """Part -> its context: tokens that are computed after the step."""
        return self.before + self.counts

    @property
    def last(self) -> np.ndarray:
        """The last token of each part that gives an output token."""
        return (np.cumsum(self.counts) - 1)[self.samples]

    def context(self, part: int) -> np.ndarray:
        """The place of each token of a part's context."""
        end = int(self.ends[part])
        blocks = self.tables[part, : -(-end // self.block_size)].astype(np.int64)
        return (blocks[:, None] * self.block_size + np.arange(self.block_size)).reshape(-1)[:end]
