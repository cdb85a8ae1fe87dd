"""Bytes of JSON rows changed a little, many times over: what a fuzzer does that follows no coverage."""

from __future__ import annotations

import random

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
