"""Check 13: what stands beside a trace names no key, machine, place or person."""

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
PUBLIC = re.compile(  # what licences, papers and public code are named by in a card
    r"https?://(?:www\.)?(?:creativecommons\.org|opensource\.org|spdx\.org|choosealicense\.com|doi\.org|arxiv\.org|"
    r"github\.com|huggingface\.co|pypi\.org|apache\.org)(?:/[\w./#-]*)?"
)
REMEDY = "Take it out of what is published; nothing in it is needed to read the trace."


def check(there: Evidence) -> Finding:
    """All names and values of the sidecar, of other metadata in the file, and of the card's text; strangers beside."""
    faults = [said for said in there.texts if said.fault]
    found = [{"in": said.where, "at": place, "kind": kind} for said in there.texts for place, kind in scan(said.values)]
    found += [{"in": "the card", "at": "", "kind": kind} for kind in kinds(_card(there))]
    if strangers := there.source.strangers:
        found.append({"in": "the folder", "at": "", "kind": f"{strangers:,} other than its parts, manifest and card"})
    looked_at = [*(said.where for said in there.texts), *(["the card"] if there.card else [])]
    figure = {"looked_at": looked_at, "found": found}
    if found:
        told = "; ".join(f"{one['in']}{_at(one['at'])}: {one['kind']}" for one in found[:4])
        return failed(figure, told + (f"; and {len(found) - 4} more." if len(found) > 4 else "."), REMEDY)
    if faults:
        return failed(figure, f"{faults[0].where} {faults[0].fault}: what it says can't be trusted.", "Write it anew.")
    if not there.texts:
        return warned(figure, "there is no sidecar: nobody says how the trace was made.", "Publish one beside it.")
    hold = "holds" if len(looked_at) == 1 else "hold"
    return passed(figure, f"{' and '.join(looked_at)} {hold} no key, machine, place or person.")


def _card(there: Evidence) -> str:
    """The card's text without what is public: addresses of licences, and the digests that a sidecar may state."""
    text = PUBLIC.sub("", there.card or "")
    for said in there.texts:
        for part in ("tokenizer", "chat_template"):
            described = said.values.get(part) if isinstance(said.values, dict) else None
            digest = described.get("sha256") if isinstance(described, dict) else None
            if isinstance(digest, str) and DIGEST.match(digest):
                text = text.replace(digest, "")
    return text


def scan(value: Any, place: tuple[str, ...] = ()):
    """(place, kind) of each name and value that must not be published; places are names that are themselves harmless.

    >>> list(scan({"tokenizer": {"name": "org/model"}, "log": {"host": "a", "note": "in /home/me"}}))
    [('log.host', 'name that tells of a key, machine, place or person'), ('log.note', 'path')]
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
        yield _dotted(place), "name that tells of a key, machine, place or person"
    yield from ((_dotted(place), f"name that reads as {kind}") for kind in kinds(str(name)))


def _is_harmless(value, place) -> bool:
    """Digests of a tokenizer and a template, and the public name of a model."""
    if place[-1:] == ("sha256",):
        return bool(DIGEST.match(value))
    return place[-2:] == ("tokenizer", "name") and bool(MODEL.match(value))


def _dotted(place) -> str:
    return ".".join(shown(name) for name in place)


def _at(place) -> str:
    return f", {place}" if place else ""
