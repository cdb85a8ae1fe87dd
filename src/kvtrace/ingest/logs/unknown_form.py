"""The error for a log whose first rows match no reader: what else the file is, or which `--map` may read it.

It names fields of the rows, since the user must choose among them, but only names that cannot be content: short words
without digits that at least half of the rows have, of at least two rows. It never names values.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..._base.errors import RowError
from .spellings import CERTAIN

MAX_NAMES = 12
_NAME = re.compile(r"[a-z]{1,12}([_-][a-z]{1,12}|[A-Z][a-z]{1,11}){0,3}")  # snake_case, kebab-case or camelCase
GUESSES = {  # field -> words that its name may have, the likeliest first
    "timestamp": CERTAIN["timestamp"] + ("date", "at", "when"),
    "input": (
        "messages",
        "prompt",
        "input",
        "inputs",
        "question",
        "query",
        "instruction",
        "request",
        "text",
        "content",
    ),
    "output": ("output", "outputs", "answer", "response", "completion", "reply", "generation", "result"),
}


def unknown_form(rows: list[dict[str, Any]], formats: Iterable[str] = ()) -> RowError:
    """The error for rows that match no reader; their names are in the order of the first row.

    >>> print(unknown_form([{"question": "x", "answer": "y", "when": 1}] * 2))
    the first rows match no known log format. Their fields: question, answer, when. \
Try --map timestamp=when --map input=question --map output=answer, or --log-format NAME.
    """
    reason = "the first rows match no known log format."
    names = common_names(rows)
    if not names:
        return RowError(reason, hint=f"Try --map input=FIELD, or --log-format NAME (one of {', '.join(formats)}).")
    if {"custom_id", "response"} <= {*names}:
        return RowError(reason, hint="A Batch has its requests and responses in two files: give both.")
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    fields = f"Their fields: {', '.join(names[:MAX_NAMES])}{more}."
    maps = " ".join(f"--map {field}={name}" for field, name in _guessed(names).items())
    return RowError(f"{reason} {fields}", hint=f"Try {maps or '--map input=FIELD'}, or --log-format NAME.")


def common_names(rows: list[dict[str, Any]]) -> list[str]:
    """The fields that at least half of the rows have, of at least two rows, if their names cannot be content.

    >>> common_names([{"question": 1, "Ann Lee": 2, "id7": 3}] * 2), common_names([{"question": 1}])
    (['question'], [])
    """
    if len(rows) < 2:
        return []
    uses = Counter(name for row in rows for name in row)
    return [name for name, times in uses.items() if 2 * times >= len(rows) and times > 1 and _NAME.fullmatch(name)]


def _guessed(names):
    """Field -> the name that fits it best; none if no name fits the prompt."""
    guessed = {}
    for field, words in GUESSES.items():
        fits = [(words.index(word), i) for i, name in enumerate(names) if (word := _word(name, words)) is not None]
        if fits:
            guessed[field] = names[min(fits)[1]]
    return guessed if "input" in guessed else {}


def _word(name, words):
    """The likeliest of the words that the name is, or that it has as a part."""
    plain = re.sub("[^a-z]", "", name.lower())
    parts = {part.lower() for part in re.split(r"[_-]|(?<=[a-z])(?=[A-Z])", name)} | {plain}
    return next((word for word in words if word in parts), None)
