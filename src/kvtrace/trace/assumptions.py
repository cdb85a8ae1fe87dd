"""Assumptions in place of what a log did not hold. Each is named in `meta["assumed"]` and beside every result."""

from __future__ import annotations

from copy import copy

import numpy as np

from .._base.errors import UsageError
from .columns import require_trace
from .invariants import MAX_LENGTH
from .meta import merge
from .trace import Trace
from .unknown import OUTPUTS, UNKNOWN_LENGTH, knows


def assume_outputs(trace: Trace, tokens: int) -> Trace:
    """The trace with this output length wherever its log has no answer.

    Args:
        trace: The trace.
        tokens: The assumed output length.

    Returns:
        A trace whose results state the assumption; the trace itself if all of its output lengths are known.

    Raises:
        UsageError: The number of tokens is not valid.

    >>> from kvtrace.trace.building import toy
    >>> assume_outputs(toy("0", "1"), 128).output_length.tolist()
    [1, 1]
    """
    require_trace(trace)
    if not 0 <= tokens <= MAX_LENGTH:
        raise UsageError(f"the assumed output length must be from 0 to {MAX_LENGTH:,} tokens, not {tokens:,}.")
    if knows(trace, trace.meta, OUTPUTS):
        return trace
    assumed = copy(trace)  # a streamed trace, too: its outputs have no blocks where a length is unknown
    assumed.output_length = np.where(trace.output_length == UNKNOWN_LENGTH, tokens, trace.output_length)
    assumed.meta = merge(trace.meta, {"assumed": {"output_length": tokens}})
    return assumed
