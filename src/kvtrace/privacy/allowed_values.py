"""The values that released files may have: names of fields, forms of JSON values, and patterns that no text may match.

A form says what a value may be, by closed lists, patterns and bounds. A section has known names only. The section
`rendering` of a sidecar states fields that can change the tokens of a prompt; a log may have others, which are counted
under none of these names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

TYPES = ("text", "search", "image", "file", "audio", "video", "thinking", "coder", "other")  # others become `other`
MAX_TURN = 9_999  # a larger turn could be an identifier
MAX_AGENT = 9_999  # of a session; likewise
EXTRA = ("type", "turn", "agent")  # extra columns that a release keeps


ENGINES = {  # whose rendering of a request -> how prompts became tokens, on a card
    "vllm": "as vLLM renders them", "sglang": "as SGLang renders them", "raw": "as the log has them",
}  # fmt: skip
RENDERED_FIELDS = frozenset({
    "add_generation_prompt", "add_special_tokens", "chat_template", "chat_template_kwargs", "context_management",
    "continue_final_message", "documents", "image_grid", "image_grid_thw", "mcp_servers", "media",
    "mm_processor_kwargs", "output_config", "reasoning", "reasoning_effort", "response_format", "suffix", "text",
    "thinking", "tool_choice", "tools", "truncate_prompt_tokens",
})  # fmt: skip


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
        return {name: fitted for name, fitted in inner.items() if fitted is not MISSING}
    if isinstance(form, ListOf):
        if not isinstance(value, (list, tuple)) or len(value) > form.limit:
            return MISSING
        return [fitted for fitted in (fit(item, form.form) for item in value) if fitted is not MISSING]
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
    return lambda value: any(type(value) is type(allowed) and value == allowed for allowed in values)


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


HEX = "[0-9a-f]"
BYTE = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
DOMAINS = "com|org|net|io|ai|dev|cloud|local|internal|intranet|lan|corp|edu|gov|cn|de|uk|eu"
FOLDERS = "home|users|root|tmp|var|mnt|data|opt|srv|etc"
PATTERNS = {  # kind -> regular expression
    "UUID": rf"(?i)(?<!{HEX}){HEX}{{8}}-?{HEX}{{4}}-?[1-8]{HEX}{{3}}-?[89ab]{HEX}{{3}}-?{HEX}{{12}}(?!{HEX})",
    "e-mail address": r"[\w.+%-]+@[\w-]+(\.[\w-]+)+",
    "URL": r"(?i)\b[a-z][a-z0-9+.-]{1,15}://\S+",
    "IP address": rf"(?i)(?<![\d.])(?:{BYTE}\.){{3}}{BYTE}(?![\d.])"
    rf"|(?<![\w:])(?:{HEX}{{1,4}}:){{4,7}}{HEX}{{0,4}}(?![\w:])",
    "path": r"(?<![\w/.<])(?:~|\.{1,2})?/[\w.+-]+(?:/[\w.+-]*)+|(?<![\w/.<])~/|(?i:\b[a-z]:\\)|\\\\\w"
    rf"|(?i:(?<![\w/])/(?:{FOLDERS})\b)",
    "long hexadecimal": rf"(?i)(?<![0-9a-z])(?:0x)?{HEX}{{16,}}(?![0-9a-z])",
    "epoch time": r"(?<![\d.])(?:[12]\d{9}|[12]\d{12}|[12]\d{15}|[12]\d{18})(?:\.\d+)?(?!\d)"
    r"|\b(?:19|20)\d\d-[01]\d-[0-3]\d[T ]\d\d:",
    "host name": rf"(?i)(?<![\w@.])(?:[a-z0-9-]+\.)+(?:{DOMAINS})\b(?![\w(])",
    "long random text": r"(?<![\w/+-])(?=[\w/+-]*\d)(?=[\w/+-]*[a-z])(?=[\w/+-]*[A-Z])"
    r"[A-Za-z0-9+/_-]{32,}={0,2}(?![\w/+-])",
}
MARKS = {kind: re.compile(pattern) for kind, pattern in PATTERNS.items()}
FROM_S, TO_S = 946_684_800, 4_102_444_800  # 2000 to 2100
IDENTIFIER = 1 << 40  # larger numbers are identifiers, not counts
NAME = re.compile(r"[A-Za-z_][A-Za-z_.-]{0,39}\d{0,2}\Z")


def kinds(text: str) -> list[str]:
    """The kinds of marks in a text.

    >>> kinds("see /home/me/run, or write to me@example.org"), kinds("text")
    (['e-mail address', 'path'], [])
    """
    return [kind for kind, pattern in MARKS.items() if pattern.search(text)]


def is_epoch(value: float) -> bool:
    """Whether a number looks like a time from 2000 to 2100, counted from 1970 in s, ms, us or ns.

    >>> is_epoch(1_700_000_000), is_epoch(1.7e12), is_epoch(86_400_000)
    (True, True, False)
    """
    return any(FROM_S * unit <= value < TO_S * unit for unit in (1, 1e3, 1e6, 1e9))


def shown(name: str) -> str:
    """A field's name if it looks like one: a key can contain private text just like a value.

    >>> shown("user_name"), shown("me@example.org")
    ('user_name', '(hidden field name)')
    """
    return name if NAME.match(name) and not kinds(name) else "(hidden field name)"
