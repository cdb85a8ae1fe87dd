"""gaps: ids are contiguous. An unused number reveals how much was left out."""

from __future__ import annotations

from .evidence import Evidence
from .finding import Finding, failed, passed, warned

NAMES = ("session_id", "chat_id", "session", "domain")  # fields of numbers that count from 0


def check(evidence: Evidence) -> Finding:
    """Count the unused numbers among block ids, sessions and request names."""
    numbers = evidence.numbers
    unused = numbers.largest - numbers.smallest + 1 - numbers.distinct if numbers.distinct else 0
    names = {name: gap for name in NAMES if (gap := _unused(evidence.fields.get(name)))}
    figure = {"unused_ids": unused, "unused_names": names}
    if unused:
        return failed(
            figure,
            f"{unused:,} numbers between the smallest and the largest block id are not used: they reveal how much was "
            "left out.",
            "Renumber the ids with `kvtrace convert`.",
        )
    if names:
        fields = ", ".join(f"{count:,} of {name}" for name, count in names.items())
        return warned(
            figure,
            f"block ids are contiguous, but other fields have unused numbers: {fields}.",
            "Renumber these fields.",
        )
    return passed(figure, "block ids are contiguous.")


def _unused(values) -> int:
    """Integers missing between the smallest and the largest value; 0 if the field has other values."""
    if values is None:
        return 0
    if values.dtype.kind in "iu":
        from ..._native import numbering

        numbers = values[values != -1]
        return int(numbers.max()) - int(numbers.min()) + 1 - numbering.renumber(numbers)[1] if len(numbers) else 0
    known = {value for value in values.tolist() if value is not None and value != -1}
    if not known or any(type(value) is not int for value in known):
        return 0
    return max(known) - min(known) + 1 - len(known)
