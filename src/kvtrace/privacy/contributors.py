"""Who holds a block: the users of a trace, or what stands in for them where a log does not know its users."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..trace.trace import Trace

WARNINGS = {
    "users": None,
    "sessions": "k counts sessions, for the log names no users: a user with several sessions counts several times",
    "inferred": (
        "k counts conversations inferred from the blocks, for the log names neither users nor sessions: two users "
        "whose requests look like one conversation count once, and what only they share is not split"
    ),
    "requests": None,
}


@dataclass(frozen=True, eq=False)
class Contributors:
    """One contributor of each request, numbered from 0, and what they are: users, sessions, inferred or requests."""

    contributor: np.ndarray  # request -> contributor, int64
    kind: str

    @property
    def warning(self) -> str | None:
        """What is weaker than with users, in words; None where nothing is."""
        return WARNINGS[self.kind]


def contributors(trace: Trace, users: np.ndarray | None = None, counts: str = "auto") -> Contributors:
    """The contributors that k counts: `users` (request -> user, -1 = unknown) if given, else sessions, else inferred.

    A request of no user counts for its session, and one of no session for itself.

    >>> from kvtrace.trace.building import toy
    >>> contributors(toy("0 1", "0 1 2", "0 3")).contributor, contributors(toy("0"), np.array([5])).kind
    (array([0, 0, 1]), 'users')
    """
    if counts == "requests":
        return Contributors(np.arange(len(trace)), "requests")
    if counts in ("auto", "users") and users is not None and (users >= 0).any():
        return Contributors(_numbered(users, _sessions(trace)), "users")
    if trace.session is not None and (trace.session >= 0).any():
        return Contributors(_numbered(_sessions(trace)), "sessions")
    return Contributors(inferred(trace), "inferred")


def inferred(trace: Trace) -> np.ndarray:
    """The conversation of each request as `_kernels.sharing.infer` finds it, from 0 on.

    It asks the blocks alone, so that lengths which were rounded change nothing.
    """
    from .._native import sharing

    return sharing.infer(trace.hash_ids, trace.offsets, trace.tail != "dropped", trace.distinct)


def _sessions(trace):
    return np.full(len(trace), -1) if trace.session is None else trace.session


def _numbered(*choices):
    """The first of the choices that knows each request, numbered anew; a request that none knows is alone."""
    found, after = np.full(len(choices[0]), -1, dtype=np.int64), 0
    for values in choices:
        fresh = (found < 0) & (values >= 0)
        found[fresh] = values[fresh] + after
        after = max(after, int(found.max(initial=-1)) + 1)
    alone = np.flatnonzero(found < 0)
    found[alone] = after + np.arange(len(alone))
    return found
