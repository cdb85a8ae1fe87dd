"""Synthetic prompts whose tokens share prefixes exactly as a trace's ids do, and the ids of given texts.

As in Lin's report, `texts_to_hashes` splits the tokens of each text into blocks and gives equal prefixes equal ids, and
`hashes_to_texts` turns ids into texts, with fixed tokens for each id. `write_prompts` writes those of a whole trace.

    words.py       words whose tokens do not depend on their neighbours
    blocks.py      the blocks of a trace (size, parent, rank among siblings), the text of a block and of a row
    bodies.py      output formats: plain prompts, OpenAI bodies, lines for vLLM, SGLang and AIPerf
    writing.py     write, verify and count the prompts of a trace, or the agents of its sessions (dag_jsonl)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..._base.arrays import offsets_of
from ..._base.errors import InputError, UsageError
from ..tokenizers import Tokenizer, load
from .blocks import PromptBlocks, PromptBuilder
from .words import WordList
from .writing import WriteSummary, write_prompts


def texts_to_hashes(tokenizer: Tokenizer | str, texts: Iterable[str], block_size: int = 512) -> list[list[int]]:
    """Turn texts into block ids: 0, 1, 2, ... by first appearance, equal for equal prefixes, tail block included.

    Args:
        tokenizer: A tokenizer, or its name; no special token is added.
        texts: The texts; an empty text has no blocks.
        block_size: Tokens per block.

    Returns:
        The ids of each text.

    Raises:
        UsageError: The block size is below 1, or the tokenizer is unknown.

    >>> texts_to_hashes("deepseek-r1", ["One two three four", "One two three five", "One two"], block_size=2)
    [[0, 1], [0, 2], [0]]
    """
    tokenizer, texts = _tokenizer(tokenizer), list(texts)
    if block_size < 1:
        raise UsageError(f"block size is {block_size}; it must be a whole number of tokens, at least 1.")
    tokens, offsets = tokenizer.encode_batch(texts)
    number: dict[tuple[int, bytes], int] = {}  # (parent id, tokens of the block) -> id
    rows = []
    for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        row, parent = [], -1
        for first in range(start, stop, block_size):
            block = tokens[first : min(first + block_size, stop)].tobytes()
            parent = number.setdefault((parent, block), len(number))
            row.append(parent)
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
    """Make up a text for each row of block ids. Rows share tokens exactly where they share ids.

    Args:
        tokenizer: A tokenizer, or its name.
        hash_ids: An id for each block of each row, with or without the partial last one.
        input_lengths: Tokens of each text.
        block_size: Tokens per block.
        separator: A control token at the start of each block: "none", "bos" or "eos".
        words: Words to use; the default is Lorem Ipsum.
        seed: Seed of the random words.

    Returns:
        One text a row, of the given number of tokens.

    Raises:
        InputError: An id has two sizes, or the number of ids does not fit a row's length.
        UsageError: No word has stable tokens, or the tokenizer has no such separator.

    >>> texts = hashes_to_texts("deepseek-r1", [[0, 1], [0, 2], [0]], [4, 3, 2], block_size=2)
    >>> texts_to_hashes("deepseek-r1", texts, block_size=2)
    [[0, 1], [0, 2], [0]]
    """
    tokenizer, rows = _tokenizer(tokenizer), [list(row) for row in hash_ids]
    lengths = np.asarray(input_lengths, dtype=np.int64).reshape(-1)
    if len(rows) != len(lengths):
        raise InputError(f"{len(rows):,} rows of ids, but {len(lengths):,} input lengths. Each row needs one length.")
    offsets = offsets_of([len(row) for row in rows])
    flat = [block for row in rows for block in row]
    number: dict[int, int] = {}  # given id -> 0, 1, 2, ...
    ids = np.array([number.setdefault(block, len(number)) for block in flat], dtype=np.int64)
    blocks = PromptBlocks.of(ids, offsets, lengths, block_size, names=flat)
    prompts = PromptBuilder(blocks, WordList.of(tokenizer, words, separator=separator), seed=seed)
    return [prompts.text(row) for row in range(len(rows))]


def _tokenizer(tokenizer) -> Tokenizer:
    return load(tokenizer) if isinstance(tokenizer, str) else tokenizer


__all__ = ["PromptBuilder", "WriteSummary", "hashes_to_texts", "texts_to_hashes", "write_prompts"]
