"""Bytes and JSON changed a little, many times over: what a fuzzer does that follows no coverage."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from typing import Any

TOKENS = [
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\n", b"\r\n", b" ", b"\t", b"\0", b"\xff", b"\xef\xbb\xbf",
    b"-", b"+", b".", b"e", b"0", b"00", b"1e400", b"-0", b"0.1", b"9007199254740993", b"9223372036854775807",
    b"9223372036854775808", b"18446744073709551615", b"18446744073709551616", b"1" * 40, b"1." + b"3" * 40, b"\\u0000",
    b"\\ud800", b"true", b"false", b"null", b"NaN", b"[]", b"{}", b'""', b'"timestamp"', b'"input_length"',
    b'"output_length"', b'"hash_ids"', b'"output_hash_ids"', b'"hash_id', b'"timestamp": 1, ', b'"x": 1, ',
    b"\xc3\xa9", b"\xf0\x9f\x98\x80", b" " * 70, b"[" * 70,
]  # fmt: skip


def mutate(draw: random.Random, data: bytes, most: int = 6) -> bytes:
    """The data with one to `most` changes.

    >>> mutate(random.Random(1), b'{"a": 1}') != b'{"a": 1}'
    True
    """
    for _ in range(draw.randint(1, most)):
        data = draw.choice(CHANGES)(draw, data)
    return data


def _flip(draw, data):
    return _put(data, at := _place(draw, data), at + 1, bytes([draw.randrange(256)]))


def _insert(draw, data):
    return _put(data, at := _place(draw, data), at, draw.choice(TOKENS))


def _replace(draw, data):
    at = _place(draw, data)
    return _put(data, at, at + draw.randint(1, 8), draw.choice(TOKENS))


def _cut(draw, data):
    at = _place(draw, data)
    return _put(data, at, at + draw.choice([1, 2, 8, 64, 4096]), b"")


def _double(draw, data):
    at = _place(draw, data)
    return _put(data, at, at, data[at : at + draw.choice([1, 8, 64, 512])])


def _end(draw, data):
    return data[: _place(draw, data)]


CHANGES = [_flip, _insert, _insert, _replace, _replace, _cut, _double, _end]


def _place(draw, data):
    return draw.randrange(len(data) + 1)


def _put(data, start, stop, new):
    return data[:start] + new + data[stop:]


ODD = [
    None, True, False, -1, 0, 1, 2, 0.5, -0.0, 1e-300, 1e308, float("nan"), float("inf"), 2**26, 2**26 + 1, 2**31 - 1,
    2**31, 2**40, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**31), -(2**63), 10**30, "", " ", "0", "a/b",
    "..", "\0", "\ud800", [], {}, [[]], [0], [-1], ["x"], {"": []}, [None],
]  # fmt: skip


def changed(draw: random.Random, whole: Any, word: str, most: int = 3) -> Any:
    """A JSON value with one to `most` changes of its inner values; some become the word.

    >>> changed(random.Random(1), {"a": [1, 2]}, "boats") != {"a": [1, 2]}
    True
    """
    root = [deepcopy(whole)]
    for _ in range(draw.randint(1, most)):
        places = list(_places(root[0])) or [(root, 0)]
        inner, key = draw.choice(places)
        draw.choice(VALUE_CHANGES)(draw, inner, key, places, word)
    return root[0]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each inner value's container and key."""
    inside = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    for key, inner in inside:
        yield value, key
        yield from _places(inner)


def _odd(draw, inner, key, places, word):
    inner[key] = draw.choice([*ODD, word])


def _removed(draw, inner, key, places, word):
    del inner[key]


def _grafted(draw, inner, key, places, word):
    """A value of another place: ids that are there twice, dependencies in a circle, columns of other lengths."""
    other, place = draw.choice(places)
    inner[key] = deepcopy(other[place]) if _size(other[place]) < 2000 else place


def _scaled(draw, inner, key, places, word):
    value = inner[key]
    if isinstance(value, int | float):
        change = draw.choice([-value, value + 1, value - 1, value * 1000, value * 10**9, value / 2, value + 0.5])
        inner[key] = change


def _listed(draw, inner, key, places, word):
    value = inner[key]
    if isinstance(value, list):
        part = value[: draw.randrange(len(value) + 1)]
        inner[key] = draw.choice([value + part, part, value[::-1], draw.sample(value, len(value)), value[:8] * 40])
    else:
        inner[key] = [value] * draw.choice([1, 2, 30])


def _nested(draw, inner, key, places, word):
    for _ in range(draw.choice([1, 3, 200])):
        inner[key] = draw.choice([[inner[key]], {"x": inner[key]}])


VALUE_CHANGES = [_odd, _odd, _odd, _removed, _grafted, _grafted, _scaled, _scaled, _listed, _nested]


def _size(value) -> int:
    return 1 + sum(map(_size, value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()))


def changed_json(draw: random.Random, data: bytes, word: str) -> bytes:
    """The same of a text of one value, or of a row each; the rows count as one list. Other bytes are mutated."""
    with suppress(ValueError):
        return _text(changed(draw, json.loads(data), word))
    with suppress(ValueError):
        rows = changed(draw, [json.loads(line) for line in data.splitlines() if line.strip()], word)
        return b"\n".join(map(_text, rows if isinstance(rows, list) else [rows])) + b"\n"
    return mutate(draw, data)


def _text(value) -> bytes:
    return json.dumps(value).encode()
