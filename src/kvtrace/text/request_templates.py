"""Render a request with a chat template of its own, which nobody has checked.

vLLM takes such a template only if it was started with `--trust-request-chat-template`. Here it is off unless asked for,
and runs in Jinja's sandbox, in a child process with a second of time and 64 MB of memory: the engine's form of the
request is found there, too, because that renders a few words.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import orjson

from .._base.errors import KvtraceError
from . import trial
from .chat_requests import CUT, Medium, RenderedPrompt, render
from .messages import media_parts
from .templates import ChatTemplate

SECONDS, MEMORY = 1, 64 << 20
NAME = "the request's template"


def render_with_own(
    template: ChatTemplate,
    source: str,
    messages: list[dict[str, Any]],
    tools: list[Any] | None,
    fields: Mapping[str, Any],
    *,
    engine: str = "vllm",
    time: float | datetime | None = None,
) -> RenderedPrompt | None:
    """The prompt by the template that a request brings; None if it is not valid, fails, or takes too much.

    Args:
        template: The model's own template, for its special tokens.
        source: The request's template.
        messages, tools, fields, engine, time: As in `chat_requests.render`.

    >>> ask = [{"role": "user", "content": "Boats?"}]
    >>> render_with_own(ChatTemplate(""), "{{ messages[0].content }}", ask, None, {}).texts
    ['Boats?']
    >>> loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    >>> render_with_own(ChatTemplate(""), loops, ask, None, {}) is None
    True
    """
    own = ChatTemplate(source, name=NAME, **template.special_tokens)

    def task() -> bytes:
        prompt = render(own, messages, tools, fields, engine=engine, time=time)
        places = {id(part): place for place, part in enumerate(_parts(messages))}
        media = [(places.get(id(medium.part), -1), medium.kind, medium.placeholder) for medium in prompt.media]
        return orjson.dumps([prompt.texts, media, sorted(prompt.not_rendered - {"chat_template"})])

    try:
        result = trial.result_in_child(task, seconds=SECONDS, memory=MEMORY)
    except OSError:  # no process, or no pipe, is left
        raise KvtraceError("no child process can be started to render a request's own chat template.") from None
    if result is None:
        return None
    texts, media, missing = orjson.loads(result)
    parts = list(_parts(messages))
    placed = [CUT if place < 0 else Medium(parts[place], kind, text) for place, kind, text in media]
    return RenderedPrompt(texts, placed, frozenset(missing))


def _parts(messages):
    return [part for message in messages for part in media_parts(message)]
