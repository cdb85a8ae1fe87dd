"""What a stream of events is when put together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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
