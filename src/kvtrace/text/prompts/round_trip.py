"""Texts to ids and back, as lists: the founding document's two functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..._base.errors import InputError, UsageError
from ..tokenizers import Tokenizer, load
from .blocks import Blocks
from .builder import Prompts
from .words import Words


def texts_to_hashes(tokenizer: Tokenizer | str, texts: Iterable[str], block_size: int = 512) -> list[list[int]]:
    """The block ids of each text: 0, 1, 2, ... by first appearance, equal for equal prefixes, tail block included.

    No special token is added. An empty text has no block.

    >>> texts_to_hashes("deepseek-r1", ["One two three four", "One two three five", "One two"], block_size=2)
    [[0, 1], [0, 2], [0]]
    """
    tokenizer, texts = _tokenizer(tokenizer), list(texts)
    if block_size < 1:
        raise UsageError(f"block size is {block_size}; it is a whole number of tokens, 1 or more.")
    tokens, offsets = tokenizer.encode_batch(texts)
    number: dict[tuple[int, bytes], int] = {}  # (the block before, these tokens) -> id
    rows = []
    for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        row, before = [], -1
        for first in range(start, stop, block_size):
            here = tokens[first : min(first + block_size, stop)].tobytes()
            before = number.setdefault((before, here), len(number))
            row.append(before)
        rows.append(row)
    return rows


def hashes_to_texts(
    tokenizer: Tokenizer | str,
    hash_ids: Iterable[Sequence[int]],
    input_lengths: Sequence[int],
    block_size: int = 512,
    *,
    separator: str = "none",
    words: Iterable[str] | None = None,
    seed: int = 0,
) -> list[str]:
    """One made-up text a row, of so many tokens: rows that share ids share the tokens, and no others.

    Rows hold an id for each block, with or without the partial last one; without it, the rest is the row's own.
    `separator` is none, bos or eos: a control token first in each block. InputError where an id has two sizes, or a row
    more or fewer ids than blocks.

    >>> texts = hashes_to_texts("deepseek-r1", [[0, 1], [0, 2], [0]], [4, 3, 2], block_size=2)
    >>> texts_to_hashes("deepseek-r1", texts, block_size=2)
    [[0, 1], [0, 2], [0]]
    """
    tokenizer, rows = _tokenizer(tokenizer), [list(row) for row in hash_ids]
    lengths = np.asarray(input_lengths, dtype=np.int64).reshape(-1)
    if len(rows) != len(lengths):
        raise InputError(f"{len(rows):,} rows of ids, and {len(lengths):,} input lengths. Each row needs one.")
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    flat = [block for row in rows for block in row]
    number: dict[int, int] = {}  # id, of any size -> 0, 1, 2, ...
    ids = np.array([number.setdefault(block, len(number)) for block in flat], dtype=np.int64)
    blocks = Blocks.of(ids, offsets, lengths, block_size, names=flat)
    prompts = Prompts(blocks, Words.of(tokenizer, words, separator=separator), seed=seed)
    return [prompts.text(row) for row in range(len(rows))]


def _tokenizer(given) -> Tokenizer:
    return load(given) if isinstance(given, str) else given
