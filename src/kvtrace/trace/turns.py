"""The turns of conversations: the row of the turn before each request, and its number."""

from __future__ import annotations

import numpy as np


def previous_turn(session: np.ndarray) -> np.ndarray:
    """The row of the previous request of the same session, -1 = none; requests without a session (-1) have none.

    >>> previous_turn(np.array([0, -1, 0, 1, -1]))
    array([-1, -1,  0, -1, -1])
    """
    order = np.argsort(session, kind="stable")
    parent = np.full(len(session), -1, dtype=np.int64)
    continues = (session[order][1:] == session[order][:-1]) & (session[order][1:] >= 0)
    parent[order[1:][continues]] = order[:-1][continues]
    return parent


def turn_numbers(session: np.ndarray) -> np.ndarray:
    """The number of each request within its session, from 1; 1 for requests without a session (-1).

    >>> turn_numbers(np.array([0, -1, 0, 1, -1]))
    array([1, 1, 2, 1, 1])
    """
    order = np.argsort(session, kind="stable")
    place, ordered = np.arange(len(session)), session[order]
    first = np.ones(len(session), dtype=bool)
    first[1:] = ordered[1:] != ordered[:-1]
    turn = np.empty(len(session), dtype=np.int64)
    turn[order] = place - np.maximum.accumulate(np.where(first, place, 0)) + 1
    return np.where(session < 0, 1, turn)
