"""sidecar: the files beside a trace name no key, machine, place or person."""

from __future__ import annotations

import re
from typing import Any

from .evidence import Evidence
from .finding import Finding, failed, passed, warned
from .marks import kinds, shown

FORBIDDEN = re.compile(
    r"(?i)(?:^|[_.-])(?:key|secret|(?:access|auth|api|bearer|refresh)[_-]?token|token(?![_-]hit)|password|passwd|passphrase|credential|credentials|apikey|auth|authorization|bearer|host|"
    r"hostname|machine|node|user|username|users|login|account|owner|path|paths|file|files|filename|dir|directory|folder|"
    r"home|cwd|email|mail|ip|address|url|uri|env|environ|argv|command|pid)(?:$|[_.-])"
)
DIGEST = re.compile(r"[0-9a-f]{64}\Z")
MODEL = re.compile(r"[\w.-]+/[\w.-]+\Z")
PUBLIC = re.compile(  # addresses of licences, papers and public code in a card
    r"https?://(?:www\.)?(?:creativecommons\.org|opensource\.org|spdx\.org|choosealicense\.com|doi\.org|arxiv\.org|"
    r"github\.com|huggingface\.co|pypi\.org|apache\.org)(?:/[\w./#-]*)?"
)
REMEDY = "Remove it before publication; no reader of the trace needs it."


def check(evidence: Evidence) -> Finding:
    """Check all names and values of the sidecar, of other metadata, and of the card; also look for unknown files."""
    faulty = [text for text in evidence.texts if text.fault]
    marks = [
        {"in": text.where, "at": place, "kind": kind} for text in evidence.texts for place, kind in scan(text.values)
    ]
    marks += [{"in": "the card", "at": "", "kind": kind} for kind in kinds(_card_without_public_text(evidence))]
    if unknown := evidence.source.unknown_files:
        kind = f"{unknown:,} files other than its parts, manifest and card"
        marks.append({"in": "the data set", "at": "", "kind": kind})
    checked = [*(text.where for text in evidence.texts), *(["the card"] if evidence.card else [])]
    figure = {"checked": checked, "marks": marks}
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
    verb = "names" if len(checked) == 1 else "name"
    return passed(figure, f"{' and '.join(checked)} {verb} no key, machine, place or person.")


def _card_without_public_text(evidence: Evidence) -> str:
    """The card's text without public addresses of licences, and without the digests that a sidecar may state."""
    card = PUBLIC.sub("", evidence.card or "")
    for text in evidence.texts:
        for section in ("tokenizer", "chat_template"):
            description = text.values.get(section) if isinstance(text.values, dict) else None
            digest = description.get("sha256") if isinstance(description, dict) else None
            if isinstance(digest, str) and DIGEST.match(digest):
                card = card.replace(digest, "")
    return card


def scan(value: Any, place: tuple[str, ...] = ()):
    """(place, kind) of each name and value that must not be published; a place shows harmless names only.

    >>> list(scan({"tokenizer": {"name": "org/model"}, "log": {"host": "a", "note": "in /home/me"}}))
    [('log.host', 'name of a key, machine, place or person'), ('log.note', 'path')]
    """
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _of_name(name, (*place, str(name)))
            yield from scan(inner, (*place, str(name)))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from scan(inner, place)
    elif isinstance(value, str) and not _is_harmless(value, place):
        yield from ((_dotted(place), kind) for kind in kinds(value))


def _of_name(name, place):
    if FORBIDDEN.search(str(name)):
        yield _dotted(place), "name of a key, machine, place or person"
    yield from ((_dotted(place), f"name that looks like: {kind}") for kind in kinds(str(name)))


def _is_harmless(value, place) -> bool:
    """Whether a value is the digest of a tokenizer or template, or the public name of a model."""
    if place[-1:] == ("sha256",):
        return bool(DIGEST.match(value))
    return place[-2:] == ("tokenizer", "name") and bool(MODEL.match(value))


def _dotted(place) -> str:
    return ".".join(shown(name) for name in place)


def _at(place) -> str:
    return f", {place}" if place else ""
