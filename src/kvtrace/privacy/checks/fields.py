"""fields: only the fields of a trace, only words from a closed list, and nothing that identifies anybody."""

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
REMEDY = "Remove the field, or make the trace with `kvtrace anonymize --profile standard`."
UNKNOWN = "unknown field of numbers"


def check(evidence: Evidence) -> Finding:
    """Check every field and each distinct value; report field, kind, count and first line, never the value."""
    marks = [
        {"field": shown(name), "kind": kind, "count": int(count), "first_line": line}
        for name, values in evidence.fields.items()
        for kind, count, line in _marks(evidence, name, values)
    ]
    marks += [
        {"field": shown(name), "kind": "list or object", "count": int(count), "first_line": None}
        for name, count in evidence.read_result.nested.items()
    ]
    if unread := evidence.source.unread:
        marks.append({"field": "", "kind": "unreadable row", "count": len(unread), "first_line": unread[0].line})
    figure: dict[str, Any] = {"fields": len(evidence.fields) + 1, "marks": marks}
    if not marks:
        return passed(
            figure, f"all {len(evidence.fields) + 1:,} fields belong to a trace, and the only text is request types."
        )
    bad = [mark for mark in marks if mark["kind"] != UNKNOWN]
    sentence = "; ".join(map(_description, (bad or marks)[:4])) + (f"; and {len(bad) - 4} more" if len(bad) > 4 else "")
    return failed(figure, f"{sentence}.", REMEDY) if bad else warned(figure, f"{sentence}.", REMEDY)


def _description(mark) -> str:
    where = "" if mark["first_line"] is None else f", first on line {mark['first_line']:,}"
    name = f"{mark['field']}: " if mark["field"] else ""
    return f"{name}{mark['kind']} in {mark['count']:,} row{'' if mark['count'] == 1 else 's'}{where}"


def _marks(evidence, name, values):
    """(kind, rows, first line) of each kind of forbidden value in a field."""
    rows: dict[str, np.ndarray] = {}  # kind -> whether a row has it
    if values.dtype == object:
        listed = values.tolist()
        kind_of_text = {text: _kind(name, text) for text in {value for value in listed if type(value) is str}}
        if any(kind_of_text.values()):
            kind_of_row = [kind_of_text[value] if type(value) is str else None for value in listed]
            for kind in Counter(kind for kind in kind_of_row if kind):
                rows[kind] = np.array([one == kind for one in kind_of_row])
        numeric = np.array([type(value) in (int, float) for value in listed], dtype=bool)
        numbers = np.array([float(v) if is_number else 0.0 for v, is_number in zip(listed, numeric, strict=True)])
    else:
        numeric, numbers = np.ones(len(values), dtype=bool), values.astype(np.float64)
    if name != "timestamp" and len(numbers) and np.nanmax(np.abs(numbers), initial=0.0) >= 1e8:
        epoch = numeric & np.array([is_epoch(number) for number in numbers.tolist()])
        rows["epoch time"] = rows.get("epoch time", False) | epoch
        rows["number large enough to be an identifier"] = numeric & (np.abs(numbers) >= IDENTIFIER) & ~epoch
    if name not in ALLOWED and not rows:
        has_value = np.array([value is not None for value in values.tolist()]) if values.dtype == object else numeric
        rows[UNKNOWN] = has_value
    for kind in kinds(name):
        rows[f"field name that looks like: {kind}"] = np.ones(len(values), dtype=bool)
    for kind, has_kind in rows.items():
        if has_kind.any():
            yield kind, int(has_kind.sum()), evidence.line(int(np.argmax(has_kind)))


def _kind(name, text) -> str | None:
    """The kind of a forbidden text; None for a request type."""
    if name == "type" and text in TYPES:
        return None
    return next(iter(kinds(text)), "text")
