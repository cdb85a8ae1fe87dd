"""The Jinja environment of chat templates, with the same features as in Hugging Face's transformers.

jinja2's immutable sandbox, with trimmed blocks, `break` and `continue`, a `tojson` that escapes nothing,
`raise_exception`, `strftime_now`, and the tag `{% generation %}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from types import CodeType

from .._base.errors import RowError, UsageError

FILENAME = "<chat template>"  # of compiled templates, in tracebacks


@lru_cache(maxsize=1)
def environment():
    """The Jinja environment of chat templates, shared by all."""
    from jinja2 import TemplateError, ext, nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(ext.Extension):
        """`{% generation %} ... {% endgeneration %}` marks the model's text for training. It renders as its body."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser):
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    def raise_exception(message):
        raise TemplateError(message)

    jinja = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
    )
    jinja.filters["tojson"] = _tojson
    jinja.globals["raise_exception"] = raise_exception
    jinja.globals["lipsum"], jinja.filters["random"] = _random("lipsum"), _random("random")
    return jinja


@lru_cache(maxsize=16)
def code_of(source: str) -> CodeType:
    """The compiled code of a template; raises what jinja2 and Python's compiler raise."""
    return environment().compile(source, filename=FILENAME)


def _random(name):
    """In place of a function of jinja2 that gives another text at each call, which no prefix would survive."""

    def refuse(*_arguments, **_options):
        raise RowError(f"the chat template uses `{name}`, which gives another text at each call.")

    return refuse


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    """Plain JSON; jinja2's own filter escapes for HTML and sorts keys."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime(time, format):
    """Format the time of a request (seconds since 1970, or a datetime), in UTC; RowError if it has none."""
    if time is None:
        raise RowError("the chat template prints the date, but the request has no time.")
    if not isinstance(time, datetime):
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=time)
    return (time if time.tzinfo is None else time.astimezone(UTC)).strftime(format)


ADDRESS = " at 0x"  # in the text of most objects of Python


def without_addresses(text, messages, tools) -> str:
    """The text; RowError if it shows the memory address of an object of jinja2, which differs in each run."""
    if ADDRESS in text:
        request = f"{messages} {tools}"
        if any(address not in request for address in set(re.findall(f"{ADDRESS}[0-9a-f]+", text))):
            raise RowError("the chat template prints an object (a function or an iterator) in place of its text.")
    return text


def named_sources(source, name):
    """(default, tool_use) of a single source or of several named ones."""
    if isinstance(source, str):
        return source, None
    if isinstance(source, list):
        source = {row.get("name"): row.get("template") for row in source if isinstance(row, Mapping)}
    texts = {key: text for key, text in source.items() if isinstance(text, str)} if isinstance(source, Mapping) else {}
    if "default" not in texts:
        raise UsageError(
            f"{name}: none of the {len(texts)} chat templates is named default. Set one with --chat-template FILE."
        )
    return texts["default"], texts.get("tool_use")
