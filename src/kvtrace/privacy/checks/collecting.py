"""Collect the evidence for an audit: the file, its sidecar and card, its valid requests and their contributors."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from ..._base.errors import InputError, UsageError
from ..._base.files import is_regular, name_of
from ..._base.input_files import read_unfollowed, unreadable
from ..._base.memory import give_back, keep_little
from ...formats import format_table, reading, writing
from ...formats.block_size import settle
from ...formats.dataset import CARD
from ...formats.open_pieces import MetadataText, names_dataset, open_pieces, parse_text
from ...formats.sidecar import Sidecar, load, sidecar_path
from ...trace.columns import Columns
from ...trace.invariants import likely_tail, require_block_size, rows_that_break
from ...trace.meta import rendering_of, rendering_words
from ...trace.normalise import normalise
from ...trace.trace import Trace
from .. import profiles
from ..contributors import Contributors, numbered
from ..profiles import PROFILES
from ..release_options import AuditOptions, Profile
from .block_feed import AuditedRequests, IdNumbers, KeptNumbers, number_ids
from .block_sums import AuditMemory
from .evidence import Evidence

SHARED = ("timestamp", "input_length", "output_length", "session", "parent")


def collect_evidence(path: str | Path, options: AuditOptions) -> Evidence:
    """The evidence for an audit of a trace file or a data set; InputError if it cannot be read at all."""
    format, users, against = options.format, options.users, options.against
    format_table.require_format(format)
    requested = None if options.profile is None else profiles.profile(options.profile)
    allowed = profiles.measured_names(options.allow_measured)
    limit = AuditMemory.of(path, options.memory, profile=options.profile, users=users is not None, against=against)
    numbers = IdNumbers(max_ids=None if limit is None else limit.max_ids)
    keep_little()  # else freed pieces of the file, and what a release before the audit freed, stay with the process
    opened = open_pieces(path, format=format)
    kept = KeptNumbers() if limit is None else KeptNumbers(0)
    for rows, columns in opened.pieces():
        kept.add(rows, columns, number_ids(columns, numbers), opened.growth)
    evidence = Evidence(opened, numbers, kept)
    if limit:
        limit.require(numbers)
    if not len(evidence.columns):
        raise InputError(f"{name_of(path)}: the file has no readable requests.")
    evidence.texts = [*_sidecars(path, options.sidecar), *evidence.source.texts]
    evidence.sidecar = _matching_sidecar(evidence)
    evidence.card = _card(path)
    declared = _declared(evidence.meta)
    evidence.profile, evidence.declared = requested or declared or PROFILES["standard"], declared
    evidence.allowed_measured = allowed
    _add_requests(evidence, options.block_size)
    _add_contributors(evidence, users, options.contributors)
    evidence.previous = None if against is None else _earlier_release(against, evidence.meta)
    give_back()
    return evidence


def _earlier_release(against, meta: Mapping[str, Any]) -> Trace:
    """The earlier release; UsageError if its prompts were rendered differently: lengths and blocks would not match."""
    previous = reading.read(against, extra="ignore")
    if rendering_of(previous.meta) != rendering_of(meta):
        raise UsageError(
            f"{name_of(against)}: rendered differently ({rendering_words(previous.meta)}) than the trace "
            f"({rendering_words(meta)}), so --against cannot compare them. Make both with one version of kvtrace."
        )
    return previous


# -- beside the file ---------------------------------------------------------------------------------------------


def _sidecars(path, given) -> list[MetadataText]:
    if given is not None:
        return [MetadataText("the sidecar", given)]
    text = None if not is_regular(path) else _text(sidecar_path(path))
    return [] if text is None else [parse_text("the sidecar", text)]


def _matching_sidecar(evidence: Evidence) -> Sidecar | None:
    """The first sidecar, if it is valid and describes this file; otherwise its fault is recorded."""
    for text in evidence.texts:
        if text.fault or not isinstance(text.values, dict) or text.where not in ("the sidecar", "metadata kvtrace"):
            continue
        with suppress(InputError, TypeError):
            sidecar = load(orjson.dumps(text.values, option=orjson.OPT_SERIALIZE_NUMPY), text.where)
            if evidence.source.unread or _describes(sidecar, evidence.columns):
                return sidecar
            text.fault = "describes another file: its counts differ from this file's"
        text.fault = text.fault or "is not a valid sidecar"
        return None
    return None


def _describes(sidecar, columns) -> bool:
    """Whether a sidecar's counts are those of the rows."""
    return sidecar.requests in (None, len(columns)) and sidecar.blocks in (None, columns.offsets[-1])


def _text(path) -> bytes | None:
    try:
        return read_unfollowed(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:  # publishing the link would publish its target
            raise unreadable(path, error) from None
        return b""  # it exists and cannot be read: no sidecar, and no card of ours


def _card(path) -> str | None:
    if names_dataset(path):
        text = _text(os.path.join(path, CARD))
    else:
        text = _text(writing.card_path(path)) if is_regular(path) else None
    return None if text is None else text.decode(errors="replace")


def _declared(meta) -> Profile | None:
    return profiles.declared(meta) if isinstance(meta.get("profile"), str) else None


# -- the requests ------------------------------------------------------------------------------------------------


def _add_requests(evidence: Evidence, block_size) -> None:
    """Add the requests of all rows whose numbers fit each other; the check `lengths` reports the other rows."""
    columns, sidecar = evidence.columns, evidence.sidecar or Sidecar("")
    size, tail = block_size or sidecar.block_size, sidecar.tail
    if tail == "unique":
        tail = "kept"
    if block_size is not None:
        require_block_size(block_size)
    if size is None:
        with suppress(InputError):
            size, tail = settle(evidence.read_result, None, tail)
    if size is None:
        return
    evidence.block_size, evidence.tail = size, tail or likely_tail(columns, size)
    rows = np.flatnonzero(sound(columns, size, evidence.tail))
    in_order = not (np.diff(columns.timestamp[rows]) < 0).any()
    if not in_order:
        rows = rows[np.argsort(columns.timestamp[rows], kind="stable")]
    if len(rows):
        evidence.requests = _requests(columns, rows, in_order, size, evidence.tail)


def _requests(columns: Columns, rows, in_order, block_size, tail) -> AuditedRequests:
    nothing, parent = np.empty(0, dtype=np.int64), columns.parent
    plain = Columns(
        columns.timestamp, columns.input_length, columns.output_length, nothing, np.zeros(len(columns) + 1),
        session=columns.session, parent=None if parent is None else np.clip(parent, -1, len(columns)),
    )  # fmt: skip
    if len(rows) < len(columns) or not in_order:
        plain = plain.take(rows)
    normalised, _ = normalise(plain)
    time, inputs, outputs, session, parent = (
        _reuse(getattr(columns, name), getattr(normalised, name)) for name in SHARED
    )
    return AuditedRequests(time, inputs, outputs, session, parent, block_size, tail, rows, in_order)


def _reuse(original, normalised):
    """The file's own array if normalising changed nothing, so that memory holds it once."""
    same = original is not None and normalised is not None and original.dtype == normalised.dtype
    return original if same and np.array_equal(original, normalised) else normalised


def sound(columns: Columns, block_size: int, tail: str) -> np.ndarray:
    """Whether each row has valid times and lengths, and as many blocks as its lengths give."""
    broken = rows_that_break(columns, block_size, tail)
    lengths = [broken[rule] for rule in broken if rule != "times"]
    return np.isfinite(columns.timestamp) & ~np.any(lengths, axis=0)


def _add_contributors(evidence: Evidence, users, contributors: Contributors | None) -> None:
    """Add the users in a file, or the contributors that the caller knows, in the order of the requests."""
    count, requests = len(evidence.columns), evidence.requests
    numbers = None if users is None else numbered(users, count)
    if numbers is None and contributors is not None and len(contributors.contributor) != count:
        raise UsageError(
            f"contributors has {len(contributors.contributor):,} values for {count:,} rows. Give one for each."
        )
    if requests is None:
        return
    if numbers is not None:
        evidence.users = numbers[requests.rows]
    elif contributors is not None:
        evidence.contributors = contributors[requests.rows]
