"""Check 11: lengths fit the blocks, are rounded as the profile says, and do not give a limit of the service away."""

from __future__ import annotations

import numpy as np

from ...trace.invariants import expected_blocks
from .evidence import Evidence
from .finding import Finding, failed, not_made, passed, warned

SPIKE = 10  # times as many requests at the greatest output length as at those just below: it looks like a limit
SPIKE_ROWS = 10
BELOW = 20  # just below: a twentieth


def check(there: Evidence) -> Finding:
    """Rows whose numbers do not fit, rows that are not rounded, and requests at the greatest output length."""
    columns = there.columns
    if there.block_size is None:
        found = not_made("no one block size fits the prompts, or several do")
        return failed(found.figure, found.sentence, "Pass --block-size.")
    broken = _broken(there)
    figure = {name: int(rows.sum()) for name, rows in broken.items()}
    if any(figure.values()):
        first = there.line(int(np.argmax(np.logical_or.reduce(list(broken.values())))))
        told = "; ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in figure.items() if count)
        return failed(
            figure, f"{told}; the first on line {first:,}.", "`kvtrace check` lists the lines; release it again."
        )
    at_most, below = _at_greatest(columns.output_length)
    figure["at_greatest_output_length"] = at_most
    rounded = there.profile.round_output != "exact"
    if not rounded and at_most >= max(SPIKE_ROWS, SPIKE * below):
        return warned(
            figure, f"{at_most:,} requests have the greatest output length: it looks like a limit of the service.",
            "Round the output lengths (--round-output pow2), or accept it.",
        )  # fmt: skip
    return passed(figure, "lengths fit the blocks" + (" and are rounded as declared." if rounded else "."))


def _at_greatest(outputs) -> tuple[int, float]:
    """Requests at the greatest output length, and on average at one of the lengths just below it."""
    longest = int(outputs.max())
    width = max(1, longest // BELOW)
    below = (outputs < longest) & (outputs >= longest - width)
    return int((outputs == longest).sum()), float(below.sum() / width)


def _broken(there) -> dict[str, np.ndarray]:
    """What does not fit -> whether a row is so."""
    columns, size = there.columns, there.block_size
    lengths, outputs = columns.input_length, columns.output_length
    negative, whole = (lengths < 0) | (outputs < 0), np.zeros(len(columns), dtype=bool)
    blocks = ~negative & (np.diff(columns.offsets) != expected_blocks(lengths, size, there.tail or "kept"))
    if columns.output_offsets is not None:
        found = np.diff(columns.output_offsets)
        expected = expected_blocks(lengths + outputs, size, there.tail or "kept") - lengths // size
        whole = ~negative & (found != 0) & (found != expected)
    return {
        "negative_lengths": negative,
        "other_block_counts_than_lengths_give": blocks,
        "other_output_blocks_than_lengths_give": whole,
        "input_lengths_not_rounded": ~negative & ~_is_rounded(lengths, there.profile.round_input, size, there.tail),
        "output_lengths_not_rounded": ~negative & ~_is_rounded(outputs, there.profile.round_output, size, None),
    }


def _is_rounded(lengths, rule, size, tail) -> np.ndarray:
    if rule == "exact":
        return np.ones(len(lengths), dtype=bool)
    if rule == "pow2":
        return (lengths & (lengths - 1)) == 0
    step = size if rule == "block" else int(rule)
    # where tails are dropped lengths are rounded down, and one that is less than a step is 1
    return (lengths % step == 0) | ((tail == "dropped") & (lengths == 1))
