"""The invariants of a trace: each `verify` function raises InputError and names the row that breaks one."""

from __future__ import annotations

import numpy as np

from .._base.errors import InputError


def expected_blocks(tokens: np.ndarray, block_size: int, tail: str) -> np.ndarray:
    """The number of blocks for each number of tokens; a partial block counts unless tails are dropped."""
    return tokens // block_size if tail == "dropped" else -(-tokens // block_size)


def expected_output_blocks(trace) -> np.ndarray:
    """Blocks of each output: those of prompt and output together, less the prompt's full blocks."""
    both = expected_blocks(trace.input_length + trace.output_length, trace.block_size, trace.tail)
    return both - trace.full_blocks


def verify_rows(name, values, rows):
    """InputError unless a column has one value for each row."""
    if values is None:
        return
    if values.shape != (rows,):
        raise InputError(f"{name} has {values.size:,} values, but there are {rows:,} requests.")
    if name.endswith("length") and rows and values.min() < 0:
        raise InputError(f"row {int(np.argmax(values < 0))}: {name} is negative.")


def verify_offsets(name, offsets, rows, references):
    """InputError unless offsets ascend from 0 to the number of block references."""
    if offsets is None or offsets.shape != (rows + 1,):
        count = 0 if offsets is None else offsets.size
        raise InputError(f"{name} has {count:,} values; {rows:,} requests need {rows + 1:,}.")
    if offsets[0] != 0 or offsets[-1] != references or (np.diff(offsets) < 0).any():
        raise InputError(f"{name} do not ascend from 0 to {references:,}, the number of block references.")


def verify_lengths(trace):
    """InputError unless prompts have as many blocks as their lengths give."""
    expected = expected_blocks(trace.input_length, trace.block_size, trace.tail)
    wrong = np.flatnonzero(np.diff(trace.offsets) != expected)
    if wrong.size:
        row = int(wrong[0])
        raise InputError(
            f"row {row}: {trace.offsets[row + 1] - trace.offsets[row]:,} hash_ids for {trace.input_length[row]:,} "
            f"tokens; at block size {trace.block_size} there should be {expected[row]:,}. Try another block size."
        )


def verify_outputs(trace):
    """InputError unless each output has no blocks, or as many as the lengths give."""
    blocks = np.diff(trace.output_offsets)
    wrong = np.flatnonzero((blocks != 0) & (blocks != expected_output_blocks(trace)))
    if wrong.size:
        raise InputError(f"row {int(wrong[0])}: {blocks[wrong[0]]:,} output blocks do not fit its output_length.")


def verify_unique_tails(trace):
    """InputError if a tail block is shared."""
    has_tail = trace.input_length % trace.block_size != 0
    tails = trace.hash_ids[trace.offsets[1:][has_tail] - 1]
    uses = np.bincount(trace.hash_ids, minlength=trace.distinct)
    if (shared := np.flatnonzero(uses[tails] > 1)).size:
        row = int(np.flatnonzero(has_tail)[shared[0]])
        raise InputError(f"row {row}: its tail block is shared, but tails are unique in this trace.")
