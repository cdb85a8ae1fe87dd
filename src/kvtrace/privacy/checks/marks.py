"""Patterns of text that must not be in a released file: names of people, places and machines, and raw identifiers."""

from __future__ import annotations

import re

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
