"""lengths: lengths fit the blocks, are rounded as the profile requires, and do not reveal a limit of the service."""

from __future__ import annotations

import numpy as np

from ...trace.invariants import rows_that_break
from ...trace.unknown import UNKNOWN_LENGTH
from .evidence import Evidence
from .finding import Finding, failed, passed, warned

SPIKE = 10  # a limit shows as this many times more requests at the greatest output length than just below it
SPIKE_ROWS = 10
BELOW = 20  # "just below" is the last twentieth of the lengths
DESCRIPTIONS = {  # figure -> words
    "negative_lengths": "negative lengths",
    "wrong_block_counts": "rows whose number of blocks does not fit their input length",
    "wrong_output_block_counts": "rows whose number of output blocks does not fit their output length",
    "input_lengths_not_rounded": "input lengths that are not rounded",
    "output_lengths_not_rounded": "output lengths that are not rounded",
    "rare_lengths": "rows whose lengths fewer rows have than contributors should",
}


def check(evidence: Evidence) -> Finding:
    """Count rows with wrong or unrounded lengths, and requests at the greatest output length."""
    columns = evidence.columns
    if evidence.block_size is None:
        sentence = "the check could not run: no block size fits all prompts, or several do."
        return failed({"checked": False}, sentence, "Pass --block-size.")
    bad = _bad_rows(evidence)
    figure = {name: int(rows.sum()) for name, rows in bad.items()}
    if any(figure.values()):
        first = evidence.line(int(np.argmax(np.logical_or.reduce(list(bad.values())))))
        listed = "; ".join(f"{count:,} {DESCRIPTIONS[name]}" for name, count in figure.items() if count)
        return failed(
            figure,
            f"{listed}; the first on line {first:,}.",
            "List the lines with `kvtrace check`, then release the trace again.",
        )
    greatest, just_below = _at_greatest(columns.output_length)
    figure["at_greatest_output_length"] = greatest
    rounded = evidence.profile.round_output != "exact"
    if not rounded and greatest >= max(SPIKE_ROWS, SPIKE * just_below):
        return warned(
            figure, f"{greatest:,} requests have the longest output length, which reveals the limit of the service.",
            "Round the output lengths (--round-output pow2), or accept the risk.",
        )  # fmt: skip
    return passed(figure, "lengths fit the blocks" + (" and are rounded as declared." if rounded else "."))


def _at_greatest(outputs) -> tuple[int, float]:
    """Requests at the greatest known output length, and the mean number at a length just below it."""
    outputs = outputs[outputs != UNKNOWN_LENGTH]
    longest = int(outputs.max(initial=0))
    width = max(1, longest // BELOW)
    below = (outputs < longest) & (outputs >= longest - width)
    return int((outputs == longest).sum()), float(below.sum() / width)


def _bad_rows(evidence) -> dict[str, np.ndarray]:
    """Kind of fault -> whether each row has it."""
    columns, size = evidence.columns, evidence.block_size
    broken = rows_that_break(columns, size, evidence.tail or "kept")
    lengths, outputs = columns.input_length, columns.output_length
    negative = broken["input_length"] | broken["output_length"]
    wrong = ~negative & broken["block counts"]
    wrong_outputs = ~negative & broken.get("output blocks", np.zeros(len(columns), dtype=bool))
    profile = evidence.profile
    return {
        "negative_lengths": negative,
        "wrong_block_counts": wrong,
        "wrong_output_block_counts": wrong_outputs,
        "input_lengths_not_rounded": ~negative & ~_is_rounded(lengths, profile.round_input, size, evidence.tail),
        "output_lengths_not_rounded": ~negative
        & (outputs != UNKNOWN_LENGTH)
        & ~_is_rounded(outputs, profile.round_output, 1, None),
        "rare_lengths": ~negative & (_rows_of_each(lengths, outputs) < (1 if profile.resample else profile.alike)),
    }


def _rows_of_each(lengths, outputs) -> np.ndarray:
    """How many rows have the lengths of each row: at least as many as contributors do."""
    pair = np.unique(np.stack([lengths, outputs]), axis=1, return_inverse=True)[1].reshape(-1)
    return np.bincount(pair)[pair]


def _is_rounded(lengths, rule, size, tail) -> np.ndarray:
    if rule == "exact":
        return np.ones(len(lengths), dtype=bool)
    if rule == "pow2":
        powers = lengths // size
        return ((powers & (powers - 1)) == 0) & (lengths % size == 0) | ((tail == "dropped") & (lengths == 1))
    step = size if rule == "block" else int(rule)
    # with dropped tails, lengths are rounded down; a length below one step becomes 1
    return (lengths % step == 0) | ((tail == "dropped") & (lengths == 1))
