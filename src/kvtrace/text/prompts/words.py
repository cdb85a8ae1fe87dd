"""Words with stable tokens: each has the same tokens next to any other word of the list, and next to the separator.

Byte-pair tokenizers split text before each space, so most words with their leading space are stable. Tokenizers that
mark the start of words themselves need the first word of a text without a space. Both are detected by tokenising every
pair of words.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from pathlib import Path
from string import ascii_lowercase

import numpy as np

from ..._base.errors import InputError, UsageError, wrong_word
from ..._base.input_files import open_read
from ..tokenizers import Tokenizer

# Cicero, De finibus, as abridged by typesetters
LOREM = """
lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore et dolore magna aliqua
enim ad minim veniam quis nostrud exercitation ullamco laboris nisi aliquip ex ea commodo consequat duis aute irure in
reprehenderit voluptate velit esse cillum eu fugiat nulla pariatur excepteur sint occaecat cupidatat non proident sunt
culpa qui officia deserunt mollit anim id est laborum
""".split()  # noqa: SIM905
MAX_WORDS = 256  # words that are tested; all pairs are tokenised, so the cost is quadratic
MIN_SINGLE = 1  # words of one token; with fewer, short letter combinations are added
SEPARATORS = {"none": (), "bos": ("bos_token", "eos_token"), "eos": ("eos_token", "bos_token")}


@dataclass(frozen=True, eq=False)
class WordList:
    """Words with stable tokens, each with its leading space, and the separator at the start of blocks."""

    tokenizer: Tokenizer
    texts: list[str]
    tokens: np.ndarray  # word -> tokens
    leads: bool  # whether a prompt starts with the space of its first word
    separator: str = ""  # one control token, or empty

    @classmethod
    def of(cls, tokenizer: Tokenizer, words: Iterable[str] | None = None, *, separator: str = "none") -> WordList:
        """The stable words among `words` (default: Lorem Ipsum).

        UsageError if no word is a single stable token, or if the tokenizer has no such separator.

        >>> from kvtrace.text.tokenizers import load
        >>> words = WordList.of(load("deepseek-r1"))
        >>> words.single[:3], len(words.wide) > 1000
        ([' ipsum', ' dolor', ' sit'], True)
        """
        return _word_list(tokenizer, tuple(dict.fromkeys(LOREM if words is None else words))[:MAX_WORDS], separator)

    @property
    def single(self) -> list[str]:
        """The words of one token."""
        return [text for text, count in zip(self.texts, self.tokens, strict=True) if count == 1]

    @cached_property
    def wide(self) -> list[str]:
        """The words of one token, and letter combinations of one token: for families with many siblings."""
        singles = set(self.single)
        combinations = [text for text in (f" {word}" for word in _short_words()) if text not in singles]
        return self.single + self._stable_singles(combinations)

    def spell(self, text: str) -> str:
        """The text of a prompt. Some tokenizers need its first word without a space."""
        return text if self.leads else text.removeprefix(" ")

    def _stable_singles(self, texts):
        """The texts of one token whose token does not change next to a word or the separator."""
        neighbours = [*self.single[:2], *([self.separator] if self.separator else [])]
        alone = _encode(self.tokenizer, [self.spell(text) for text in texts])
        fits = np.array([len(tokens) == 1 for tokens in alone])
        for neighbour in neighbours:
            spelled = neighbour if neighbour == self.separator else self.spell(neighbour)
            neighbour_tokens = _encode(self.tokenizer, [spelled])[0]
            for text_first in (True, False):
                joined = [self.spell(text + neighbour if text_first else neighbour + text) for text in texts]
                fits &= [
                    both.tolist() == ([*own, *neighbour_tokens] if text_first else [*neighbour_tokens, *own])
                    for both, own in zip(_encode(self.tokenizer, joined), alone, strict=True)
                ]
        return [text for text, fit in zip(texts, fits, strict=True) if fit]


@lru_cache(maxsize=8)  # `hashes_to_texts` may be called once a text with the same words
def _word_list(tokenizer, candidates: tuple[str, ...], separator) -> WordList:
    separator_text = _separator(tokenizer, separator)
    best = _best(tokenizer, candidates, separator_text)
    if len(best.single) < MIN_SINGLE:  # a small vocabulary has tokens for letter combinations only
        best = _best(tokenizer, [*candidates, *_short_words()[:MAX_WORDS]][:MAX_WORDS], separator_text)
    if not best.single:
        beside = "" if separator == "none" else f" next to the separator {separator}"
        raise UsageError(
            f"none of {len(candidates):,} words is a single token of {tokenizer.name} that does not change{beside}. "
            "Try --words with a file of other words, or another --separator."
        )
    return best


def _best(tokenizer, words, separator) -> WordList:
    """The stable words, with or without a space at the start of a prompt: whichever has more words of one token."""
    word_lists = [_stable(tokenizer, words, leads, separator) for leads in (True, False)]
    return max(word_lists, key=lambda word_list: len(word_list.single))


def _separator(tokenizer, name) -> str:
    if name not in SEPARATORS:
        raise wrong_word(name, "a --separator", SEPARATORS)
    if name == "none":
        return ""
    for key in SEPARATORS[name]:
        text = tokenizer.special_tokens.get(key)
        if text and len(tokenizer.encode(text)) == 1:
            return text
    raise UsageError(f"{tokenizer.name} has no BOS or EOS token that is a single token. Use --separator none.")


def _stable(tokenizer, words, leads, separator) -> WordList:
    """The words whose tokens do not change before and after any other word, or next to the separator."""
    texts = [f" {word}" for word in words]
    trial = WordList(tokenizer, texts, np.zeros(len(texts), dtype=np.int64), leads, separator)
    alone = _encode(tokenizer, [trial.spell(text) for text in texts])
    is_stable = np.array([len(tokens) > 0 for tokens in alone])
    if separator:
        separator_tokens = tokenizer.encode(separator).tolist()
        after = _encode(tokenizer, [separator + text for text in texts])
        before = _encode(tokenizer, [trial.spell(text) + separator for text in texts])
        is_stable &= [both.tolist() == [*separator_tokens, *own] for both, own in zip(after, alone, strict=True)]
        is_stable &= [both.tolist() == [*own, *separator_tokens] for both, own in zip(before, alone, strict=True)]
    stable = np.flatnonzero(is_stable)
    texts, alone = [texts[index] for index in stable], [alone[index] for index in stable]
    bad = _bad_pairs(tokenizer, texts, alone, trial.spell)
    while bad.any():  # remove the word with the most bad pairs until no bad pair is left
        worst = int((bad.sum(axis=0) + bad.sum(axis=1)).argmax())
        bad = np.delete(np.delete(bad, worst, axis=0), worst, axis=1)
        del texts[worst], alone[worst]
    return WordList(tokenizer, texts, np.array([len(own) for own in alone], dtype=np.int64), leads, separator)


def _bad_pairs(tokenizer, texts, alone, spell):
    """(first, second) -> whether the two words have other tokens next to each other than alone."""
    bad = np.zeros((len(texts), len(texts)), dtype=bool)
    for row, text in enumerate(texts):
        joined = _encode(tokenizer, [spell(text + second) for second in texts])
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
    """All combinations of one to three letters."""
    return ["".join(letters) for size in (1, 2, 3) for letters in product(ascii_lowercase, repeat=size)]


def read_words(path: str | Path) -> list[str]:
    """The words of a text file, separated by white space; InputError if it has none or is not UTF-8."""
    with open_read(path) as stream:
        try:
            words = stream.read().decode("utf-8").split()
        except UnicodeDecodeError:
            raise InputError(f"{path}: not UTF-8 text.") from None
    if not words:
        raise InputError(f"{path}: the file has no words.")
    return words
