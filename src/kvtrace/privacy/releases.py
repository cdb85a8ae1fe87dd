"""Releasing a trace: the steps of its profile, one after the other, and what each costs in hits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._base.errors import UsageError
from ..trace.hits import Hits, count_hits, unlimited_hits
from ..trace.trace import Trace
from .contributors import Contributors, contributors, inferred
from .k_sharing import share_by_k
from .profiles import Profile
from .steps import coarsened, with_tail

APART = 2**31 - 1  # a k that no number of contributors reaches: everything is split


@dataclass(frozen=True)
class Step:
    """One step of a release, and the hits of a cache that never evicts after it."""

    name: str
    hits: Hits

    def to_dict(self, *, counts: bool = True) -> dict[str, Any]:
        """Name and block hit rate; with `counts`, hit blocks and blocks, too."""
        counted = {"hit_blocks": self.hits.hit_blocks, "blocks": self.hits.blocks} if counts else {}
        return {"step": self.name, **counted, "block_hit_rate": self.hits.block_hit_rate}


@dataclass
class Account:
    """What a release did: its profile, who was counted, what each step cost, and what there is to say."""

    profile: Profile
    contributors: Contributors | None = None  # None where nothing was split
    steps: list[Step] = field(default_factory=list)
    sampled: bool = False
    isolated: bool = False
    notes: list[str] = field(default_factory=list)  # what was left out, what is weaker than it could be

    def describe(self) -> dict[str, Any]:
        """What a sidecar says: settings, who was counted, and the costs; not how large a sample was taken."""
        return {
            "settings": self.profile.settings(),
            "k_counted": None if self.contributors is None else self.contributors.kind,
            "sampled": self.sampled,
            "tenants_isolated": self.isolated,
            "costs": [step.to_dict(counts=not self.sampled) for step in self.steps],  # of a sample's whole: no counts
        }

    @property
    def meta(self) -> dict[str, Any]:
        """The two keys of a sidecar that declare a profile."""
        return {"profile": self.profile.name, "release": self.describe()}


@dataclass
class Released(Account):
    """A trace that was released, and what was done to it."""

    trace: Trace = field(kw_only=True)


def release(
    trace: Trace,
    profile: Profile,
    *,
    users: np.ndarray | None = None,
    session_share: float = 1.0,
    isolate: bool = False,
    rng: np.random.Generator | None = None,
) -> Released:
    """Coarsen a trace as its release profile says.

    Args:
        trace: The trace.
        profile: A profile, from `profile(name)` or PROFILES.
        users: Request -> number of its user or tenant, -1 = unknown; k counts users where they are given.
        session_share: Share of the sessions (or users, or inferred conversations) to release: above 0, at most 1.
        isolate: Users share no block; needs `users`.
        rng: Randomness of the draw; the default is fresh.

    Returns:
        The released trace, its steps, and the hits after each.

    Raises:
        UsageError: The share is out of range, no request is left, or `isolate` is given without `users`.

    >>> from kvtrace.trace.building import toy
    >>> from kvtrace.privacy.profiles import PROFILES
    >>> done = release(toy("0 1", "0 1", "0 2"), PROFILES["standard"], users=np.array([0, 1, 2]))
    >>> done.trace.hash_ids, [step.name for step in done.steps]
    (array([0, 1, 0, 2, 0, 3]), ['as it was', 'tails unique', 'k-sharing'])
    """
    done = Released(profile, trace=trace)
    _note(done, "as it was", trace)
    if not trace.is_chained and profile.coarsens:
        _note(done, "chained", trace.chained())
    if session_share != 1:
        rows = np.flatnonzero(drawn(done.trace, users, session_share, rng, lambda: inferred(done.trace.chained())))
        users = None if users is None else users[rows]
        done.sampled = True
        _note(done, "sampled", done.trace[rows])
    if (tailed := with_tail(done.trace, profile.tail)) is not done.trace:
        _note(done, f"tails {tailed.tail}", tailed)
    if isolate:
        if users is None:
            raise UsageError("tenants can't be kept apart without knowing them. Try --users FILE.")
        done.isolated, done.contributors = True, contributors(done.trace, users)
        _note(done, "tenants apart", share_by_k(done.trace, APART, lambda part: contributors(part, users))[0])
    if profile.k > 1:
        shared, done.contributors = share_by_k(
            done.trace, profile.k, lambda part: contributors(part, users, profile.k_counts)
        )
        _note(done, "k-sharing", shared)
    _coarsen(done, profile)
    if done.contributors is not None and done.contributors.warning:
        done.notes.append(f"{done.contributors.warning}.")
    return done


def _coarsen(done: Released, profile: Profile) -> None:
    """What costs no hits: lengths, times, links, fields."""
    if done.trace.output_ids is not None and (profile.round_input, profile.round_output) != ("exact", "exact"):
        done.notes.append("blocks of outputs were left out: they would show the lengths that are rounded.")
    whole = done.trace
    columns, left = coarsened(whole, profile, whole.block_size, whole.tail)
    if columns is not whole:
        done.trace = Trace.from_columns(columns, block_size=whole.block_size, tail=whole.tail, meta=whole.meta)
    done.notes += left_out(left)


def _note(done: Released, name: str, trace: Trace) -> None:
    done.trace = trace
    done.steps.append(Step(name, count_hits(trace, unlimited_hits(trace))))


def left_out(columns: Sequence[str]) -> list[str]:
    """What there is to say of extra columns that a release leaves out."""
    if not columns:
        return []
    return [f"{len(columns)} extra {'columns were' if len(columns) > 1 else 'column was'} left out."]


def drawn(
    trace: Trace,
    users: np.ndarray | None,
    share: float,
    rng: np.random.Generator | None,
    infer: Callable[[], np.ndarray],
) -> np.ndarray:
    """Whether each request is drawn: those of whole sessions, of whole users where there are none, else as inferred.

    UsageError for a share that is none, or a sample that holds nothing.
    """
    if not 0 < share <= 1:
        raise UsageError(f"the share of sessions is {share:g}; it is more than 0 and at most 1.")
    if trace.session is not None and (trace.session >= 0).any():
        unit = contributors(trace, counts="sessions").contributor
    else:
        unit = infer() if users is None else contributors(trace, users).contributor
    rng = rng or np.random.default_rng()
    taken = (rng.random(int(unit.max(initial=-1)) + 1) < share)[unit]
    if not taken.any():
        raise UsageError(f"the sample holds none of the {len(trace):,} requests. Try a larger share.")
    return taken
