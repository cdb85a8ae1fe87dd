"""Check 1: only the fields of a trace, no words but those of a closed list, and nothing that names somebody."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from ..allowed_fields import TYPES
from .evidence import Evidence
from .finding import Finding, failed, passed, warned
from .marks import IDENTIFIER, is_epoch, kinds, shown

ALLOWED = ("timestamp", "input_length", "output_length", "hash_ids", "output_hash_ids", "session_id", "chat_id",
           "parent_chat_id", "type", "turn", "session", "parent")  # fmt: skip
REMEDY = "Take the field out, or make the trace with `kvtrace anonymize --profile standard`."


def check(there: Evidence) -> Finding:
    """Every field and every distinct value of it; what is found is told by field, kind, count and first line."""
    found = [
        {"field": shown(name), "kind": kind, "count": int(count), "first_line": line}
        for name, values in there.fields.items()
        for kind, count, line in _marks_of(there, name, values)
    ]
    found += [
        {"field": shown(name), "kind": "list or object", "count": int(count), "first_line": None}
        for name, count in there.found.nested.items()
    ]
    if unread := there.source.unread:
        broken = {"field": "", "kind": "unreadable row", "count": len(unread), "first_line": unread[0].line}
        found.append(broken)
    figure: dict[str, Any] = {"fields": len(there.fields) + 1, "found": found}
    if not found:
        return passed(figure, f"only fields of a trace ({len(there.fields) + 1:,}), and no text but request types.")
    bad = [one for one in found if one["kind"] != "unknown field of numbers"]
    told = "; ".join(_told(one) for one in (bad or found)[:4]) + (f"; and {len(bad) - 4} more" if len(bad) > 4 else "")
    return failed(figure, f"{told}.", REMEDY) if bad else warned(figure, f"{told}.", REMEDY)


def _told(one) -> str:
    where = "" if one["first_line"] is None else f", first on line {one['first_line']:,}"
    name = f"{one['field']}: " if one["field"] else ""
    return f"{name}{one['kind']} in {one['count']:,} row{'' if one['count'] == 1 else 's'}{where}"


def _marks_of(there, name, values):
    """(kind, rows, first line) of whatever a field holds that it must not."""
    rows: dict[str, np.ndarray] = {}
    if values.dtype == object:
        listed = values.tolist()
        bad = {text: _kind(name, text) for text in {value for value in listed if type(value) is str}}
        if any(bad.values()):
            of_row = [bad[value] if type(value) is str else None for value in listed]
            for kind in Counter(kind for kind in of_row if kind):
                rows[kind] = np.array([one == kind for one in of_row])
        numeric = np.array([type(value) in (int, float) for value in listed], dtype=bool)
        numbers = np.array([float(v) if is_number else 0.0 for v, is_number in zip(listed, numeric, strict=True)])
    else:
        numeric, numbers = np.ones(len(values), dtype=bool), values.astype(np.float64)
    if name != "timestamp" and len(numbers) and np.nanmax(np.abs(numbers), initial=0.0) >= 1e8:
        epoch = numeric & np.array([is_epoch(number) for number in numbers.tolist()])
        rows["epoch time"] = rows.get("epoch time", False) | epoch
        rows["number so large that it names something"] = numeric & (np.abs(numbers) >= IDENTIFIER) & ~epoch
    if name not in ALLOWED and not rows:
        there_at_all = np.array([value is not None for value in values.tolist()]) if values.dtype == object else numeric
        rows["unknown field of numbers"] = there_at_all
    for name_kind in kinds(name):
        rows[f"name that reads as {name_kind}"] = np.ones(len(values), dtype=bool)
    for kind, at in rows.items():
        if at.any():
            yield kind, int(at.sum()), there.line(int(np.argmax(at)))


def _kind(name, text) -> str | None:
    """What a text is, None if it may stand there."""
    if name == "type" and text in TYPES:
        return None
    return next(iter(kinds(text)), "text")
