"""Two checks of the file's form: canonical, fields.

* canonical: the trace is, byte for byte, what kvtrace writes of its rows. Anything else may hide in other bytes.
* fields: only the fields of the format, only words from a closed list, only numbers that the field can have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...formats.rewriting import Difference, differences
from ...trace.columns import MEASURED, NUMBERS
from ...trace.normalise import by_first_appearance
from ..allowed_values import EXTRA, IDENTIFIER, MAX_AGENT, MAX_TURN, TYPES, is_epoch, kinds, shown
from ..steps import agents_in_order
from .evidence import Evidence
from .finding import Finding, failed, passed

REWRITE_REMEDY = "`kvtrace release` or `kvtrace convert` writes the trace again, without the other bytes."
OTHER_VERSION = "Audit it with that version of pyarrow, or write it again with `kvtrace release`."


def check_canonical(evidence: Evidence) -> Finding:
    """Write the rows that were read again, and compare the bytes; look at the numbers of sessions, too."""
    mismatches = differences(evidence.source, evidence.kept_ids())
    is_parquet = evidence.read_result.format == "parquet"  # other readers number these columns themselves
    renamed, renamed_domains = (
        is_parquet and values is not None and not np.array_equal(by_first_appearance(values), values)
        for values in (evidence.columns.session, evidence.columns.domain)
    )
    figure = {"differs": [mismatch.value for mismatch in mismatches], "sessions_in_order": not renamed}
    if evidence.columns.domain is not None:
        figure["domains_in_order"] = not renamed_domains
    renamed_agents = not agents_in_order(evidence.columns)
    if "agent" in evidence.columns.extra:
        figure["agents_in_order"] = not renamed_agents
    if mismatches:
        sentence = (
            f"the file differs from the one that kvtrace writes for these requests ({_listed(mismatches)}), so text "
            "can be hidden in it."
        )
        return failed(figure, sentence, OTHER_VERSION if mismatches == [Difference.LIBRARY] else REWRITE_REMEDY)
    if renamed_domains:
        sentence = "domains do not count from 0 in the order of their first requests: their numbers can hide text."
        return failed(figure, sentence, REWRITE_REMEDY)
    if renamed_agents:
        sentence = (
            "agents do not count from 1 in each session, in the order of their first requests: they can hide text."
        )
        return failed(figure, sentence, REWRITE_REMEDY)
    if renamed:
        sentence = "sessions do not count from 0 in the order of their first requests: their numbers can hide text."
        return failed(figure, sentence, REWRITE_REMEDY)
    return passed(figure, "the file is byte for byte what kvtrace writes for these requests.")


def _listed(mismatches: list[Difference]) -> str:
    return " and ".join(mismatch.label for mismatch in mismatches)


NEEDED = ("timestamp", "input_length", "output_length", "hash_ids", "output_hash_ids")
ALLOWED = {  # format -> its fields; all others are unknown, for any values
    "mooncake": (*NEEDED, *EXTRA, "session_id", "domain", *MEASURED),
    "bailian": (*NEEDED, *EXTRA, "chat_id", "parent_chat_id", "domain", *MEASURED),
    "parquet": (*NEEDED, *EXTRA, "session", "parent", "domain", "dependencies", *NUMBERS),
    "agentic-mooncake": (*NEEDED, *EXTRA, "session", "parent", "domain", *MEASURED),
}
NUMBERED = (  # fields of whole numbers
    "session_id", "session", "chat_id", "parent_chat_id", "parent", "turn", "agent", "domain",
)  # fmt: skip
GREATEST = {"turn": MAX_TURN, "agent": MAX_AGENT}  # the others are below the number of rows
LENGTHS = ("input_length", "output_length")
MAX_LENGTH = 100_000_000  # a larger number could be an identifier
MAX_MS = 10 * 366 * 86_400_000  # ten years
REMEDY = "Remove the field, or make the trace with `kvtrace anonymize --profile standard`."
UNKNOWN = "unknown field"


def check_fields(evidence: Evidence) -> Finding:
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
    marks += [
        {"field": shown(name), "kind": UNKNOWN, "count": int(count), "first_line": None}
        for name, count in evidence.source.unknown_columns.items()
    ]
    waits = evidence.read_result.columns.dependencies
    if waits is not None and "dependencies" not in ALLOWED[evidence.read_result.format]:
        marks.append({"field": "dependencies", "kind": UNKNOWN, "count": len(waits), "first_line": None})
    if unread := evidence.source.unread:
        marks.append({"field": "", "kind": "unreadable row", "count": len(unread), "first_line": unread[0].line})
    figure: dict[str, Any] = {"fields": len(evidence.fields) + 1, "marks": marks}
    if not marks:
        return passed(figure, f"all {len(evidence.fields) + 1:,} fields are known; request types are the only text.")
    listed = "; ".join(map(_description, marks[:4])) + (f"; and {len(marks) - 4} more" if len(marks) > 4 else "")
    return failed(figure, f"{listed}.", REMEDY)


def _description(mark) -> str:
    where = "" if mark["first_line"] is None else f", first on line {mark['first_line']:,}"
    name = f"{mark['field']}: " if mark["field"] else ""
    return f"{name}{mark['kind']} in {mark['count']:,} row{'' if mark['count'] == 1 else 's'}{where}"


def _marks(evidence: Evidence, name: str, values: np.ndarray) -> Iterator[tuple[str, int, int]]:
    """(kind, rows, first line) of each kind of forbidden value in a field."""
    rows: dict[str, np.ndarray] = {}  # kind -> whether a row has it
    if values.dtype == object:
        listed = values.tolist()
        kind_of_text = {text: _kind(name, text) for text in {value for value in listed if type(value) is str}}
        if any(kind_of_text.values()):
            kind_of_row = [kind_of_text[value] if type(value) is str else None for value in listed]
            for kind in Counter(kind for kind in kind_of_row if kind):
                rows[kind] = np.array([row_kind == kind for row_kind in kind_of_row])
        numeric = np.array([type(value) in (int, float) for value in listed], dtype=bool)
        numbers = np.array([float(v) if is_number else 0.0 for v, is_number in zip(listed, numeric, strict=True)])
    else:
        numeric, numbers = np.ones(len(values), dtype=bool), values.astype(np.float64)
    if name != "timestamp" and len(numbers) and np.nanmax(np.abs(numbers), initial=0.0) >= 1e8:
        epoch = numeric & np.array([is_epoch(number) for number in numbers.tolist()])
        rows["epoch time"] = rows.get("epoch time", False) | epoch
        rows["number large enough to be an identifier"] = numeric & (np.abs(numbers) >= IDENTIFIER) & ~epoch
    for kind, has_kind in _impossible(evidence, name, values):
        rows[kind] = has_kind
    if name not in ALLOWED.get(evidence.read_result.format, ()) and not any(marked.any() for marked in rows.values()):
        rows[UNKNOWN] = np.ones(len(values), dtype=bool)
    for kind in kinds(name):
        rows[f"field name that looks like: {kind}"] = np.ones(len(values), dtype=bool)
    for kind, has_kind in rows.items():
        if has_kind.any():
            yield kind, int(has_kind.sum()), evidence.line(int(np.argmax(has_kind)))


def _impossible(evidence: Evidence, name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """(kind, rows) of numbers that the field cannot have."""
    listed = values.tolist() if values.dtype == object else []
    if name in NUMBERED:
        greatest = GREATEST.get(name, len(values) - 1)
        if values.dtype.kind in "iu":
            yield "number that the field cannot have", (values > greatest) | (values < -1)
            return
        if values.dtype != object:
            yield "number that is not whole", np.ones(len(values), dtype=bool)
            return
        yield "number that is not whole", _mask(value is not None and type(value) is not int for value in listed)
        yield "number that the field cannot have", _mask(type(v) is int and not -1 <= v <= greatest for v in listed)
    elif name == "type" and values.dtype != object:
        yield "value that is not a word", np.ones(len(values), dtype=bool)
    elif name == "type":
        yield "value that is not a word", _mask(value is not None and type(value) is not str for value in listed)
    elif name in LENGTHS:
        yield "number too large to be a length", values > MAX_LENGTH
    elif name == "timestamp" and np.isfinite(values).all():
        yield "time more than ten years after the first", values - values.min() > MAX_MS
    elif name in NUMBERS and values.dtype != object:
        limit = MAX_MS if NUMBERS[name].dtype is np.float64 else MAX_LENGTH
        yield "time of more than ten years" if limit == MAX_MS else "number too large to be a length", values > limit


def _kind(name, text) -> str | None:
    """The kind of a forbidden text; None for a request type."""
    if name == "type" and text in TYPES:
        return None
    return next(iter(kinds(text)), "text")


def _mask(marked) -> np.ndarray:
    return np.fromiter(marked, dtype=bool)
