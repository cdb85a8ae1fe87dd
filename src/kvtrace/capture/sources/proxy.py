"""The pass-through proxy for OpenAI- and Anthropic-compatible endpoints: a source for each API.

`capture/proxy/` has the proxy itself, which runs in the service, and the rows of its payloads, which are made in the
digester.
"""

from __future__ import annotations

from functools import partial

from ...ingest.logs import streamed
from ..proxy.app import Proxy as Proxy
from ..proxy.app import proxy_app as proxy_app
from ..proxy.exchange import ANTHROPIC, OPENAI, RESPONSES
from ..proxy.rows import ExchangeRows
from ..source import Source

SOURCES = (
    Source(OPENAI, log_format="openai", time_unit="ns", rows=partial(ExchangeRows, streamed.chat_answer)),
    Source(RESPONSES, log_format="responses", time_unit="ns", rows=partial(ExchangeRows, streamed.responses_answer)),
    Source(ANTHROPIC, log_format="anthropic", time_unit="ns", rows=partial(ExchangeRows, streamed.anthropic_answer)),
)
