"""The pass-through proxy for OpenAI- and Anthropic-compatible endpoints: a source for each API.

`capture/proxy/` has the proxy itself, which runs in the service, and the rows of its payloads, which are made in the
digester.
"""

from __future__ import annotations

from functools import partial

from ...ingest.logs.streams import anthropic, openai, responses
from ..proxy.app import Proxy as Proxy
from ..proxy.app import proxy_app as proxy_app
from ..proxy.calls import ANTHROPIC, OPENAI, RESPONSES
from ..proxy.rows import ExchangeRows
from ..source import Source

SOURCES = (
    Source(OPENAI, log_format="openai", time_unit="ns", rows=partial(ExchangeRows, openai.answer_of)),
    Source(RESPONSES, log_format="responses", time_unit="ns", rows=partial(ExchangeRows, responses.answer_of)),
    Source(ANTHROPIC, log_format="anthropic", time_unit="ns", rows=partial(ExchangeRows, anthropic.answer_of)),
)
