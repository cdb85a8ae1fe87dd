"""sidecar: the files beside a trace state known names with known values, which are true, and nothing else.

Numbers are compared with the rows: a free number could be a telephone number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..._base.arrays import joined
from ..._base.row_counts import rounded
from ..._native import sharing
from ...formats.bailian import milliseconds
from ...formats.open_pieces import MetadataText
from ...formats.rewriting import same_text
from ...trace.hits import sum_hits
from ...trace.trace_figures import OutputFigures, count_outputs, output_figures
from ..allowed_values import Place, faults, fit, kinds, shown
from ..sidecar_forms import SIDECAR
from .block_feed import RequestBlocks
from .evidence import Evidence
from .finding import Finding, failed, passed, warned

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


def same_values(value: Any, other: Any) -> bool:
    """Whether two sidecars have the same JSON text."""
    import orjson

    option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_SORT_KEYS
    return orjson.dumps(value, option=option) == orjson.dumps(other, option=option)


def _dotted(place: Place) -> str:
    return ".".join(shown(name) for name in place)


def _at(place: str) -> str:
    return f", {place}" if place else ""


def wrong_numbers(evidence: Evidence) -> Iterator[str]:
    """The names of stated numbers that are not those of the file."""
    if evidence.sidecar is None or evidence.source.unread:  # there is none, or rows that it counts are missing
        return
    values = evidence.texts_of_sidecar
    columns, numbers = evidence.columns, evidence.numbers
    counts = {
        "requests": len(columns), "blocks": int(columns.offsets[-1]),
        "output_blocks": None if columns.output_offsets is None else int(columns.output_offsets[-1]),
        "distinct_blocks": numbers.distinct,
    } | ({"first_id": numbers.smallest} if numbers.distinct else {})  # fmt: skip
    yield from _differing(values, counts, "")
    figures = values.get("figures")
    if isinstance(figures, Mapping):
        time = columns.timestamp
        more = {
            "requests": len(columns), "tokens": int(columns.input_length.sum()), "blocks": int(columns.offsets[-1]),
            "distinct_blocks": numbers.distinct, **dict.fromkeys(OutputFigures.__annotations__),
            **output_figures(*count_outputs(columns)),
        }  # fmt: skip
        duration = figures.get("duration_ms", float(time.max() - time.min()))
        if not (isinstance(duration, (int, float)) and _as_read(evidence, duration) == time.max() - time.min()):
            yield "figures.duration_ms"
        yield from _differing(figures, more, "figures.")
        if columns.session is not None and evidence.read_result.format != "bailian":
            yield from _differing(figures, {"sessions": int(columns.session.max(initial=-1)) + 1}, "figures.")
        elif _above(figures.get("sessions"), len(columns)):  # Bailian's rows have parents, and early releases neither
            yield "figures.sessions"
        for name in ("hits", "hits_with_outputs"):
            if isinstance(hits := figures.get(name), Mapping):
                yield from (f"figures.{name}.{wrong}" for wrong in _wrong_hits(hits, more))
                if (true := _true_hits(evidence, outputs=name != "hits")) is not None:
                    yield from (f"figures.{name}.{key}" for key, value in true.items() if hits.get(key) != value)
    if isinstance(counts_of_log := values.get("counts"), Mapping):
        yield from (f"counts.{name}" for name in _wrong_counts(counts_of_log, len(columns)))


PARTS = {  # count -> the count that it is a part of
    "others": "filtered", "lengths_only": "requests", "cut": "requests", "with_logged_tokens": "requests",
    "equal_to_logged": "with_logged_tokens", "without_output_blocks": "requests",
}  # fmt: skip


def _wrong_counts(counts: Mapping[str, Any], requests: int) -> Iterator[str]:
    """The counts of the log that contradict each other or the rows."""
    number = {name: value if isinstance(value, int) else 0 for name, value in counts.items()}
    if "requests" in number and number["requests"] != rounded(requests):
        yield "requests"
    if "rows" in number and number["rows"] < number.get("requests", 0):
        yield "rows"
    yield from (name for name, whole in PARTS.items() if number.get(name, 0) > number.get(whole, 0))


def _differing(stated: Mapping[str, Any], true: Mapping[str, Any], place: str) -> Iterator[str]:
    for name, number in true.items():
        if (name in stated and number is not None and stated[name] != number) or (
            name in stated and number is None and stated[name] != 0
        ):
            yield f"{place}{name}"


def _wrong_hits(hits: Mapping[str, Any], figures: Mapping[str, Any]) -> Iterator[str]:
    """The names of hits that contradict the figures or each other."""
    yield from _differing(hits, {name: figures[name] for name in ("requests", "blocks", "tokens")}, "")
    for name, limit in (("hit_blocks", "blocks"), ("hit_tokens", "tokens"), ("requests_with_blocks", "requests"),
                        ("request_hits", "requests")):  # fmt: skip
        if _above(hits.get(name), figures[limit]):
            yield name
    for rate, part, whole in (
        ("block_hit_rate", "hit_blocks", "blocks"), ("token_hit_rate", "hit_tokens", "tokens"),
        ("request_hit_rate", "request_hits", "requests_with_blocks"),
    ):  # fmt: skip
        if rate in hits and not _is_rate(hits, rate, part, whole):
            yield rate


def _as_read(evidence: Evidence, time_ms: float) -> float:
    """The time that a reader of the file gets if it was written: some formats have seconds."""
    if evidence.read_result.format != "bailian":
        return time_ms
    return float(milliseconds(np.array([time_ms / 1000]))[0])


def _true_hits(evidence: Evidence, *, outputs: bool) -> Mapping[str, Any] | None:
    """The hits of a cache that never evicts; None if rows are not requests in order."""
    requests, columns = evidence.requests, evidence.columns
    if requests is None or len(requests) < len(columns) or not requests.in_order:
        return None
    hits: list[np.ndarray] = []
    unseen = np.ones(evidence.numbers.distinct, dtype=bool)

    def take(blocks: RequestBlocks) -> None:
        numbers, offsets, prompts = blocks.numbers, blocks.offsets, np.diff(blocks.offsets)
        if outputs and blocks.output_numbers is not None and blocks.output_offsets is not None:
            numbers = joined((numbers, prompts), (blocks.output_numbers, np.diff(blocks.output_offsets)))
            offsets = offsets + blocks.output_offsets
        hits.append(sharing.leading_hits(numbers, offsets, prompts, unseen, outputs).astype(np.int64))

    evidence.feed(take)
    chunk = np.concatenate([np.empty(0, np.int64), *hits]), np.diff(columns.offsets), columns.input_length
    return sum_hits([chunk], requests.block_size).to_dict()


def _above(value: Any, limit: float) -> bool:
    return isinstance(value, (int, float)) and value > limit


def _is_rate(values: Mapping[str, Any], rate: str, part: str, whole: str) -> bool:
    """Whether a rate is part / whole, to the last digit: others could hold a number."""
    numbers = [values.get(name) for name in (rate, part, whole)]
    if not all(isinstance(value, (int, float)) and np.isfinite(value) for value in numbers):
        return False
    stated, parts, all_of = (float(value) for value in numbers if value is not None)
    return stated == (parts / all_of if all_of else 0.0)
