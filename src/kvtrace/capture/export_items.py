"""The spans or the log records of an OTLP export, one after the other: no more than one of them is held as objects.

A body of a few kilobytes can inflate to millions of empty spans, attributes or lists, each of which takes 50 to 200
times its bytes when parsed. So the outer levels are walked as bytes, and the items are parsed one by one: at most
MAX_ITEMS of them, none with more values than `_base/json_values.py` allows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any

import orjson

from .._base.errors import RowError
from .._base.json_values import MAX_VALUES, SMALL, TOO_MANY_VALUES, TooManyValues, parsed_json

MAX_ITEMS = 100_000  # spans, log records or calls of a body
MAX_AROUND = 10 * MAX_ITEMS  # fields of protobuf on the levels around them
TOO_MANY_ITEMS = f"has more than {MAX_ITEMS:,} spans, log records or calls."
SPANS = ("resourceSpans", "scopeSpans", "spans")
RECORDS = ("resourceLogs", "scopeLogs", "logRecords")
BATCHES, RESOURCE, SCOPES, ITEMS = 1, 1, 2, 2  # numbers of the fields, equal for spans and log records
LENGTH_DELIMITED, SIZES = 2, {1: 8, 5: 4}  # wire types of protobuf


def protobuf_items(body: bytes, item_type: Any, resource_of: Callable[[Any], Any] = bool) -> Iterator[tuple[Any, Any]]:
    """Each span or log record of an export request, after what `resource_of` makes of its parsed resource, once.

    RowError if the export is not valid, TooManyValues if it holds too much.
    """
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource

    around, count = MAX_AROUND, 0

    def inside(number, begin, end):
        nonlocal around
        for field, *place in _fields(body, begin, end):
            around -= 1
            if around < 0:
                raise TooManyValues(TOO_MANY_ITEMS)
            if field == number:
                yield place

    for batch in inside(BATCHES, 0, len(body)):
        resource = Resource()
        for place in inside(RESOURCE, *batch):  # more than one are merged
            _merge(resource, body, *place)
        value = resource_of(resource)
        for scope in inside(SCOPES, *batch):
            for place in inside(ITEMS, *scope):
                count += 1
                if count > MAX_ITEMS:
                    raise TooManyValues(TOO_MANY_ITEMS)
                item = item_type()
                _merge(item, body, *place)
                yield value, item


def _fields(data: bytes, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The fields of a message of protobuf: number, begin and end of the value, which is empty for numbers."""
    at = begin
    while at < end:
        tag, at = _varint(data, at, end)
        value = at
        if tag & 7 == LENGTH_DELIMITED:
            size, value = _varint(data, at, end)
            at = value + size
        elif tag & 7 == 0:
            _, at = _varint(data, at, end)
        else:
            at += SIZES.get(tag & 7, end)
        if at > end or tag < 8:
            raise _malformed()
        yield tag >> 3, value, at if tag & 7 == LENGTH_DELIMITED else value


def _varint(data, at, end):
    number = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
    raise _malformed()


def _malformed() -> RowError:
    return RowError("is not a valid export request.")


def _merge(message, body, begin, end):
    """Add a message's bytes to it; RowError if they are not valid, TooManyValues if they have too many fields."""
    from google.protobuf.message import DecodeError

    if end - begin > SMALL:
        _require_few_fields(body, begin, end, message.DESCRIPTOR)
    try:
        message.MergeFromString(body[begin:end])
    except DecodeError:
        raise _malformed() from None


def _require_few_fields(body, begin, end, descriptor):
    left, waiting = MAX_VALUES, [(begin, end, descriptor)]
    while waiting:
        begin, end, descriptor = waiting.pop()
        messages = _messages(descriptor)
        for number, *place in _fields(body, begin, end):
            left -= 1
            if left < 0:
                raise TooManyValues(TOO_MANY_VALUES)
            if number in messages:
                waiting.append((*place, messages[number]))


@cache
def _messages(descriptor):
    """The fields of a type that hold messages: number -> their type."""
    return {field.number: field.message_type for field in descriptor.fields if field.message_type is not None}


def json_items(
    body: bytes, names: tuple[str, str, str], resource_of: Callable[[Any], Any] = bool
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The same of an export in JSON, with the names SPANS or RECORDS.

    >>> list(json_items(b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"a": 1}, {}]}]}]}', SPANS))
    [(False, {'a': 1}), (False, {})]
    """
    _decoded(body, names, True)
    batches, scopes, items = names
    for batch in getattr(_decoded(body, names, False), batches) or ():
        resource = resource_of(_loaded(batch.resource) or {})
        for scope in getattr(batch, scopes) or ():
            for item in getattr(scope, items) or ():
                yield resource, _loaded(item)


def json_calls(body: bytes) -> Iterator[dict[str, Any]]:
    """The objects of a JSON array without its nulls, of lines of JSON, or one; RowError if it is something else.

    >>> list(json_calls(b'[{"id": "a"}, null]')), list(json_calls(b'{"id": "a"}\\n{"id": "b"}\\n'))
    ([{'id': 'a'}], [{'id': 'a'}, {'id': 'b'}])
    """
    if body.lstrip()[:1] == b"[":
        _decoded(body, None, True)
        calls = _decoded(body, None, False)
    elif body.count(b"\n") + body.count(b"\r") > 2 * MAX_ITEMS:
        raise TooManyValues(TOO_MANY_ITEMS)
    else:
        calls = [line for line in body.splitlines() if line.strip()]
        if len(calls) > MAX_ITEMS:
            raise TooManyValues(TOO_MANY_ITEMS)
    for call in map(_loaded, calls):
        if call is not None:  # LiteLLM may send null for a call
            if type(call) is not dict:
                raise _malformed()
            yield call


class _Left(threading.local):
    """The items that the decoder of this thread still takes."""

    items = 0


_left = _Left()


def _decoded(body, names, is_counted):
    """The outer levels of an export, or with None as `names` of an array, in which each item is JSON.

    A first time they are counted: what takes the place of an item is forgotten at once if there are too many.
    """
    import msgspec

    _left.items, export = MAX_ITEMS, None
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # they may quote the body
        export = _decoder(names, is_counted).decode(body)
    if _left.items < 0:
        raise TooManyValues(TOO_MANY_ITEMS)
    if export is None:
        raise _malformed()
    return export


@cache
def _decoder(names, is_counted):
    import msgspec

    class Counted(msgspec.Struct):
        def __post_init__(self):
            _left.items -= 1
            if _left.items < 0:
                raise ValueError

    item: Any = Counted if is_counted else msgspec.Raw
    if names is None:
        return msgspec.json.Decoder(list[item | None] if is_counted else list[item])  # type: ignore[valid-type]
    batches, scopes, items = names
    scope = msgspec.defstruct("Scope", [(items, list[item] | None, None)])
    resource = ("resource", msgspec.Raw, msgspec.Raw(b"{}"))
    batch = msgspec.defstruct("Batch", [resource, (scopes, list[scope] | None, None)])  # type: ignore[valid-type]
    return msgspec.json.Decoder(msgspec.defstruct("Export", [(batches, list[batch] | None, None)]))  # type: ignore[valid-type]


def _loaded(text):
    with suppress(orjson.JSONDecodeError):  # it may quote the body
        return parsed_json(bytes(text))
    raise _malformed()
