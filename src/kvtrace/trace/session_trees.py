"""Session trees: requests of one session, and requests that wait for each other, belong together."""

from __future__ import annotations

import numpy as np

from .columns import Columns
from .normalise import by_first_appearance


def session_trees(columns: Columns) -> np.ndarray:
    """request -> the number of its tree, by first appearance: int64.

    A tree is closed: its requests share no session, and no dependency, with those of another tree.

    >>> from kvtrace.trace.building import toy
    >>> from kvtrace.trace.columns import replace_columns
    >>> from kvtrace.trace.dependencies import Dependencies
    >>> waits = Dependencies.of([[], [], [(0, "completion", "sequence", 5.0)]])
    >>> session_trees(replace_columns(toy("0", "1", "2"), dependencies=waits))
    array([0, 1, 0])
    """
    root = np.arange(len(columns))  # request -> an earlier request of its tree, or itself
    if columns.session is not None and len(columns):
        inside = np.flatnonzero(columns.session >= 0)
        number = by_first_appearance(columns.session[inside])
        first = np.empty(int(number.max(initial=-1)) + 1, dtype=np.int64)
        first[number[::-1]] = inside[::-1]  # the first row of each session is written last
        root[inside] = first[number]
    if columns.dependencies is not None:
        one, other = columns.dependencies.request, columns.dependencies.row
        while True:
            while not np.array_equal(root, root[root]):  # doubles its reach in each round
                root = root[root]
            apart = root[one] != root[other]
            if not apart.any():
                break
            one, other = one[apart], other[apart]
            np.minimum.at(root, np.maximum(root[one], root[other]), np.minimum(root[one], root[other]))
    return by_first_appearance(root)
