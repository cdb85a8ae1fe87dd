"""The files beside a trace: the card, compared with the one that kvtrace writes; links; attributes of all of them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..._base.files import is_regular
from ...formats.links import links_path
from ...formats.open_pieces import names_dataset
from ...formats.sidecar import sidecar_path
from ...formats.writing import card_path
from ..contributors import WARNINGS, WORDS
from ..data_card import LICENCE, LICENCES, card
from .anonymity import UNDECLARED
from .block_sums import USUAL_K
from .evidence import Evidence
from .finding import Audit, Finding, failed, warned

REMEDY = "Publish the trace again, and fill in the licence only; put other text into a README beside the release."
COUNT = r"[\d,]{1,15}"
WHO = "|".join(map(re.escape, WORDS.values()))
WEAKNESSES = "|".join(re.escape(warning) for warning in WARNINGS.values() if warning)
COUNTED = (  # what the audit counted, in place of the release's contributors
    rf" The release counted (?:{WHO}), as its sidecar states; this file does not hold them\."
    r"| The sidecar does not state what the release counted\."
)


def with_card(result: Audit, evidence: Evidence, again: Callable[[], Audit]) -> Audit:
    """The audit with a failed `sidecar` if the card differs.

    A trace that fails another check has failed already, and its card states other findings. `again` gives the audit
    against the declared profile, if the trace was graded against another one.
    """
    if evidence.card is None or not result.passed or _is_ours(evidence.card, evidence, again):
        return result
    index = [finding.name for finding in result.findings].index("sidecar")
    old = result.findings[index]
    mark = {"in": "the card", "at": "", "kind": "not the text that kvtrace writes"}
    figure = {"checked": [*old.figure["checked"], "the card"], "marks": [*old.figure["marks"], mark]}
    sentence = "the card is not the one that kvtrace writes from the sidecar and this audit."
    card_finding = replace(failed(figure, sentence, REMEDY), name="sidecar")
    return replace(result, findings=[*result.findings[:index], card_finding, *result.findings[index + 1 :]])


def with_files_beside(result: Audit, path: str | Path, evidence: Evidence) -> Audit:
    """The audit with what the files of a published trace add to a `sidecar` that passed.

    * Attributes (`user.*`) of a file or of the folder fail: archives carry them along, and no check reads them.
    * A missing card is a warning: rows and sidecar hide no less, but only the card says what is not protected.
    * Links to the other windows of a recording are a warning: they are not to be published.
    """
    is_folder = names_dataset(path)
    if not is_folder and not is_regular(path):
        return result
    index = [finding.name for finding in result.findings].index("sidecar")
    old = result.findings[index]
    files = [path, *sorted(os.scandir(path), key=lambda entry: entry.name)] if is_folder else []
    files = files or [path, sidecar_path(path), card_path(path)]
    if marked := sum(_has_attributes(file) for file in files):
        found = failed(old.figure, f"{marked:,} of its files and folders {ATTRIBUTES}", ATTRIBUTES_REMEDY)
    elif old.level == "PASS" and os.path.lexists(links_path(path)):
        found = warned(old.figure, LINKS, "Keep the file where the windows are joined, and do not publish it.")
    elif old.level == "PASS" and evidence.declared is not None and evidence.card is None:
        found = warned(
            old.figure, NO_CARD, "Write it with `kvtrace audit TRACE --card TRACE.card.md`, or publish again."
        )
    else:
        return result
    found = replace(found, name="sidecar", beside=old)
    return replace(result, findings=[*result.findings[:index], found, *result.findings[index + 1 :]])


ATTRIBUTES = "have extended attributes (`user.*`): archives carry them along, and they can hold any text."
ATTRIBUTES_REMEDY = "Remove them: `getfattr -R -d` lists them, `setfattr -x NAME FILE` removes one."
LINKS = "a .links file is beside it: it tells which blocks and sessions of other windows are the same."
NO_CARD = "there is no data card beside it, so nothing tells readers what the release does not protect."


def _has_attributes(file: str | os.PathLike[str]) -> bool:
    """Whether a file or folder has attributes that a user can set; False where the system has none."""
    if not hasattr(os, "listxattr"):
        return False
    try:
        return any(name.startswith("user.") for name in os.listxattr(file, follow_symlinks=False))
    except OSError:  # it does not exist, or its file system has none
        return False


def _is_ours(text: str, evidence: Evidence, again: Callable[[], Audit]) -> bool:
    meta: Mapping[str, Any] = evidence.texts_of_sidecar
    result = again()
    stated = [_as_stated(finding, text, evidence) for finding in result.findings]
    plain = re.sub(rf"(?m)^\* Licence: (?:{'|'.join(map(re.escape, LICENCES))})$", LICENCE, text, count=1)
    try:
        return card(replace(result, findings=stated), meta=meta) == plain
    except (TypeError, ValueError):  # values that no card can show
        return False


def _as_stated(finding: Finding, text: str, evidence: Evidence) -> Finding:
    """The finding as the card states it, if it depends on what only the publisher has: users, an earlier release."""
    if finding.name not in ("k_sharing", "earlier_release"):
        return finding
    row = re.search(rf"(?m)^\| {finding.name} \| (PASS|WARN) \| ([^|\n]*) \|$", text)
    sentences = _k_sharing(evidence) if finding.name == "k_sharing" else _earlier(evidence)
    if row is None or not re.fullmatch(sentences, row[2]):
        return finding
    numbers = [int(number.replace(",", "")) for number in re.findall(COUNT, row[2]) if number.strip(",")]
    greatest = max(len(evidence.columns), int(evidence.columns.offsets[-1]), evidence.profile.k)
    return replace(finding, level=row[1], sentence=row[2]) if max(numbers, default=0) <= greatest else finding


def _earlier(evidence: Evidence) -> str:
    return (
        r"no earlier release was given \(--against\), so none was compared\."
        rf"|{COUNT} of {len(evidence.columns):,} rows match the earlier release, about as many as by chance\."
    )


def _k_sharing(evidence: Evidence) -> str:
    profile = evidence.declared or evidence.profile
    k = profile.k if profile.k > 1 else USUAL_K
    requests = 0 if evidence.requests is None else len(evidence.requests)
    return (
        rf"(?:no request has|{COUNT} of {requests:,} requests have) a block shared by fewer than {k:,} (?:{WHO})"
        r"(?:; (?:exact|standard|strict) splits no blocks)?\."
        rf"(?:(?:{COUNTED}) The audit counted (?:{WHO}) instead\.)?"
        rf"(?: (?:{'|'.join(map(re.escape, UNDECLARED.values()))})| This does not stop a guess: (?:{WEAKNESSES})\.)?"
        rf"|{COUNT} blocks are shared by several users, but the release isolates tenants\."
    )
