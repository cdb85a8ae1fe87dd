"""Server-sent events (html.spec.whatwg.org, 9.2): the JSON objects of a stream, and the answer that they make.

Each object has the place in the stream where it ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from ..._base.errors import RowError
from ..._base.json_values import parsed_json

Event = dict[str, Any]
DONE: Event = {"done": True}  # stands for `data: [DONE]`, with which OpenAI ends a stream
BOM = b"\xef\xbb\xbf"
_BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n")


class EventStream:
    """The JSON objects of a stream with the bytes of the stream up to their end; DONE for `[DONE]`.

    The last event may be cut: it is then left out. Blank lines between events may be missing, if each event has one
    line. RowError if an event before the last one is not a JSON object.

    >>> stream = EventStream(b': hello\\n\\nevent: a\\ndata: {"b": 1}\\n\\ndata: [DONE]\\n\\ndata: {"c')
    >>> list(stream), stream.is_cut
    ([(34, {'b': 1}), (48, {'done': True})], True)
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.count = 0  # events so far
        self.is_cut = False  # the last event is not complete; known at the end

    def __iter__(self) -> Iterator[tuple[int, Event]]:
        start = len(BOM) if self.data.startswith(BOM) else 0
        for match in _BLANK_LINE.finditer(self.data, start):
            events, is_whole = _events_of(self.data[start : match.start()])
            if not is_whole:
                raise RowError("an event of the answer's stream is not a JSON object.")
            yield from self._counted(events, match.end())
            start = match.end()
        events, is_whole = _events_of(self.data[start:])  # some servers leave out the last blank line
        self.is_cut = not is_whole
        yield from self._counted(events, len(self.data))

    def _counted(self, events, end):
        for event in events:
            self.count += 1
            yield end, event


def events(stream: bytes) -> EventStream:
    """The events of the bytes of a stream.

    >>> [event for _, event in events(b'data: {"a": 1}\\n\\n')]
    [{'a': 1}]
    """
    return EventStream(stream)


def event_of(data: bytes | str) -> Event | None:
    """The object of the data of an event, DONE for `[DONE]`; None if the data are something else.

    >>> event_of('{"a": 1}'), event_of(" [DONE]"), event_of("Yes")
    ({'a': 1}, {'done': True}, None)
    """
    if len(data) < 16 and data.strip() in (b"[DONE]", "[DONE]"):
        return DONE
    try:
        event = parsed_json(data)
    except orjson.JSONDecodeError:
        return None
    return event if type(event) is dict else None


def _events_of(block: bytes) -> tuple[list[Event], bool]:
    """The objects of the lines between two blank lines, and whether all their data are objects."""
    if block.startswith(b"data: {") and b"\n" not in block and b"\r" not in block:  # nearly all events
        lines = [block[6:]]
    else:
        lines = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        lines = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
    data = b"\n".join(lines)
    if not data.strip():
        return [], True
    if (event := event_of(data)) is not None:
        return [event], True
    events: list[Event] = []  # one a line, of a writer that leaves out blank lines
    for line in lines:
        if (event := event_of(line)) is None:
            return events, False
        events.append(event)
    return events, True


ENDED = "the answer ended before its first token."


@dataclass(repr=False)
class StreamedAnswer:
    """An answer that came as a stream of events. It holds text, so its repr shows nothing of it."""

    response: dict[str, Any] = field(default_factory=dict)  # as the API gives it without streaming
    finished: bool = False  # the stream says that the answer is complete
    failed: bool = False  # the stream holds an error
    first_token: int | None = (
        None  # where the first event with generated text ends: a byte of the stream, or its number
    )

    @property
    def is_answer(self) -> bool:
        """Whether something was generated: the stream is complete, or it ended early and after the first token.

        >>> StreamedAnswer(finished=True).is_answer, StreamedAnswer(failed=True).is_answer
        (True, False)
        """
        return (self.finished and not self.failed) or self.first_token is not None


def text_of(value: Any) -> str:
    """The value if it is a string; "" for any other value.

    >>> text_of("Yes"), text_of(None)
    ('Yes', '')
    """
    return value if type(value) is str else ""


def index_of(value: Any) -> int:
    """The value if it is a position in a list of an answer; 0 for any other value.

    >>> index_of(2), index_of(None), index_of(-1)
    (2, 0, 0)
    """
    return value if type(value) is int and 0 <= value < 1 << 20 else 0


def object_of(value: Any) -> dict[str, Any]:
    """The value if it is an object; an empty one for any other value.

    >>> object_of({"a": 1}), object_of(None)
    ({'a': 1}, {})
    """
    return value if type(value) is dict else {}


def objects_of(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; none for any other value.

    >>> objects_of([{"a": 1}, 2]), objects_of(None)
    ([{'a': 1}], [])
    """
    return [item for item in value if type(item) is dict] if type(value) is list else []
