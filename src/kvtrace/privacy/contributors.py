"""The contributors to blocks: the users of a trace, or their best substitute if the log has no users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..trace.columns import Columns

WARNINGS = {
    "users": None,
    "sessions": "k counts sessions because the log has no users: a user with several sessions counts several times",
    "inferred": (
        "k counts conversations inferred from the blocks because the log has neither users nor sessions: two users "
        "whose requests look like one conversation count once, and blocks that only they share are not split"
    ),
    "requests": None,
}


@dataclass(frozen=True, eq=False)
class Contributors:
    """The contributor of each request, numbered from 0, and their kind: users, sessions, inferred or requests."""

    contributor: np.ndarray  # request -> contributor, int64
    kind: str

    @property
    def warning(self) -> str | None:
        """How this kind is weaker than users, in words; None if it is not."""
        return WARNINGS[self.kind]


def contributors(
    rows: Columns, users: np.ndarray | None = None, counts: str = "auto", *, infer: Callable[[], np.ndarray]
) -> Contributors:
    """The contributors that k counts: `users` (request -> user, -1 = unknown) if given, else sessions, else inferred.

    A request without a user counts for its session, and one without a session for itself. `infer` gives the
    conversation of each request, and is called if there are neither users nor sessions.

    >>> from kvtrace.trace.building import toy
    >>> contributors(toy("0", "1"), np.array([5, -1]), infer=lambda: np.arange(2))
    Contributors(contributor=array([5, 6]), kind='users')
    """
    if counts == "requests":
        return Contributors(np.arange(len(rows)), "requests")
    sessions = np.full(len(rows), -1) if rows.session is None else rows.session
    if counts in ("auto", "users") and users is not None and (users >= 0).any():
        return Contributors(_numbered(users, sessions), "users")
    if (sessions >= 0).any():
        return Contributors(_numbered(sessions), "sessions")
    return Contributors(infer(), "inferred")


def _numbered(*choices):
    """For each request the first known value of the choices, in distinct ranges; unknown requests get new numbers."""
    numbers, next_number = np.full(len(choices[0]), -1, dtype=np.int64), 0
    for values in choices:
        fresh = (numbers < 0) & (values >= 0)
        numbers[fresh] = values[fresh] + next_number
        next_number = max(next_number, int(numbers.max(initial=-1)) + 1)
    unknown = np.flatnonzero(numbers < 0)
    numbers[unknown] = next_number + np.arange(len(unknown))
    return numbers
