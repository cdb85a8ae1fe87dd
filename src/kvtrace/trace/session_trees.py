"""Session trees: requests of one session, and requests that wait for each other, belong together."""

from __future__ import annotations

import numpy as np

from .columns import Columns
from .turns import previous_turn


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
    rows = np.arange(len(columns))
    request, row = np.empty(0, np.int64), np.empty(0, np.int64)
    if columns.dependencies is not None:
        request, row = columns.dependencies.request, columns.dependencies.row
    if columns.session is not None:
        before = previous_turn(columns.session)
        request, row = np.concatenate([request, rows[before >= 0]]), np.concatenate([row, before[before >= 0]])
    root = rows.copy()  # request -> a request of its tree, in the end the first
    while len(apart := np.flatnonzero(root[request] != root[row])):
        one, other = root[request[apart]], root[row[apart]]
        np.minimum.at(root, np.maximum(one, other), np.minimum(one, other))
        while not np.array_equal(root, further := root[root]):  # doubles its reach in each round
            root = further
    return np.unique(root, return_inverse=True)[1]
