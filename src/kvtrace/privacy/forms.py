"""Forms of JSON values: what a value may be, by closed lists, patterns and bounds. A section has known names only."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Test = Callable[[Any], bool]
Place = tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """An object with these names and no others, in this order; each may be missing."""

    forms: Mapping[str, Form]
    nullable: bool = False


@dataclass(frozen=True)
class ListOf:
    """A list of values of one form."""

    form: Form
    limit: int = 100


Form = Section | ListOf | Test
MISSING = object()


def fit(value: Any, form: Form) -> Any:
    """The value with the names and values that its form allows, in the form's order; MISSING if nothing is left.

    >>> form = Section({"k": whole(9), "kind": one_of("a", "b")})
    >>> fit({"kind": "a", "k": 3.5, "note": "x"}, form)
    {'kind': 'a'}
    """
    if isinstance(form, Section):
        if value is None and form.nullable:
            return None
        if not isinstance(value, Mapping):
            return MISSING
        inner = {name: fit(value[name], of) for name, of in form.forms.items() if name in value}
        return {name: one for name, one in inner.items() if one is not MISSING}
    if isinstance(form, ListOf):
        if not isinstance(value, (list, tuple)) or len(value) > form.limit:
            return MISSING
        return [one for one in (fit(one, form.form) for one in value) if one is not MISSING]
    return value if form(value) else MISSING


def faults(value: Any, form: Form, place: Place = ()) -> Iterator[tuple[Place, str]]:
    """(place, kind) of each name and value that a form does not allow.

    >>> list(faults({"k": 3.5, "note": "x"}, Section({"k": whole(9)})))
    [(('k',), 'unknown value'), (('note',), 'unknown name')]
    """
    if isinstance(form, Section) and isinstance(value, Mapping):
        for name, inner in value.items():
            if name in form.forms:
                yield from faults(inner, form.forms[name], (*place, str(name)))
            else:
                yield (*place, str(name)), "unknown name"
    elif isinstance(form, ListOf) and isinstance(value, (list, tuple)) and len(value) <= form.limit:
        for inner in value:
            yield from faults(inner, form.form, place)
    elif fit(value, form) is MISSING:
        yield place, "unknown value"


def one_of(*values: Any) -> Test:
    """Any of these values, of the same type.

    >>> one_of("a", None)(None), one_of(1)(True)
    (True, False)
    """
    return lambda value: any(type(value) is type(one) and value == one for one in values)


def flag(value: Any) -> bool:
    """True or false."""
    return value is True or value is False


def whole(greatest: int, *words: str) -> Test:
    """An integer from 0 to `greatest`, or one of some words."""
    return lambda value: (type(value) is int and 0 <= value <= greatest) or (type(value) is str and value in words)


def number(greatest: float) -> Test:
    """A number from 0 to `greatest`, whole or not."""
    return lambda value: type(value) in (int, float) and 0 <= value <= greatest


def rounded(greatest: float) -> Test:
    """A number from 0 to `greatest` of at most six significant digits: a telephone number has more.

    >>> rounded(100)(2.5), rounded(100)(0.4155550123)
    (True, False)
    """
    bounded = number(greatest)
    return lambda value: bounded(value) and value == float(f"{value:.6g}")


def pattern(text: str) -> Test:
    """A string that a regular expression matches as a whole."""
    compiled = re.compile(text)
    return lambda value: type(value) is str and bool(compiled.fullmatch(value))


def digest(value: Any) -> bool:
    """A SHA-256 in hexadecimal. Digits that spell a text are not one: no digest does, within reason.

    >>> digest("ab" * 32), digest(("secret " * 5)[:32].encode().hex()), digest("ab")
    (True, False, False)
    """
    if type(value) is not str or not re.fullmatch("[0-9a-f]{64}", value):
        return False
    printable = sum(32 <= byte < 127 for byte in bytes.fromhex(value))
    return printable <= 26  # of 32; chance alone exceeds this once in 10^7 digests
