"""Gather occurrences into findings: one for each kind and place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from . import shapes
from .judging import UNDECIDED, Occurrence
from .kinds import DATE, DRIFT, ID, LOST_HISTORY, METADATA, TOOL_ORDER
from .prompts import Prompt

FEW = 3  # values; so many may be versions of a text
RETURNS = 2  # to an earlier version of a text; a text that changed for good has none
OFTEN = 3  # requests for each value of a version
MANY = 0.1  # share of the requests with a value of their own, from which on words are data of the request


class Place(NamedTuple):
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
) -> tuple[dict[Place, list[Occurrence]], list[Occurrence]]:
    """The occurrences by place, each with its kind; and those that are no finding."""
    by_place: dict[Place, list[Occurrence]] = defaultdict(list)
    for one in occurrences:
        by_place[_place(one)].append(one)
    kinds = {
        place: _decided(group, prompts) if place.kind == UNDECIDED else (place.kind, place.form)
        for place, group in by_place.items()
    }
    result: dict[Place, list[Occurrence]] = defaultdict(list)
    others: list[Occurrence] = []
    stopped = -1  # a request that differs earlier without a finding: the tokens behind that difference cannot hit
    for one in occurrences:  # of each request in order
        kind, form = kinds[_place(one)]
        if kind is None and one.lost:
            kind, form = LOST_HISTORY, one.lost
        if kind is None:
            stopped = one.request
        if one.request == stopped:
            others.append(one)
        elif kind is not None:
            final = replace(one, kind=kind, form=_FORMS.get(kind, form))
            result[_place(final)].append(final)
    return result, others


_FORMS = {DATE: "date", ID: "id", METADATA: "value", TOOL_ORDER: "order"}


def _place(one: Occurrence) -> Place:
    if one.kind == LOST_HISTORY:
        return Place(one.kind, one.form, "", -1, -1)
    return Place(one.kind, one.form, one.role, one.message, one.left)


def _decided(group: list[Occurrence], prompts: list[Prompt]) -> tuple[str | None, str]:
    """The kind and form of a place where words, numbers or white space change, as its values show."""
    kind, form = _kind(group[0].form, any(one.is_labelled for one in group), _values(group, prompts))
    return (None, "") if kind != DRIFT and all(one.versions_only for one in group) else (kind, form)


def _kind(shape: str, is_labelled: bool, values: Values) -> tuple[str | None, str]:
    """The kind and form of changing words, numbers or white space; None if the text changed for good.

    >>> _kind("words", False, Values(requests=20, distinct=2, returns=9))
    ('drift', 'wording')
    >>> _kind("words", False, Values(requests=20, distinct=2, returns=0))
    (None, '')
    >>> _kind("number", False, Values(requests=20, distinct=20, returns=0))
    ('id', 'id')
    """
    if shape == shapes.SPACE:
        return (DRIFT, "white_space") if values.returns >= RETURNS else (None, "")
    is_number = shape in (shapes.NUMBER, shapes.CODE)
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
    diverging = {one.earlier: one.values[0] for one in group} | {one.request: one.values[1] for one in group}
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
