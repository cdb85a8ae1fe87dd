"""Run the stages on this machine: one process for each worker; a task runs again if its worker died."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..._base.workers import cores, retrying_map


class LocalRunner:
    """Runs tasks in processes of this machine.

    >>> list(LocalRunner(workers=1).map(abs, [-2, 3]))
    [2, 3]
    """

    is_far: bool = False
    workers: int

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or cores()

    def map(self, function: Callable[..., Any], items: Sequence[Any]) -> Iterator[Any]:
        """function(item) for each item, in order."""
        return retrying_map(function, items, self.workers)
