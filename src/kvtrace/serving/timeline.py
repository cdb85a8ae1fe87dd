"""The state of an engine over time: requests that run and wait, and the blocks that they hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Timeline:
    """One row for each change; a row is valid until the time of the next one. Before the first row all counts are 0."""

    seconds: np.ndarray
    running: np.ndarray  # requests that the scheduler has admitted
    waiting: np.ndarray  # requests that have arrived, or were preempted, and wait
    blocks: np.ndarray  # that requests hold; of `ReserveScheduler`, that are reserved for them

    @classmethod
    def of(cls, rows: list[tuple[float, int, int, int]]) -> Timeline:
        """A time line of the rows that an instance kept; of rows at the same time, the last one counts."""
        seconds = np.array([row[0] for row in rows], dtype=np.float64)
        counts = np.array([row[1:] for row in rows], dtype=np.int64).reshape(-1, 3)
        last = np.append(seconds[1:] > seconds[:-1], True)[: len(seconds)]
        return cls(seconds[last], *counts[last].T)

    def at(self, moments: np.ndarray) -> Timeline:
        """The state at other moments, in seconds.

        >>> line = Timeline.of([(0.0, 1, 0, 2), (2.0, 1, 1, 3)])
        >>> line.at(np.array([-1.0, 1.0, 2.0])).blocks.tolist()
        [0, 2, 3]
        """
        place = np.searchsorted(self.seconds, moments, "right")
        columns = (np.append(0, column)[place] for column in (self.running, self.waiting, self.blocks))
        return Timeline(np.asarray(moments, dtype=np.float64), *columns)
