"""The bodies of a request and its response, of any API that gateways forward, for the readers of gateways' exports."""

from __future__ import annotations

from typing import Any

from ..._base.errors import RowError
from . import anthropic, openai, responses
from .fieldmap import TARGETS
from .json_values import unpacked
from .record import Record

APIS = (responses, anthropic, openai)


def read_bodies(row: dict[str, Any], *, time: Any, request: str, response: str, **fields: Any) -> Record:
    """The Record of the bodies in these two fields of a row; RowError names the row's own fields.

    Args:
        time: the request's time.
        request, response: names of the fields; each holds an object, or JSON text of one.
        fields: other fields of the record, which a field map replaces.

    >>> row = {"ask": {"messages": [{"role": "user", "content": "Hello"}]}, "got": {"usage": {"completion_tokens": 7}}}
    >>> read_bodies(row, time=5, request="ask", response="got").output_length
    7
    """
    mapped = {name: row[name] for name in TARGETS if row.get(name) is not None}
    pair = {"timestamp": time, "request": _body(row, request), "response": _body(row, response)} | fields | mapped
    pair = {name: value for name, value in pair.items() if value is not None}
    reader = next((api for api in APIS if api.matches(pair)), openai)
    try:
        return reader.read(pair)
    except RowError as error:
        for name, field in (("request", request), ("response", response)):
            if error.field is not None and error.field.startswith(f"{name}."):
                error.field = field + error.field[len(name) :]
        raise


def number(value: Any) -> Any:
    """A count that a table has as text, as a number; any other value unchanged.

    >>> number("12"), number("12.0"), number(None)
    (12, 12, None)
    """
    if (
        type(value) is str
        and len(value) < 20
        and value.removesuffix(".0").isascii()
        and value.removesuffix(".0").isdigit()
    ):
        return int(value.removesuffix(".0"))
    return value


def _body(row, name):
    value = unpacked(row.get(name))
    return value if type(value) is dict else row.get(name)
