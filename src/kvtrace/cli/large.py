"""Traces larger than memory: a data set is read as a stream, and its memory bound is printed before it starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from .output import print_lines

MEMORY = click.option("--memory", metavar="SIZE", help="Stop if a data set may need more memory than SIZE, such as 2GB.")


def load(path: str, memory: str | None, quiet: bool, need: Callable[[Any], Any], **options: Any) -> Any:
    """The trace of a command, which needs `need(dataset)` for a data set; `options` are those of `open_trace`."""
    from ..formats.lazy import open_trace

    return open_trace(path, memory=size_of(memory), need=need, on_need=None if quiet else print_need, **options)


def opened(path: str, memory: str | None, block_size: int | None = None) -> tuple[Any, int | None]:
    """The data set at a path and the memory limit in bytes; (None, None) for any other trace."""
    from ..formats.lazy import dataset_at

    max_bytes = size_of(memory)
    return dataset_at(path, block_size=block_size, memory=max_bytes), max_bytes


def require_memory(need: Any, max_bytes: int | None, quiet: bool) -> None:
    """UsageError if the need exceeds the limit; otherwise print the need."""
    from ..formats import lazy

    lazy.require_memory(need, max_bytes, None if quiet else print_need)


def size_of(memory: str | None) -> int | None:
    """The bytes of --memory, or None."""
    from .._base.memory import parse_memory

    return None if memory is None else parse_memory(memory)


def print_need(need: object) -> None:
    """Print the memory that a data set needs."""
    print_lines([("memory", need)])
