"""A chat request as its engine renders it: the text of the prompt, where its media stand, and what was not rendered.

The request is its messages, its tools, and the fields that can change the prompt. Its engine (engine_forms.py) decides
what the template gets. Where the template has no place for something, it is not lost in silence: `not_rendered` names
the field. Tools that a template does not write go into the prompt as plain JSON, because requests with other tools
would otherwise seem to share prompts that they do not share.

A request may bring a template of its own, which nobody has checked. vLLM takes it only if it was started with
`--trust-request-chat-template`. Here it is off unless asked for, and runs in Jinja's sandbox, in a child process with a
second of time and 64 MB of memory: the engine's form of the request is found there, too, because that renders a few
words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import orjson

from .._base.errors import KvtraceError, RowError
from . import trial
from .api_forms import ChatRequest, as_chat
from .engine_forms import FORMS, Message, tools_as_text
from .harmony import GENERATION_PROMPT, effort_of, harmony_pieces
from .messages import MEDIA_KINDS, is_medium, kind_of, media_parts, text_of
from .templates import ChatTemplate

PREFILL_MARK = "\ue000prefill\ue001"
SPECIAL = re.compile(r"<[^<>\s]{1,80}>|\[[A-Z_]{2,40}\]")  # how placeholders are written
AROUND = re.compile(r"start|begin|end|boi|eoi|bos|eos", re.IGNORECASE)  # tokens around the placeholders of a medium


class Medium(NamedTuple):
    """An image, a sound, a video or a file in a prompt."""

    part: Message | None  # the content part; None = nothing but a cut between two texts that are tokenised apart
    kind: str
    placeholder: str  # the template's text for one placeholder token; "" = the template writes none


class RenderedPrompt(NamedTuple):
    """The text of a prompt, cut where its media stand: text, medium, text, ..."""

    texts: list[str]  # one more than media
    media: list[Medium]
    not_rendered: frozenset[str]  # names of fields


def render(
    template: ChatTemplate,
    messages: list[Message],
    tools: list[Any] | None,
    fields: Mapping[str, Any],
    *,
    engine: str = "vllm",
    time: float | datetime | None = None,
) -> RenderedPrompt:
    """The prompt of one chat request.

    Args:
        template: The chat template of the model.
        messages, tools: As the client sent them.
        fields: The other fields of the request that can change the prompt, such as `chat_template_kwargs`, and `api`
            ("messages" or "responses") where it was not a chat request.
        engine: A row of FORMS.
        time: Of the request, for templates that print the date: seconds since 1970, or a datetime.

    Raises:
        RowError: A message is malformed, or the template raised; without content.

    >>> loop = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    >>> prompt = render(ChatTemplate(loop), [{"role": "user", "content": "Boats?"}], [{"name": "find"}], {})
    >>> prompt.texts, sorted(prompt.not_rendered)
    (['<system>{"name": "find"}<user>Boats?'], ['tools'])
    """
    if not isinstance(messages, list) or not messages:
        raise RowError("the list of messages is empty.", field="messages")
    if engine == "vllm" and template.is_harmony:
        return _in_harmony(template, messages, tools, fields, time)
    form = FORMS[engine]
    if "api" in fields:
        messages, tools, fields = as_chat(ChatRequest(messages, tools, fields), template, engine)
    shaped_tools = form.tools(tools, fields)
    template = template.for_tools(shaped_tools) if engine != "sglang" else template  # SGLang takes the first for all
    missing = set(_without_effect(template.variables, fields, engine)) if fields else set()
    if shaped_tools and not template.renders_tools:
        missing.add("tools")
        messages, shaped_tools = _with_tools_text(messages, shaped_tools, template), None
    refusal = None
    for candidate in _tool_forms(shaped_tools, engine):
        try:
            texts, media = _rendered(template, messages, candidate, fields, engine, time)
        except RowError as error:
            refusal = refusal or error
        else:
            return RenderedPrompt(texts, media, frozenset(missing))
    assert refusal is not None
    raise refusal


def _tool_forms(tools: list[Any] | None, engine: str) -> Iterator[list[Any] | None]:
    """The tools in the engine's form, and then in others, for templates that raise on it."""
    yield tools
    if not tools:
        return
    if engine == "sglang":  # as SGLang does: some templates want tools without the envelope
        yield [tool.get("function", tool) if isinstance(tool, dict) else tool for tool in tools]
    yield [_without_nulls(tool) for tool in tools]


def _without_nulls(tool: Any) -> Any:
    """A tool with an empty description and an empty schema in place of null: the engine would refuse the request."""
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        return tool
    empty = {"description": "", "parameters": {}}
    return {**tool, "function": {key: empty.get(key) if value is None else value for key, value in function.items()}}


CUT = Medium(None, "", "")


def _in_harmony(template, messages, tools, fields, time) -> RenderedPrompt:
    """The prompt of a model that is served in Harmony, whatever its template."""
    if fields.get("api") == "messages":
        messages, tools, fields = as_chat(ChatRequest(messages, tools, fields), template, "vllm")
    missing = _without_effect({"reasoning_effort"} if effort_of(fields) else set(), fields, "vllm")
    texts, media = [""], []
    for piece in harmony_pieces(messages, tools, fields, time):
        if isinstance(piece, dict):
            media.append(_medium(piece, template))
            texts.append("")
        elif texts[-1]:
            media.append(CUT)
            texts.append(piece)
        else:
            texts[-1] = piece
    texts[-1] += GENERATION_PROMPT if template.generation_prompt is None else template.generation_prompt
    return RenderedPrompt(texts, media, frozenset(missing))


def _rendered(template, messages, tools, fields, engine, time) -> tuple[list[str], list[Medium]]:
    """The texts between the media, and the media."""
    lists = [message for message in messages if type(message) is dict and type(message.get("content")) is list]
    if parts := [part for message in lists for part in media_parts(message)]:
        return _around_media(template, messages, parts, tools, fields, engine, time)
    texts = _texts(template, messages, tools, fields, engine, time)
    return texts, [CUT] * (len(texts) - 1)


def _texts(template, messages, tools, fields, engine, time) -> list[str]:
    """The prompt, and the start of the answer if the engine tokenises it apart."""
    form, variables = FORMS[engine], FORMS[engine].variables(fields)
    last = messages[-1] if isinstance(messages[-1], dict) else {}
    prefill = bool(fields.get("continue_final_message")) and (
        not form.separate_prefill or (last.get("role") == "assistant" and isinstance(last.get("content"), str))
    )
    if not prefill:
        generation = True if engine == "sglang" else fields.get("add_generation_prompt") is not False
        conversation = form.messages(messages, template, fields)
        options = {"time": time, "add_generation_prompt": generation}
        return [template.render_conversation(conversation, tools, variables, **options)]
    if form.separate_prefill:
        conversation = form.messages(messages[:-1], template, fields) if len(messages) > 1 else []
        if not conversation:
            raise RowError("the prompt holds nothing but the answer to continue.", field="messages")
        return [template.render_conversation(conversation, tools, variables, time=time), last["content"]]
    return [_continued(template, form.messages(messages, template, fields), tools, variables, time)]


def _continued(template, conversation, tools, variables, time) -> str:
    """The prompt up to the end of the last message, which the model continues; as transformers cuts it."""
    last = dict(conversation[-1])
    content = last.get("content")
    if isinstance(content, list):
        place = next((i for i in reversed(range(len(content))) if "text" in content[i]), None)
        if place is None:
            raise RowError("the last message has no text to continue (continue_final_message).", field="messages")
        last["content"] = list(content)
        last["content"][place] = {**content[place], "text": content[place]["text"] + PREFILL_MARK + " "}
    else:
        last["content"] = (content or "") + PREFILL_MARK + " "
    text = template.render_conversation(
        [*conversation[:-1], last], tools, variables, time=time, add_generation_prompt=False
    )
    end = text.rfind(PREFILL_MARK)
    if end < 0:
        raise RowError("the chat template does not write the message to continue (continue_final_message).")
    kept = text[end + len(PREFILL_MARK) : end + len(PREFILL_MARK) + 1] == " "
    return text[:end] if kept else text[:end].rstrip()


def _without_effect(read, fields, engine) -> Iterator[str]:
    """The fields of the request that the template, which reads some variables, or the engine has no place for."""
    arguments = fields.get("chat_template_kwargs") or {}
    if any(name not in read for name in arguments):
        yield "chat_template_kwargs"
    if fields.get("documents") and ("documents" not in read or engine == "sglang"):
        yield "documents"
    if fields.get("reasoning_effort") is not None and not read & {"reasoning_effort", "enable_thinking", "thinking"}:
        yield "reasoning_effort"
    if (fields.get("thinking") or {}).get("type", "disabled") != "disabled":
        yield "thinking"
    yield from (name for name in UNRENDERED if fields.get(name))


# fields that can change a prompt, and that no engine of FORMS gives its template
UNRENDERED = (
    "chat_template", "response_format", "mm_processor_kwargs", "context_management", "mcp_servers",
    "truncate_prompt_tokens", "suffix",
)  # fmt: skip


def _with_tools_text(messages, tools, template) -> list[Message]:
    """The messages, with the tools as plain JSON after the system prompt."""
    text = tools_as_text(tools)
    first = messages[0] if isinstance(messages[0], dict) else {}
    if first.get("role") in ("system", "developer") or (first.get("role") == "user" and not template.takes_system):
        return [{**first, "content": _appended(first.get("content"), text)}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages] if template.takes_system else messages


def _appended(content, text):
    if isinstance(content, list):
        return [*content, {"type": "text", "text": text}]
    return f"{content}\n\n{text}" if content else text


# -- media ---------------------------------------------------------------------------------------------------------


def _around_media(template, messages, parts, tools, fields, engine, time) -> tuple[list[str], list[Medium]]:
    """The texts between the media, and the media: where the template writes them, else where their parts stand."""
    media = [_medium(part, template) for part in parts]
    kinds = [kind for kind in dict.fromkeys(medium.kind for medium in media)]
    written = {kind: template.media_text(kind) for kind in kinds if kind in MEDIA_KINDS.values()}
    if template.wants_parts(engine) and all(written.get(kind) for kind in kinds) and engine != "raw":
        texts = _texts(template, messages, tools, fields, engine, time)
        if (cut := _cut(texts[0], written, media)) is not None:
            return [*cut, *texts[1:]], media + [CUT] * (len(texts) - 1)
    marks = _marks(messages, len(media))
    texts = _texts(template, _marked(messages, iter(marks)), tools, fields, engine, time)
    order = sorted((place, i) for i, mark in enumerate(marks) if (place := texts[0].find(mark)) >= 0)
    pieces, start = [], 0
    for place, i in order:
        before, _, after = _around(written.get(media[i].kind, ""))
        pieces.append(texts[0][start:place] + before)
        start = place + len(marks[i])
        texts[0] = texts[0][:start] + after + texts[0][start:]
    placed = [media[i] for _, i in order]
    return [*pieces, texts[0][start:], *texts[1:]], placed + [CUT] * (len(texts) - 1)


def _medium(part, template) -> Medium:
    kind = MEDIA_KINDS.get(kind_of(part), "file")
    text = template.media_text(kind) if kind != "file" else ""
    return Medium(part, kind, _around(text)[1])


def _around(text: str) -> tuple[str, str, str]:
    """What a template writes for a medium: the text before its placeholder, the placeholder, and the text after it."""
    tokens = [match for match in SPECIAL.finditer(text) if not AROUND.search(match[0])]
    if len(tokens) != 1:
        return "", text, ""
    return text[: tokens[0].start()], tokens[0][0], text[tokens[0].end() :]


def _cut(text, written, media) -> list[str] | None:
    """The texts between the media; None if the template did not write them all, in their order."""
    places = list(re.finditer("|".join(map(re.escape, dict.fromkeys(written.values()))), text))
    if [match[0] for match in places] != [written[medium.kind] for medium in media]:
        return None  # another order, or a text of the user looks like a placeholder
    pieces, start = [], 0
    for match in places:
        before, placeholder, _ = _around(match[0])
        pieces.append(text[start : match.start()] + before)
        start = match.start() + len(before) + len(placeholder)
    return [*pieces, text[start:]]


def _marks(messages, count) -> list[str]:
    """A text for each medium that no message holds."""
    name = "media"
    while any(f"\ue000{name}" in text for message in messages for text in _all_texts(message)):
        name += "x"
    return [f"\ue000{name}{i}\ue001" for i in range(count)]


def _all_texts(message) -> Iterator[str]:
    content = message.get("content") if isinstance(message, dict) else None
    for piece in content if isinstance(content, list) else [content]:
        text = text_of(piece) if isinstance(piece, (str, dict)) else None
        if text is not None:
            yield text


def _marked(messages, marks: Iterator[str]) -> list[Message]:
    """The messages with a text in place of each medium."""
    shaped = []
    for message in messages:
        if any(True for _ in media_parts(message)):
            content = [
                {"type": "text", "text": next(marks)} if isinstance(part, dict) and is_medium(part) else part
                for part in message["content"]
            ]
            message = {**message, "content": content}
        shaped.append(message)
    return shaped


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
