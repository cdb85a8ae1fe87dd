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
    """Turn texts into block ids: 0, 1, 2, ... by first appearance, equal for equal prefixes, tail block included.

    Args:
        tokenizer: A tokenizer, or its name; no special token is added.
        texts: The texts; an empty one has no block.
        block_size: Tokens a block.

    Returns:
        The ids of each text.

    Raises:
        UsageError: The block size is below 1, or there is no such tokenizer.

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
    """Make up a text for each row of block ids: rows that share ids share those tokens, and no others.

    Args:
        tokenizer: A tokenizer, or its name.
        hash_ids: An id for each block of each row, with or without the partial last one.
        input_lengths: Tokens of each text.
        block_size: Tokens a block.
        separator: A control token first in each block: "none", "bos" or "eos".
        words: Words to write with; the default is Lorem Ipsum.
        seed: Seed of the choice of words.

    Returns:
        One text a row, of the given number of tokens.

    Raises:
        InputError: An id has two sizes, or a row has more or fewer ids than blocks.
        UsageError: The tokenizer keeps none of the words apart, or has no such separator.

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
