"""The blocks of prompts: their sizes, parents and ranks among siblings, and the text of each.

A block's text is a few words that distinguish it from its siblings, then an excerpt of a long random text. All blocks
take their excerpts from the same text, at different positions. The first words of a block spell its rank among its
siblings, so that two prompts differ from the first token at which their ids differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..._base.arrays import FIRST, GAMMA, SECOND, mix_number, offsets_of
from ..._base.errors import InputError, UsageError
from ...trace.building import with_whole_prompts
from ...trace.trace import Trace
from .words import WordList


@dataclass(frozen=True, eq=False)
class PromptBlocks:
    """The blocks of some prompts, with all data that their texts depend on."""

    ids: np.ndarray  # block reference -> id, prompts end to end
    offsets: np.ndarray  # prompt r is ids[offsets[r]:offsets[r + 1]]
    lengths: np.ndarray  # prompt -> tokens
    block_size: int
    size: np.ndarray  # id -> tokens
    parent: np.ndarray  # id -> the id before it, -1 = none; all -1 if the ids do not form a forest
    rank: np.ndarray  # id -> rank among its parent's children, from 0; short blocks first
    siblings: np.ndarray  # id -> number of its parent's children, itself included

    @classmethod
    def of_trace(cls, trace: Trace) -> PromptBlocks:
        """The blocks of a trace's prompts. If the trace has no tail blocks, each prompt gets a tail of its own."""
        trace = with_whole_prompts(trace)
        return cls.of(trace.hash_ids, trace.offsets, trace.input_length, trace.block_size)

    @classmethod
    def of(cls, ids, offsets, lengths, block_size: int, *, names=None) -> PromptBlocks:
        """The blocks of ids 0, 1, 2, ...; `names` are the ids in error messages.

        >>> from kvtrace.trace.building import toy
        >>> blocks = PromptBlocks.of_trace(toy("0 1", "0 2", "3", block_size=4))
        >>> blocks.parent.tolist(), blocks.rank.tolist(), blocks.siblings.tolist()
        ([-1, 0, 0, -1], [0, 0, 1, 1], [2, 2, 2, 2])
        """
        if block_size < 1:
            raise UsageError(f"block size is {block_size}; it must be a whole number of tokens, at least 1.")
        names = ids if names is None else names
        if _tails_are_dropped(offsets, lengths, block_size):
            ids, offsets = _with_own_tails(ids, offsets, lengths % block_size > 0)
            names = ids
        size = _sizes(ids, offsets, lengths, block_size, names)
        parent = _parents(ids, offsets, len(size))
        rank, siblings = _ranks(parent, size)
        return cls(ids, offsets, lengths, block_size, size, parent, rank, siblings)

    def __len__(self) -> int:
        return len(self.lengths)


def _tails_are_dropped(offsets, lengths, block_size) -> bool:
    """Whether rows have ids for full blocks only; InputError if the number of ids does not fit the lengths."""
    counts = np.diff(offsets)
    if len(lengths) and lengths.min() < 0:
        raise InputError(f"row {int(np.argmin(lengths))}: its length is negative.")
    with_tail = -(-lengths // block_size)
    if (counts == with_tail).all():
        return False
    if (counts == lengths // block_size).all():
        return True
    row = int(np.flatnonzero(counts != with_tail)[0])
    raise InputError(
        f"row {row}: {counts[row]:,} ids for {lengths[row]:,} tokens; at block size {block_size} there should be "
        f"{with_tail[row]:,}. Try another block size."
    )


def _with_own_tails(ids, offsets, has_tail):
    """The ids with a new id at the end of each row that has a tail."""
    new_ids = (int(ids.max()) + 1 if len(ids) else 0) + np.arange(int(has_tail.sum()))
    with_tails = np.insert(ids, offsets[1:][has_tail], new_ids)
    return with_tails, offsets + offsets_of(has_tail)


def _sizes(ids, offsets, lengths, block_size, names):
    """Id -> tokens; InputError if an id has two sizes."""
    tokens = np.full(len(ids), block_size, dtype=np.int64)  # block reference -> tokens
    rest = lengths % block_size
    tokens[offsets[1:][rest > 0] - 1] = rest[rest > 0]
    size = np.zeros(int(ids.max()) + 1 if len(ids) else 0, dtype=np.int64)
    size[ids] = tokens
    if (wrong := np.flatnonzero(size[ids] != tokens)).size:
        first = int(wrong[0])
        second = int(np.flatnonzero((ids == ids[first]) & (tokens != tokens[first]))[0])
        rows = np.searchsorted(offsets, [first, second], side="right") - 1
        raise InputError(
            f"row {rows[1]}: id {names[second]} has {tokens[second]:,} tokens, but in row {rows[0]} it has "
            f"{tokens[first]:,}. Check the block size, and that the lengths count the tokens of the ids."
        )
    return size


def _parents(ids, offsets, distinct):
    """Id -> the id before it. All -1 if an id follows two different ids: then any two ids can be siblings."""
    before = np.full(len(ids), -1, dtype=np.int64)
    before[1:] = ids[:-1]
    before[offsets[:-1][np.diff(offsets) > 0]] = -1
    parent = np.full(distinct, -1, dtype=np.int64)
    parent[ids] = before
    return parent if (parent[ids] == before).all() else np.full(distinct, -1, dtype=np.int64)


def _ranks(parent, size):
    """(rank, siblings) of each id. Short blocks come first, since they have the fewest tokens to differ in."""
    order = np.lexsort((np.arange(len(parent)), size, parent))
    first = np.flatnonzero(np.diff(parent[order], prepend=-2))  # first sibling of each family
    family = np.diff(first, append=len(order))
    rank, siblings = np.empty_like(parent), np.empty_like(parent)
    rank[order] = np.arange(len(order)) - np.repeat(first, family)
    siblings[order] = np.repeat(family, family)
    return rank, siblings


START_WORDS = 1 << 16  # words of the long text at which an excerpt can start


class PromptBuilder:
    """Builds the text of each row. Equal blocks, words and seeds give equal texts.

    >>> from kvtrace.text.tokenizers import load
    >>> from kvtrace.trace.building import toy
    >>> blocks = PromptBlocks.of_trace(toy("0 1", "0 2", block_size=4))
    >>> prompts = PromptBuilder(blocks, WordList.of(load("deepseek-r1")))
    >>> [len(load("deepseek-r1").encode(prompts.text(row))) for row in (0, 1)]
    [8, 8]
    """

    blocks: PromptBlocks
    words: WordList

    def __init__(self, blocks: PromptBlocks, words: WordList, *, seed: int = 0):
        self.blocks, self.words = blocks, words
        self._seed = seed
        self._choose_alphabets()
        self._make_long_text(int(blocks.size.max()) if len(blocks.size) else 0)
        self._block = lru_cache(maxsize=4096)(self._spell)  # blocks near the root are used by many rows

    def __len__(self) -> int:
        return len(self.blocks)

    def text(self, row: int) -> str:
        """One row's prompt."""
        start, stop = self.blocks.offsets[row : row + 2].tolist()
        return self.words.spell("".join(map(self._block, self.blocks.ids[start:stop].tolist())))

    # -- the words that distinguish siblings ---------------------------------------------------------------------

    def _choose_alphabets(self):
        """Choose the alphabet of each block: the wide one in families with too many short blocks for the narrow one."""
        blocks = self.blocks
        self._narrow = self.words.single
        crowded = ~_can_spell(blocks.rank, len(self._narrow), blocks.size)
        self._is_wide = np.zeros(len(blocks.size), dtype=bool)  # id -> which alphabet
        if crowded.any():
            families = np.unique(blocks.parent[crowded])
            self._is_wide = np.isin(blocks.parent, families)
            short = self._is_wide & ~_can_spell(blocks.rank, len(self.words.wide), blocks.size)
            if short.any():
                block = int(np.flatnonzero(short)[0])
                raise InputError(
                    f"{blocks.siblings[block]:,} blocks follow the same block; {len(self.words.wide):,} words of one "
                    f"token are too few to distinguish those of {blocks.size[block]:,} tokens. Use a tokenizer with a "
                    "larger vocabulary, or --words with more words."
                )

    def _head(self, block, room):
        """The words that spell the block's rank among its siblings, least significant digit first."""
        alphabet = self.words.wide if self._is_wide[block] else self._narrow
        base, rank, max_rank = len(alphabet), int(self.blocks.rank[block]), int(self.blocks.siblings[block]) - 1
        shift = _drawn(self._seed, int(self.blocks.parent[block]) + 1)  # so that families start with different words
        head = []
        while max_rank and len(head) < room:  # as many digits as the greatest rank has
            head.append(alphabet[(rank + shift) % base])
            max_rank, rank, shift = max_rank // base if base > 1 else 0, rank // base, shift // base
        return head

    # -- the text of a block -------------------------------------------------------------------------------------

    def _make_long_text(self, longest):
        """Make the long text of random words, and the number of characters and tokens before each word."""
        rng = np.random.default_rng([self._seed, 0x7E78])
        drawn = rng.integers(len(self.words.texts), size=START_WORDS + longest + 1)
        characters = np.array([len(text) for text in self.words.texts])
        self._long_text = "".join(np.array(self.words.texts, dtype=object)[drawn].tolist())
        self._characters = offsets_of(characters[drawn])
        self._tokens = offsets_of(self.words.tokens[drawn])

    def _spell(self, block):
        """A block's text: separator, head, an excerpt of the long text, and words of one token for the rest."""
        room, rank = int(self.blocks.size[block]), int(self.blocks.rank[block])
        parts = []
        base = len(self.words.wide) if self._is_wide[block] else len(self._narrow)
        if self.words.separator and rank < base ** min(room - 1, 64):  # else it needs all tokens for its rank
            parts.append(self.words.separator)
            room -= 1
        head = self._head(block, room)
        room -= len(head)
        mixed = _drawn(self._seed ^ 0x5EED, block)
        start = mixed % START_WORDS
        stop = int(np.searchsorted(self._tokens, self._tokens[start] + room, side="right")) - 1
        rest = room - int(self._tokens[stop] - self._tokens[start])
        parts += head
        parts.append(self._long_text[self._characters[start] : self._characters[stop]])
        parts += [self._narrow[(mixed + index) % len(self._narrow)] for index in range(rest)]
        return "".join(parts)


def _can_spell(rank, base, size):
    """Whether `size` words can spell a rank in that base."""
    return rank < np.power(float(base), np.minimum(size, 64))


def _drawn(seed, number):
    """A pseudo-random number for each pair of a seed and a number."""
    return mix_number(seed * GAMMA + number * FIRST + SECOND)
