"""A block's text: a few words that tell it from its siblings, and a stretch of a long made-up text.

All blocks cut their stretches from the same text, each at a place of its own. Siblings differ in their first words:
these spell the block's rank among them, so that two prompts part where their ids part and not later.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..._base.errors import InputError
from .blocks import Blocks
from .words import Words

PLACES = 1 << 16  # words of the long text where a block's stretch can begin


class Prompts:
    """The text of each row of some blocks; equal blocks, words and seeds give equal texts.

    >>> from kvtrace.text.tokenizers import load
    >>> from kvtrace.trace.building import toy
    >>> blocks = Blocks.of_trace(toy("0 1", "0 2", block_size=4))
    >>> prompts = Prompts(blocks, Words.of(load("deepseek-r1")))
    >>> [len(load("deepseek-r1").encode(prompts.text(row))) for row in (0, 1)]
    [8, 8]
    """

    def __init__(self, blocks: Blocks, words: Words, *, seed: int = 0):
        self.blocks, self.words = blocks, words
        self._seed = seed
        self._choose_alphabets()
        self._make_river(int(blocks.size.max()) if len(blocks.size) else 0)
        self._block = lru_cache(maxsize=4096)(self._spell)  # blocks near the root come again and again

    def __len__(self) -> int:
        return len(self.blocks)

    def text(self, row: int) -> str:
        """One row's prompt."""
        start, stop = self.blocks.offsets[row : row + 2].tolist()
        return self.words.spell("".join(map(self._block, self.blocks.ids[start:stop].tolist())))

    # -- which words tell siblings apart -------------------------------------------------------------------------

    def _choose_alphabets(self):
        """Families with more short members than the usual words can tell apart get more words."""
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
                    f"{blocks.siblings[block]:,} blocks follow the same one, and {len(self.words.wide):,} words of one "
                    f"token are too few to tell those of {blocks.size[block]:,} tokens apart. Try a tokenizer with a "
                    "larger vocabulary, or --words with more words."
                )

    def _head(self, block, room):
        """(words that spell the block's rank among its siblings, the least significant digit first; how many)."""
        alphabet = self.words.wide if self._is_wide[block] else self._narrow
        base, rank, others = len(alphabet), int(self.blocks.rank[block]), int(self.blocks.siblings[block]) - 1
        turn = _mix(self._seed, int(self.blocks.parent[block]) + 1)  # so that not all families begin with the same word
        head = []
        while others and len(head) < room:  # as many digits as the greatest rank has
            head.append(alphabet[(rank + turn) % base])
            others, rank, turn = others // base if base > 1 else 0, rank // base, turn // base
        return head

    # -- the text of a block -------------------------------------------------------------------------------------

    def _make_river(self, longest):
        """One long text of random words, with the letters and tokens before each of them."""
        rng = np.random.default_rng([self._seed, 0x7E78])
        drawn = rng.integers(len(self.words.texts), size=PLACES + longest + 1)
        letters = np.array([len(text) for text in self.words.texts])
        self._river = "".join([self.words.texts[word] for word in drawn.tolist()])
        self._letters = np.concatenate([[0], np.cumsum(letters[drawn])])
        self._tokens = np.concatenate([[0], np.cumsum(self.words.tokens[drawn])])

    def _spell(self, block):
        """A block's text: separator, head, a stretch of the river, and single tokens for what is left."""
        room, rank = int(self.blocks.size[block]), int(self.blocks.rank[block])
        parts = []
        base = len(self.words.wide) if self._is_wide[block] else len(self._narrow)
        if self.words.separator and rank < base ** min(room - 1, 64):  # else it needs all its tokens to be itself
            parts.append(self.words.separator)
            room -= 1
        head = self._head(block, room)
        room -= len(head)
        mixed = _mix(self._seed ^ 0x5EED, block)
        start = mixed % PLACES
        stop = int(np.searchsorted(self._tokens, self._tokens[start] + room, side="right")) - 1
        rest = room - int(self._tokens[stop] - self._tokens[start])
        parts += head
        parts.append(self._river[self._letters[start] : self._letters[stop]])
        parts += [self._narrow[(mixed + place) % len(self._narrow)] for place in range(rest)]
        return "".join(parts)


def _can_spell(rank, base, size):
    """Whether so many tokens can spell a rank in that base."""
    return rank < np.power(float(base), np.minimum(size, 64))


def _mix(seed, number):
    """A number that looks random (the finaliser of SplitMix64)."""
    value = (seed * 0x9E3779B97F4A7C15 + number * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & (2**64 - 1)
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return value ^ (value >> 31)
