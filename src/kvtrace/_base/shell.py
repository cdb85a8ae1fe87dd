"""Names of files in commands that a message suggests, so that the command can be pasted into a shell."""

from __future__ import annotations

import shlex
from pathlib import Path


def pasted(path: str | Path) -> str:
    """A path as one word of a shell command.

    >>> print(pasted("day.jsonl"), pasted("my logs/day 1.jsonl"), pasted("-x.jsonl"), pasted("-"))
    day.jsonl 'my logs/day 1.jsonl' ./-x.jsonl -
    """
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") and text != "-" else text)
