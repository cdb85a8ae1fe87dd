"""Check 3: numbers that are never used tell how much was left out."""

from __future__ import annotations

import numpy as np

from .evidence import Evidence
from .finding import Finding, failed, passed, warned


def check(there: Evidence) -> Finding:
    """Numbers between the least and the greatest id that no block has; the same of sessions and requests' names."""
    numbers = there.numbers
    unused = numbers.greatest - numbers.least + 1 - numbers.distinct if numbers.distinct else 0
    names = {name: gap for name in ("session_id", "chat_id", "session") if (gap := _unused(there.fields.get(name)))}
    figure = {"unused_ids": unused, "unused_names": names}
    if unused:
        return failed(
            figure,
            f"{unused:,} numbers between the least id and the greatest are never used: they tell what is missing.",
            "Number the ids anew after rows were left out: `kvtrace convert` does.",
        )
    if names:
        told = ", ".join(f"{count:,} of {name}" for name, count in names.items())
        return warned(figure, f"no id is missing, but numbers are never used: {told}.", "Number them anew.")
    return passed(figure, "no number between the least and the greatest id is missing.")


def _unused(values) -> int:
    """Whole numbers that a field leaves out; 0 where it holds anything else."""
    if values is None:
        return 0
    if values.dtype.kind in "iu":
        numbers = np.unique(values[values != -1])
        return int(numbers[-1]) - int(numbers[0]) + 1 - len(numbers) if len(numbers) else 0
    known = {value for value in values.tolist() if value is not None and value != -1}
    if not known or any(type(value) is not int for value in known):
        return 0
    return max(known) - min(known) + 1 - len(known)
