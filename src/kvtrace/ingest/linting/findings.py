"""The findings of `kvtrace lint`, one for each kind and place, and its report: no character of the log is in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from ..._base.results import Described, Result, column, columns_of
from . import segments
from .judging import DATE, DRIFT, ID, KINDS, LOST_HISTORY, METADATA, REMEDIES, TOOL_ORDER, UNDECIDED, Occurrence
from .prompts import Prompt

SCHEMA = 1  # version of the keys of LintReport.to_dict
FEW = 3  # values; so many may be versions of a text
RETURNS = 2  # to an earlier version of a text; a text that changed for good has none
OFTEN = 3  # requests for each value of a version
MANY = 0.1  # share of the requests with a value of their own, from which on words are data of the request


class FindingPlace(NamedTuple):
    """The place of a finding in prompts: equal for all requests that diverge there."""

    kind: str
    form: str
    role: str
    message: int
    left: int


class Values(NamedTuple):
    """The values that prompts have at a place, in order of the requests."""

    requests: int
    distinct: int
    returns: int  # changes to a value that an earlier request had


def decided(
    occurrences: list[Occurrence], prompts: list[Prompt]
) -> tuple[dict[FindingPlace, list[Occurrence]], list[Occurrence]]:
    """The occurrences by place, each with its kind; and those that are no finding."""
    by_place: dict[FindingPlace, list[Occurrence]] = defaultdict(list)
    for occurrence in occurrences:
        by_place[_place(occurrence)].append(occurrence)
    kinds = {
        place: _decided(group, prompts) if place.kind == UNDECIDED else (place.kind, place.form)
        for place, group in by_place.items()
    }
    result: dict[FindingPlace, list[Occurrence]] = defaultdict(list)
    others: list[Occurrence] = []
    stopped = -1  # a request that differs earlier without a finding: the tokens behind that difference cannot hit
    for occurrence in occurrences:  # of each request in order
        kind, form = kinds[_place(occurrence)]
        if kind is None and occurrence.lost:
            kind, form = LOST_HISTORY, occurrence.lost
        if kind is None:
            stopped = occurrence.request
        if occurrence.request == stopped:
            others.append(occurrence)
        elif kind is not None:
            final = replace(occurrence, kind=kind, form=_FORMS.get(kind, form))
            result[_place(final)].append(final)
    return result, others


_FORMS = {DATE: "date", ID: "id", METADATA: "value", TOOL_ORDER: "order"}


def _place(occurrence: Occurrence) -> FindingPlace:
    if occurrence.kind == LOST_HISTORY:
        return FindingPlace(occurrence.kind, occurrence.form, "", -1, -1)
    return FindingPlace(occurrence.kind, occurrence.form, occurrence.role, occurrence.message, occurrence.left)


def _decided(group: list[Occurrence], prompts: list[Prompt]) -> tuple[str | None, str]:
    """The kind and form of a place where words, numbers or white space change, as its values show."""
    kind, form = _kind(group[0].form, any(occurrence.is_labelled for occurrence in group), _values(group, prompts))
    return (None, "") if kind != DRIFT and all(occurrence.versions_only for occurrence in group) else (kind, form)


def _kind(shape: str, is_labelled: bool, values: Values) -> tuple[str | None, str]:
    """The kind and form of changing words, numbers or white space; None if the text changed for good.

    >>> _kind("words", False, Values(requests=20, distinct=2, returns=9))
    ('drift', 'wording')
    >>> _kind("words", False, Values(requests=20, distinct=2, returns=0))
    (None, '')
    >>> _kind("number", False, Values(requests=20, distinct=20, returns=0))
    ('id', 'id')
    """
    if shape == segments.SPACE:
        return (DRIFT, "white_space") if values.returns >= RETURNS else (None, "")
    is_number = shape in (segments.NUMBER, segments.CODE)
    few = values.distinct == 2 or (values.distinct <= FEW and values.requests >= OFTEN * values.distinct)
    if few and not is_labelled:
        return (DRIFT, "wording") if values.returns >= RETURNS else (None, "")
    if is_number:
        return ID, "id"
    changes_often = values.returns > 0 or values.distinct >= MANY * values.requests
    return (METADATA, "value") if changes_often else (None, "")


def _values(group: list[Occurrence], prompts: list[Prompt]) -> Values:
    """The values at a place: of all prompts with the same text before it, or of those that diverge there."""
    first = prompts[group[0].request].chunks
    place = group[0].chunk
    before, seen = first[:place], []
    for prompt in prompts:
        if len(prompt.chunks) > place and np.array_equal(prompt.chunks[:place], before):
            seen.append(int(prompt.chunks[place]))
    diverging = {occurrence.earlier: occurrence.values[0] for occurrence in group} | {
        occurrence.request: occurrence.values[1] for occurrence in group
    }
    others = [value for _, value in sorted(diverging.items())]
    return max(_counted(seen), _counted(others), key=lambda values: (values.distinct > 1, values.requests))


def _counted(values: Iterable[int]) -> Values:
    seen: set[int] = set()
    count = returns = 0
    last = None
    for value in values:
        returns += value in seen and value != last
        seen.add(value)
        last, count = value, count + 1
    return Values(count, len(seen), returns)


@dataclass(frozen=True)
class LintFinding(Described):
    """A place where prompts diverge that nearly agree, and what it costs."""

    kind: str  # a key of KINDS
    form: str  # a key of REMEDIES
    role: str  # of the message: system, user, ..., template, or prompt if roles are unknown
    message: int  # from 0; -1 before the first; the median where it varies
    token: int  # of the prompt, from 0: the median
    message_token: int  # of the message, from 0: the median
    first_token: int
    last_token: int
    block: int  # of the token
    requests: int  # that diverge there
    values: int  # different values there; 0 = not counted
    tokens: int  # prompt tokens that would hit without it

    @property
    @column("what to change")
    def sentence(self) -> str:
        """What to change, in words."""
        return REMEDIES[self.form]

    @property
    def what(self) -> str:
        """The kind, in words."""
        return KINDS[self.kind]

    @property
    def where(self) -> str:
        """The position, in words.

        >>> LintFinding("date", "date", "system", 0, 12, 12, 12, 12, 0, 5, 5, 900).where
        'message 1 (system), token 12'
        """
        if self.kind == LOST_HISTORY:
            return f"message {self.message + 1} (median), token {self.token:,}"
        name = f"message {self.message + 1} ({self.role})" if self.message >= 0 else "template"
        if self.role in ("prompt", "template"):
            name = self.role
        return f"{name}, token {self.token:,}"


@dataclass(frozen=True, repr=False)
class LintReport(Result):
    """Where the prompts of a log diverge though they nearly agree. It holds positions, kinds and counts, no text.

    >>> LintReport(requests=10, prompt_tokens=1000, hit_tokens=600, block_size=16)
    LintReport(10 requests, no findings)
    """

    requests: int
    prompt_tokens: int
    hit_tokens: int  # in leading blocks of `block_size` tokens that an earlier prompt has, as `anonymize` counts them
    block_size: int
    findings: tuple[LintFinding, ...] = ()  # the most tokens first
    other_requests: int = 0  # that differ before a shared part in no way that is a kind, such as by a question
    other_tokens: int = 0  # shared tokens behind such differences
    skipped: int = 0  # requests without text: token ids, hashes or lengths
    rejected: int = 0  # bad rows
    left_out: Mapping[str, int] = field(default_factory=dict)  # rows that are not requests, in words -> how many
    windows: int = 1  # parts of the log that were compared, each with itself
    settings: Mapping[str, Any] = field(default_factory=dict)  # reader, tokenizer and template

    @property
    def lost_tokens(self) -> int:
        """Prompt tokens that would hit without the findings."""
        return sum(finding.tokens for finding in self.findings)

    @property
    def status(self) -> int:
        """The exit status of `kvtrace lint`: 3 with findings, else 0."""
        return 3 if self.findings else 0

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values; https://github.com/kvtrace/kvtrace/blob/main/docs/ingest/lint.md lists the
        keys."""
        return {
            "schema": SCHEMA,
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "hit_tokens": self.hit_tokens,
            "lost_tokens": self.lost_tokens,
            "block_size": self.block_size,
            "kinds": {
                kind: {
                    "findings": sum(finding.kind == kind for finding in self.findings),
                    "tokens": sum(finding.tokens for finding in self.findings if finding.kind == kind),
                }
                for kind in KINDS
            },
            "findings": [finding.to_dict() | {"share": self.share(finding)} for finding in self.findings],
            "other": {"requests": self.other_requests, "tokens": self.other_tokens},
            "skipped": self.skipped,
            "rejected": self.rejected,
            "left_out": dict(self.left_out),
            "windows": self.windows,
            "settings": dict(self.settings),
        }

    def share(self, finding: LintFinding) -> float:
        """A finding's part of all prompt tokens."""
        return finding.tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def _headline(self) -> str:
        count = len(self.findings)
        findings = "no findings" if not count else f"{count} finding{'' if count == 1 else 's'}"
        return f"{self.requests:,} requests, {findings}"

    def _columns(self) -> Mapping[str, Any]:
        return columns_of([finding.to_dict() | {"share": self.share(finding)} for finding in self.findings])
