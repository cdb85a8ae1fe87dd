"""The lists of ids in a JSON text by a regular expression for strings and lists, and numbering with dictionaries."""

import re

STRING = re.compile(rb'"(?:[^"\\]|\\[\s\S])*"')
LIST = re.compile(
    rb"[ \t\r\n]*:[ \t\r\n]*(\[[ \t\r\n]*(?:(?:0|[1-9]\d*)[ \t\r\n]*(?:,[ \t\r\n]*(?:0|[1-9]\d*)[ \t\r\n]*)*)?\])"
)


def find_lists(text):
    """(start, stop, ids) of each list of numbers below 2^64 under `hash_ids`; strings are passed over whole."""
    at, found = 0, []
    while string := STRING.search(text, at):
        at = string.end()
        if string.group() == b'"hash_ids"' and (after := LIST.match(text, at)):
            ids = [int(digits) for digits in re.findall(rb"\d+", after.group(1))]
            if all(number < 2**64 for number in ids):
                found.append((*after.span(1), [number - 2**64 if number >= 2**63 else number for number in ids]))
                at = after.end()
    return found


def number_rows(rows):
    """The ids of rows of (session, key) pairs by first appearance; keys of the session None are shared."""
    number = {}
    return [[number.setdefault(pair, len(number)) for pair in row] for row in rows]
