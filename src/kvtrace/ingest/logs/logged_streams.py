"""Event streams that a log holds in place of an answer: as text, as lines or pieces of it, or as a list of chunks.

They are put together as the API gives the answer without streaming. Only chunks of the APIs in streamed.py count: a
text that a model wrote may begin with `data:`, and a list may hold messages or content parts. All work is linear.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import orjson

from ..._base.errors import NotARequest, RowError
from . import streamed
from .fieldmap import ENCODINGS, unpacked
from .sse import DONE, ENDED, Event, EventStream, StreamedAnswer, event_of

Events = Iterable[tuple[int, Event]]
Assemble = Callable[[Events], StreamedAnswer]

FIELDS = ("data:", "event:", "id:", "retry:", ":")  # with which a line of a stream begins
WRAPPED = ("data", "chunk")  # fields of an item of a list that hold the chunk, beside its event's name or its time
CHUNKS = ("chat.completion.chunk", "text_completion", "text_completion.chunk")
# the beginning of a first event that is cut: enough of it to tell a chunk from prose
_CUT = re.compile(
    rb'(?m)^data: ?\{(?:"id": ?"(?:chatcmpl|cmpl|resp_|msg_)|"type": ?"(?:message_start|response\.)'
    rb'|[^\n]{0,200}"object": ?"(?:chat\.completion\.chunk|text_completion)|[^\n]{0,200}"choices": ?\[)'
)
UNKNOWN = "is an event stream of an API that kvtrace does not know."
HINT = "Log the answer as the API gives it without streaming, or its length: --map output_length=FIELD"


def unstreamed(value: Any, path: str) -> Any:
    """The answer of a stream, as its API gives it without streaming; any other value unchanged.

    Args:
        value: What a log has in place of an answer.
        path: Its JSON path.

    Raises:
        NotARequest: The stream ended before its first token, or holds an error only.
        RowError: An event is not a JSON object, or of an unknown API.

    >>> chunk = 'data: {"choices": [{"index": 0, "delta": {"content": "%s"}}]}\\n\\n'
    >>> unstreamed(chunk % "It " + chunk % "is.", "response")["choices"][0]["message"]["content"]
    'It is.'
    >>> unstreamed("data: none", "response")
    'data: none'
    """
    answer = None
    try:
        if type(value) is str:
            answer = _of_text(value)
        elif type(value) is list:
            answer = _of_list(value)
    except RowError as error:
        error.field = error.field or path
        raise
    if answer is None:
        return value
    if not answer.is_answer:
        raise NotARequest(ENDED, field=path)
    return answer.response


# -- a row of a log ------------------------------------------------------------------------------------------------

ANSWERS = ("response", "output", "outputs", "response_body", "response.body", "completion")
BODIES = ("body", "content", "text", "data", "chunks", "events", "stream", "response", "output")  # of an envelope
OTHERS = ("chunks", "response_chunks", "events", "stream", "raw_response")  # streams beside a request
DEPTH = 3  # of envelopes


def with_responses(row: dict[str, Any]) -> dict[str, Any]:
    """The row with the answers of streams in its answers' fields; the same row if it has no stream.

    An answer may be in an envelope, such as {"status_code": 200, "body": "data: ..."}.

    >>> chunks = [{"choices": [{"index": 0, "delta": {"content": "Hi"}}]}]
    >>> with_responses({"response": {"body": chunks}})["response"]["body"]["choices"][0]["message"]["content"]
    'Hi'
    """
    opened = {
        name: answer
        for name in ANSWERS
        if (value := row.get(name)) is not None and (answer := _opened(value, name, DEPTH)) is not value
    }
    if not opened and all(row.get(name) is None for name in ("choices", *ANSWERS)):
        for name in OTHERS:
            value = row.get(name)
            if value is not None and (answer := unstreamed(value, name)) is not value:
                return row | {"response": answer, name: None}
    return row | opened if opened else row


def _opened(value, path, depth):
    """The value with the answer of a stream in place of the stream."""
    if type(value) in (str, list):
        return unstreamed(value, path)
    if type(value) is not dict or not depth or "choices" in value or "role" in value or "type" in value:
        return value
    for name in BODIES:
        inner = value.get(name)
        answer = inner if inner is None else _opened(inner, f"{path}.{name}", depth - 1)
        if answer is not inner:
            if name == "body":  # readers know it
                return value | {"body": answer}
            return {key: other for key, other in value.items() if key != name} | answer
    return value


# -- forms of a stream ---------------------------------------------------------------------------------------------


def _of_text(text: str) -> StreamedAnswer | None:
    """The answer of a stream as text: server-sent events, lines of JSON, or JSON text of either; None if it is none."""
    for _ in range(ENCODINGS):
        head = text[:64].lstrip("\ufeff \t\r\n")
        if head.startswith(FIELDS):
            return _of_events(EventStream(_encoded(text)))
        if head.startswith("{"):
            return _of_json_lines(text)
        if head.startswith("["):
            items = unpacked(text.lstrip("\ufeff"))
            return _of_list(items) if type(items) is list else None
        if not head.startswith('"'):
            return None
        try:
            text = orjson.loads(text.lstrip("\ufeff"))
        except orjson.JSONDecodeError:
            return None
        if type(text) is not str:
            return None
    return None


def _of_events(stream: EventStream) -> StreamedAnswer | None:
    """The answer of server-sent events; None if they are text that looks like them."""
    answer = _assembled(stream, is_framed=True)
    if answer is None and not stream.count and stream.is_cut and _CUT.search(stream.data, 0, 4096):
        return StreamedAnswer()  # its first event was cut
    return answer


def _of_json_lines(text: str) -> StreamedAnswer | None:
    """The answer of lines that hold a chunk each; the last one may be cut."""
    first, _, rest = text.lstrip("\ufeff \t\r\n").partition("\n")
    chunk = event_of(first) if first.rstrip().endswith("}") else None
    if not rest or chunk is None or (_api_of(chunk, is_framed=False) is None and not _is_neutral(chunk)):
        return None
    return _assembled(_json_lines(text), is_framed=False)


def _json_lines(text: str) -> Iterator[tuple[int, Event]]:
    lines = [line for line in text.lstrip("\ufeff").split("\n") if line and not line.isspace()]
    for number, line in enumerate(lines, 1):
        event = event_of(line)
        if event is None and number == len(lines):
            return
        if event is None:
            raise RowError("a chunk of the answer's stream is not a JSON object.")
        yield number, event


def _of_list(items: list[Any]) -> StreamedAnswer | None:
    """The answer of a list of chunks, of lines or of pieces of a stream's text; None if it is another list."""
    if not items or type(items[0]) not in (dict, str):
        return None
    if all(type(item) is str for item in items):
        return _of_texts(items)
    events = []
    for item in items:
        event = _unwrapped(item) if type(item) is dict else event_of(item) if type(item) is str else None
        if event is None and item not in (None, ""):
            return None
        if event is not None:
            events.append(event)
    return _assembled(enumerate(events, 1), is_framed=False)


def _unwrapped(item: Event) -> Event | None:
    """The chunk of an item of a list, which may be in a field beside the event's name; None if it is none."""
    if _api_of(item, is_framed=False) is None:
        for name in WRAPPED:
            inner = item.get(name)
            inner = event_of(inner) if type(inner) is str else inner
            if type(inner) is dict:
                return inner
    return item


def _of_texts(items: list[str]) -> StreamedAnswer | None:
    """The answer of texts: a JSON chunk each, or pieces of one text, which may be its lines without their ends."""
    text = "".join(items)
    head = text[:64].lstrip("\ufeff \t\r\n")
    if head.startswith("{"):
        texts = [item for item in items if item and not item.isspace()]
        chunks = [event_of(item) for item in texts]
        if None not in chunks:
            return _assembled(enumerate(filter(None, chunks), 1), is_framed=False)
        return _of_json_lines(text)
    if not head.startswith(FIELDS):
        return _of_text(text) if head.startswith(("[", '"')) and len(items) > 1 else None
    pieces = EventStream(_encoded(text))
    answer, error = _tried(pieces)
    if answer is not None and not pieces.is_cut:
        return answer
    lines = EventStream(_encoded("".join(item if item.endswith(("\n", "\r")) else item + "\n" for item in items)))
    answer_of_lines, _ = _tried(lines)
    if answer_of_lines is not None and lines.count > pieces.count:
        return answer_of_lines
    if error is not None:
        raise error
    return answer


def _tried(stream: EventStream) -> tuple[StreamedAnswer | None, RowError | None]:
    """The answer of server-sent events, or their error."""
    try:
        return _of_events(stream), None
    except RowError as error:
        return None, error.with_traceback(None)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")


# -- the API of a stream -------------------------------------------------------------------------------------------


def _assembled(events: Events, *, is_framed: bool) -> StreamedAnswer | None:
    """The answer of events, by the API of the first that tells; None if none does, and they may be a model's text.

    Args:
        events: With their places.
        is_framed: They are server-sent events, which hold hardly anything else than chunks.
    """
    rest, head, assemble = iter(events), [], None
    try:
        while assemble is None and (item := next(rest, None)) is not None:
            head.append(item)
            assemble = _api_of(item[1], is_framed=is_framed)
    except RowError:
        return None  # an event is not JSON, and none before it is a chunk
    if assemble is None:
        return _of_no_api([event for _, event in head], is_framed=is_framed)
    return assemble(chain(head, rest))


def _of_no_api(events: list[Event], *, is_framed: bool) -> StreamedAnswer | None:
    """The answer of events of which none is a chunk: of an error, a stream without an answer."""
    if events and all(map(_is_neutral, events)):
        return StreamedAnswer(failed=True)
    if is_framed and len(events) > 1:
        raise RowError(UNKNOWN, hint=HINT)
    return None


def _api_of(event: Event, *, is_framed: bool) -> Assemble | None:
    """What puts the chunks of the API together that this one is of; None if it may be of several, or of none."""
    kind = event.get("type")
    if type(kind) is str and kind.startswith("response."):
        return streamed.assembled_responses
    if type(kind) is str and kind in streamed.EVENTS:
        return streamed.assembled_anthropic
    choices = event.get("choices")
    if type(choices) is not list:
        return None
    names = ("delta", "text", "message") if is_framed else ("delta", "text")
    has_piece = any(type(choice) is dict and any(name in choice for name in names) for choice in choices)
    return streamed.assembled_chat if has_piece or event.get("object") in CHUNKS else None


def _is_neutral(event: Event) -> bool:
    """Whether the event says nothing of the API: an end, an error, a sign of life."""
    return event is DONE or event.get("type") in ("ping", "error") or event.get("error") is not None
