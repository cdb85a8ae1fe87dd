"""The Jinja environment of chat templates, with the same features as in Hugging Face's transformers.

jinja2's immutable sandbox, with trimmed blocks, `break` and `continue`, a `tojson` that escapes nothing,
`raise_exception`, `strftime_now`, and the tag `{% generation %}`.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from types import CodeType

from .._base.errors import RowError

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
