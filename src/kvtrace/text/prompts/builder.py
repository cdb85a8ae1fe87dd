"""Build the text of a block: a few words that distinguish it from its siblings, then an excerpt of a long random text.

All blocks take their excerpts from the same text, at different positions. The first words of a block spell its rank
among its siblings, so that two prompts differ from the first token at which their ids differ.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..._base.errors import InputError
from ..._base.mixing import FIRST, GAMMA, SECOND, mix_number
from ..._base.offsets import offsets_of
from .blocks import PromptBlocks
from .words import WordList

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
        self._long_text = "".join([self.words.texts[word] for word in drawn.tolist()])
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
