"""Words that a tokenizer keeps apart: each gives the same tokens whatever words, or separator, stand beside it.

Byte-pair tokenizers split text before each space, so that most words with their space are such; tokenizers that mark
the beginning of words themselves want the first one of a text without. Which of the two holds, and which words keep
their tokens, is found by trying: every pair is tokenised.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import product
from string import ascii_lowercase

import numpy as np

from ..._base.errors import UsageError
from ..tokenizers import Tokenizer

# Cicero, De finibus, as typesetters cut it up
LOREM = """
lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore et dolore magna aliqua
enim ad minim veniam quis nostrud exercitation ullamco laboris nisi aliquip ex ea commodo consequat duis aute irure in
reprehenderit voluptate velit esse cillum eu fugiat nulla pariatur excepteur sint occaecat cupidatat non proident sunt
culpa qui officia deserunt mollit anim id est laborum
""".split()  # noqa: SIM905
MOST = 256  # words that are tried: pairs are tokenised, so this counts squared
ENOUGH = 1  # words of one token: with fewer, short words of no language join them
SEPARATORS = {"none": (), "bos": ("bos_token", "eos_token"), "eos": ("eos_token", "bos_token")}


@dataclass(frozen=True, eq=False)
class Words:
    """Words, their space before them, that can be put side by side; and what stands first in each block, if any."""

    tokenizer: Tokenizer
    texts: list[str]
    tokens: np.ndarray  # word -> tokens
    leads: bool  # whether a prompt begins with its first word's space
    separator: str = ""  # one control token, or nothing
    known: list[np.ndarray] = field(default_factory=list, repr=False)  # word -> its tokens

    @classmethod
    def of(cls, tokenizer: Tokenizer, words: Iterable[str] | None = None, *, separator: str = "none") -> Words:
        """The usable ones of some words (of Lorem Ipsum, unless others are given), by trying all pairs.

        UsageError where the tokenizer keeps none of them to one token, or has no such separator.

        >>> from kvtrace.text.tokenizers import load
        >>> words = Words.of(load("deepseek-r1"))
        >>> words.single[:3], len(words.wide) > 1000
        ([' ipsum', ' dolor', ' sit'], True)
        """
        return _found(tokenizer, tuple(dict.fromkeys(LOREM if words is None else words))[:MOST], separator)

    @property
    def single(self) -> list[str]:
        """The words of one token."""
        return [text for text, count in zip(self.texts, self.tokens, strict=True) if count == 1]

    @cached_property
    def wide(self) -> list[str]:
        """The words of one token, and short words of no language that are one: for places with many siblings."""
        have = set(self.single)
        letters = [text for text in (f" {word}" for word in _short_words()) if text not in have]
        return self.single + self._that_fit(letters)

    def spell(self, text: str) -> str:
        """A prompt as it is written: some tokenizers want no space before the first word."""
        return text if self.leads else text.removeprefix(" ")

    def _that_fit(self, texts):
        """Those of one token that stay so after and before a word, and beside the separator."""
        neighbours = [*self.single[:2], *([self.separator] if self.separator else [])]
        alone = _encode(self.tokenizer, [self.spell(text) for text in texts])
        fits = np.array([len(tokens) == 1 for tokens in alone])
        for other in neighbours:
            own = _encode(self.tokenizer, [other if other == self.separator else self.spell(other)])[0]
            for first in (True, False):
                joined = [self.spell(text + other if first else other + text) for text in texts]
                fits &= [
                    both.tolist() == ([*mine, *own] if first else [*own, *mine])
                    for both, mine in zip(_encode(self.tokenizer, joined), alone, strict=True)
                ]
        return [text for text, fit in zip(texts, fits, strict=True) if fit]


@lru_cache(maxsize=8)  # the same words are asked for text by text
def _found(tokenizer, asked: tuple[str, ...], separator) -> Words:
    mark = _separator(tokenizer, separator)
    best = _best(tokenizer, asked, mark)
    if len(best.single) < ENOUGH:  # a small vocabulary: short words of no language are tokens of it
        best = _best(tokenizer, [*asked, *_short_words()[:MOST]][:MOST], mark)
    if not best.single:
        beside = "" if separator == "none" else f" beside the separator {separator}"
        raise UsageError(
            f"none of {len(asked):,} words is one token of {tokenizer.name}{beside} and stays so in a text. "
            "Try --words with a file of other words, or another --separator."
        )
    return best


def _best(tokenizer, words, separator) -> Words:
    """The usable words, with or without a space before a prompt's first: as leaves more words of one token."""
    styles = [_stable(tokenizer, words, leads, separator) for leads in (True, False)]
    return max(styles, key=lambda found: len(found.single))


def _separator(tokenizer, name) -> str:
    if name not in SEPARATORS:
        raise UsageError(f"separator is {name!r}; it is one of {', '.join(SEPARATORS)}.")
    if name == "none":
        return ""
    for key in SEPARATORS[name]:
        text = tokenizer.special_tokens.get(key)
        if text and len(tokenizer.encode(text)) == 1:
            return text
    raise UsageError(f"{tokenizer.name} names no BOS or EOS token that is one token. Try --separator none.")


def _stable(tokenizer, words, leads, separator) -> Words:
    """The words whose tokens are the same alone, before and after every other one, and beside the separator."""
    texts = [f" {word}" for word in words]
    trial = Words(tokenizer, texts, np.zeros(len(texts), dtype=np.int64), leads, separator)
    alone = _encode(tokenizer, [trial.spell(text) for text in texts])
    keep = np.array([len(tokens) > 0 for tokens in alone])
    if separator:
        mark = tokenizer.encode(separator).tolist()
        after = _encode(tokenizer, [separator + text for text in texts])
        before = _encode(tokenizer, [trial.spell(text) + separator for text in texts])
        keep &= [found.tolist() == [*mark, *own] for found, own in zip(after, alone, strict=True)]
        keep &= [found.tolist() == [*own, *mark] for found, own in zip(before, alone, strict=True)]
    places = np.flatnonzero(keep)
    texts, alone = [texts[place] for place in places], [alone[place] for place in places]
    bad = _bad_pairs(tokenizer, texts, alone, trial.spell)
    while bad.any():  # the word with the most bad pairs goes, until none is left
        worst = int((bad.sum(axis=0) + bad.sum(axis=1)).argmax())
        bad = np.delete(np.delete(bad, worst, axis=0), worst, axis=1)
        del texts[worst], alone[worst]
    return Words(tokenizer, texts, np.array([len(own) for own in alone], dtype=np.int64), leads, separator, alone)


def _bad_pairs(tokenizer, texts, alone, spell):
    """(first, second) -> whether the two side by side give other tokens than each alone."""
    bad = np.zeros((len(texts), len(texts)), dtype=bool)
    for row, text in enumerate(texts):
        joined = _encode(tokenizer, [spell(text + other) for other in texts])
        bad[row] = [
            both.tolist() != [*alone[row], *own] for both, own in zip(joined, alone, strict=True)
        ]  # fmt: skip
    return bad


def _encode(tokenizer, texts):
    if not texts:
        return []
    tokens, offsets = tokenizer.encode_batch(texts)
    return np.split(tokens, offsets[1:-1])


def _short_words():
    return ["".join(letters) for size in (1, 2, 3) for letters in product(ascii_lowercase, repeat=size)]
