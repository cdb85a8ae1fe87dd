"""OpenAI's Batch (platform.openai.com/docs/guides/batch): a file of requests and one of responses, with `custom_id`.

Responses can be in any order. A first pass records where each of them begins, in about 150 bytes of memory; then each
request is read with its response. The joined rows are in the order of the requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from ..._base.errors import InputError
from ..._base.files import MAX_LINE, name_of
from ..._base.input_files import open_read


def kind_of(line: bytes) -> str | None:
    """The content of a line of a Batch: `requests`, `responses`, or None if it holds both or is of another log.

    >>> kind_of(b'{"custom_id": "a", "body": {}}'), kind_of(b'{"custom_id": "a", "response": {}}'), kind_of(b"{}")
    ('requests', 'responses', None)
    """
    row = _row(line)
    if "custom_id" not in row or ("body" in row) == ("response" in row):
        return None
    return "requests" if "body" in row else "responses"


def first_line(path: str) -> bytes:
    """The first line of a file, at most a megabyte of it."""
    with open_read(path) as stream:
        return stream.readline(1 << 20)


def joined_lines(lines: Iterable[bytes], paths: Iterable[str]) -> Iterator[bytes]:
    """The lines of requests, each with its response from these files; InputError if a `custom_id` has two responses."""
    places = _places(paths)
    streams: dict[str, Any] = {}
    try:
        for line in lines:
            row = _row(line)
            identity = row.get("custom_id")
            place = places.get(identity) if type(identity) is str else None
            if place is None:
                yield line
                continue
            if place.path not in streams:
                streams[place.path] = open_read(place.path)
            stream = streams[place.path]
            stream.seek(place.start)
            yield orjson.dumps(row | {"response": _row(stream.readline(MAX_LINE)).get("response")})
    finally:
        for stream in streams.values():
            stream.close()


@dataclass(frozen=True, slots=True)
class _Place:
    path: str
    start: int  # bytes


def _places(paths) -> dict[str, _Place]:
    """custom_id -> the place of its response."""
    places: dict[str, _Place] = {}
    for path in paths:
        with open_read(path) as stream:
            start = 0
            while line := stream.readline(MAX_LINE):
                identity = _row(line).get("custom_id")
                if type(identity) is str:
                    if identity in places:
                        raise InputError(f"{name_of(path)}: a custom_id has two responses. Run each batch by itself.")
                    places[identity] = _Place(path, start)
                start += len(line)
    return places


def _row(line) -> dict[str, Any]:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return row if type(row) is dict else {}
