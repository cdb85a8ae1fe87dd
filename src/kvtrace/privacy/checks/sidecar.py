"""sidecar: the files beside a trace state known names with known values, which are true, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...formats.opened import MetadataText
from ...formats.rewriting import same_text
from ..forms import Place, faults, fit
from ..sidecar_forms import SIDECAR
from .evidence import Evidence
from .finding import Finding, failed, passed, warned
from .marks import kinds, shown
from .stated import wrong_numbers

OURS = ("the sidecar", "metadata kvtrace")
REMEDY = "Publish the trace again with `kvtrace release`, which writes known names and values only."


def check(evidence: Evidence) -> Finding:
    """Compare each piece of metadata with the forms of a sidecar, and its numbers with the rows."""
    faulty = [text for text in evidence.texts if text.fault]
    marks = [
        {"in": text.where if text.where in OURS else "metadata", "at": place, "kind": kind}
        for text in evidence.texts
        for place, kind in _marks(text)
    ]
    marks += [{"in": "the sidecar", "at": name, "kind": "wrong number"} for name in wrong_numbers(evidence)]
    if _differ(evidence):
        marks.append({"in": "metadata kvtrace", "at": "", "kind": "other values than the sidecar"})
    if unknown := evidence.source.unknown_files:
        kind = f"{unknown:,} files other than its parts, manifest and card"
        marks.append({"in": "the data set", "at": "", "kind": kind})
    figure = {"checked": [text.where if text.where in OURS else "metadata" for text in evidence.texts], "marks": marks}
    if marks:
        listed = "; ".join(f"{mark['in']}{_at(mark['at'])}: {mark['kind']}" for mark in marks[:4])
        return failed(figure, listed + (f"; and {len(marks) - 4} more." if len(marks) > 4 else "."), REMEDY)
    if faulty:
        sentence = f"{faulty[0].where} {faulty[0].fault}, so its statements cannot be trusted."
        return failed(figure, sentence, "Write it again.")
    if not evidence.texts:
        return warned(
            figure, "there is no sidecar: nothing documents how the trace was made.", "Publish a sidecar beside it."
        )
    return passed(figure, "the sidecar states known names with known values, and nothing else.")


def _marks(text: MetadataText) -> Iterator[tuple[str, str]]:
    """(place, kind) of all that is not known in a text."""
    if text.where not in OURS:
        yield "", "unknown metadata"
        return
    if text.fault:
        return
    unknown = list(faults(text.values, SIDECAR))
    yield from ((_dotted(place), _kind(place, kind)) for place, kind in unknown)
    # in another order, or with names twice, the text is another one
    if not unknown and text.text is not None and not same_text(text.text, fit(text.values, SIDECAR)):
        yield "", "not the text that kvtrace writes for its values"


def _kind(place: Place, kind: str) -> str:
    """The kind of a fault; an unknown name that looks like an identifier is called so."""
    marks = kinds(place[-1]) if place and kind == "unknown name" else []
    return f"name that looks like: {marks[0]}" if marks else kind


def _differ(evidence: Evidence) -> bool:
    """Whether the metadata inside a Parquet file has other values than the sidecar beside it."""
    values: dict[str, Any] = {text.where: text.values for text in evidence.texts if text.where in OURS}
    if len(values) < len(OURS) or evidence.source.unknown_files or hasattr(evidence.source, "dataset"):
        return False
    return not same_values(values["the sidecar"], values["metadata kvtrace"])


def same_values(one: Any, other: Any) -> bool:
    """Whether two sidecars have the same JSON text."""
    import orjson

    option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_SORT_KEYS
    return orjson.dumps(one, option=option) == orjson.dumps(other, option=option)


def _dotted(place: Place) -> str:
    return ".".join(shown(name) for name in place)


def _at(place: str) -> str:
    return f", {place}" if place else ""
