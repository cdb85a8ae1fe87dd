"""The sources of live requests: one file and one row each."""

from __future__ import annotations

from ..._base.errors import wrong_word
from ..source import Source
from . import follow, kv_events, litellm, otlp, proxy

SOURCES: dict[str, Source] = {
    source.name: source for source in (follow.SOURCE, otlp.SOURCE, litellm.SOURCE, kv_events.SOURCE, *proxy.SOURCES)
}


def source_named(name: str) -> Source:
    """The source of this name; UsageError if there is none.

    >>> source_named("otlp").log_format
    'otel'
    """
    if name not in SOURCES:
        raise wrong_word(name, "a source", SOURCES)
    return SOURCES[name]
