"""The part of a trace that fits a device and a time: shorter, smaller, and slowed down to a load."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kvtrace._base.errors import UsageError
from kvtrace.trace.columns import fields_of, replace_columns
from kvtrace.trace.trace import Trace

LOAD_OF_BUDGET = 0.7  # of the budget is planned; the rest is for the weights, the first steps, and errors


def shrunk(trace: Trace, factor: int) -> Trace:
    """A trace with all lengths and the block size divided by a factor; ids, and what is shared, stay.

    UsageError if the factor does not divide the block size.

    >>> from kvtrace.trace.building import toy
    >>> small = shrunk(toy("0 1", "0 2", block_size=512), 32)
    >>> small.block_size, small.input_length.tolist(), small.hash_ids.tolist()
    (16, [32, 32], [0, 1, 0, 2])
    """
    if factor < 1 or trace.block_size % factor:
        raise UsageError(f"--shrink {factor} does not divide the block size, {trace.block_size}.")
    prompt = trace.input_length // factor if trace.tail == "dropped" else -(-trace.input_length // factor)
    columns = replace_columns(trace, input_length=prompt, output_length=-(-trace.output_length // factor))
    return Trace(**fields_of(columns), block_size=trace.block_size // factor, tail=trace.tail)


def cut(trace: Trace, *, minutes: float, longest: int) -> tuple[Trace, int]:
    """The requests of the first minutes with at most `longest` tokens, and how many were longer."""
    part = trace.window(0, minutes * 60_000)
    fits = part.input_length + part.output_length <= longest
    if not fits.any():
        raise UsageError(f"No request has at most {longest:,} tokens. Raise --max-tokens or --shrink.")
    return part[np.flatnonzero(fits)], int((~fits).sum())


def new_tokens(trace: Trace) -> np.ndarray:
    """Prompt tokens of each request that no earlier one has: what a cache without limit leaves to compute."""
    first = np.zeros(trace.distinct, dtype=np.int64)
    owner = np.repeat(np.arange(len(trace)), np.diff(trace.offsets))
    first[trace.hash_ids[::-1]] = owner[::-1]  # id -> the first request that has it
    hits = np.bincount(owner, weights=first[trace.hash_ids] < owner, minlength=len(trace)).astype(np.int64)
    return np.maximum(trace.input_length - hits * trace.block_size, 1)


def to_budget(
    trace: Trace, seconds_of: Callable[[np.ndarray, np.ndarray], np.ndarray], *, budget_s: float, load: float
) -> tuple[Trace, float, np.ndarray]:
    """The first requests whose work takes the budget, their times stretched so that work arrives at a load.

    Args:
        trace: The requests.
        seconds_of: The estimated seconds of requests, from their new prompt tokens and their output tokens.
        budget_s: Seconds of wall-clock time.
        load: Seconds of work that arrive per second.

    Returns:
        The requests, the factor that their times were multiplied by, and the seconds of each.
    """
    seconds = seconds_of(new_tokens(trace), trace.output_length)
    count = max(int(np.searchsorted(np.cumsum(seconds), LOAD_OF_BUDGET * budget_s)), 1)
    part, seconds = trace[:count], seconds[:count]
    span = part.timestamp[count - 1] / 1000
    factor = float(seconds.sum() / load / span) if span else 1.0
    columns = replace_columns(part, timestamp=part.timestamp * factor)
    return Trace(**fields_of(columns), block_size=part.block_size, tail=part.tail), factor, seconds
