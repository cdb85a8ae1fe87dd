"""The invariants of a trace that was read, in the plainest Python."""

from __future__ import annotations

import math


def broken(trace) -> list[str]:
    """What is wrong with a trace; nothing if it is valid.

    >>> from kvtrace.trace.building import toy
    >>> broken(toy("0 1", "0 2"))
    []
    """
    n, reasons = len(trace), []
    times, lengths, outputs = (getattr(trace, name).tolist() for name in ("timestamp", "input_length", "output_length"))
    prompts = [trace.prompt(row).tolist() for row in range(n)]
    if not n or times[0] != 0 or any(not math.isfinite(time) for time in times) or times != sorted(times):
        reasons.append("times")
    if any(length < 0 for length in lengths) or any(length < -1 for length in outputs):
        reasons.append("lengths")
    fits = {"dropped": lambda tokens: tokens // trace.block_size, "stated": None}
    count = fits.get(trace.tail, lambda tokens: -(-tokens // trace.block_size))
    if count and any(len(ids) != count(length) for ids, length in zip(prompts, lengths, strict=True)):
        reasons.append("block counts")
    seen: dict[int, int] = {}  # id -> the id before it
    chained = True
    for row, ids in enumerate(prompts):
        before = -1
        for block in [*ids, *_outputs(trace, row)]:
            if block not in seen and block != len(seen):
                reasons.append("numbering")
            if block in seen or len(ids) == 0:
                chained &= block not in seen or seen[block] == before
            seen.setdefault(block, before)
            before = block
    if len(seen) != trace.distinct:
        reasons.append("distinct")
    if trace.output_ids is None and chained != trace.is_chained:
        reasons.append("chains")
    if trace.parent is not None and any(not -1 <= parent < row for row, parent in enumerate(trace.parent.tolist())):
        reasons.append("parents")
    waits = trace.dependencies
    if waits is not None and any(
        not -1 <= row < request for request, row in zip(waits.request.tolist(), waits.row.tolist(), strict=True)
    ):
        reasons.append("dependencies")
    return sorted(set(reasons))


def _outputs(trace, row: int) -> list[int]:
    if trace.output_offsets is None or trace.output_ids is None:
        return []
    return trace.output_ids[trace.output_offsets[row] : trace.output_offsets[row + 1]].tolist()
