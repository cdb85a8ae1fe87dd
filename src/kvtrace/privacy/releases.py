"""Release a trace: apply the steps of a profile in order and measure what each costs in hits."""

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
from .release_steps import TAIL_STEPS, ReleaseStep
from .steps import coarsened, with_tail

ISOLATE_K = 2**31 - 1  # a k above any number of contributors: splits all shared blocks


@dataclass(frozen=True)
class StepHits:
    """One step of a release, and the hits of a cache that never evicts after it."""

    step: ReleaseStep
    hits: Hits

    def to_dict(self, *, counts: bool = True) -> dict[str, Any]:
        """Step and block hit rate; with `counts`, also hit blocks and blocks."""
        counted = {"hit_blocks": self.hits.hit_blocks, "blocks": self.hits.blocks} if counts else {}
        return {"step": self.step.value, **counted, "block_hit_rate": self.hits.block_hit_rate}


@dataclass
class Account:
    """The record of a release: its profile, the counted contributors, the cost of each step, and notes."""

    profile: Profile
    contributors: Contributors | None = None  # None if nothing was split
    steps: list[StepHits] = field(default_factory=list)
    sampled: bool = False
    isolated: bool = False
    notes: list[str] = field(default_factory=list)  # columns left out, weak substitutes for users

    def describe(self) -> dict[str, Any]:
        """The section `release` of a sidecar. It does not reveal the share of a sample."""
        return {
            "settings": self.profile.settings(),
            "k_counted": None if self.contributors is None else self.contributors.kind,
            "sampled": self.sampled,
            "tenants_isolated": self.isolated,
            "costs": [step.to_dict(counts=not self.sampled) for step in self.steps],  # counts would reveal the share
        }

    @property
    def meta(self) -> dict[str, Any]:
        """The keys of a sidecar that declare a profile."""
        return {"profile": self.profile.name, "release": self.describe()}


@dataclass
class Released(Account):
    """A released trace, and the record of its release."""

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
    >>> done.trace.hash_ids, [step.step.value for step in done.steps]
    (array([0, 1, 0, 2, 0, 3]), ['original', 'tails_unique', 'k_sharing'])
    """
    done = Released(profile, trace=trace)
    _record(done, ReleaseStep.ORIGINAL, trace)
    if not trace.is_chained and profile.coarsens:
        _record(done, ReleaseStep.CHAINED, trace.chained())
    if session_share != 1:
        rows = np.flatnonzero(drawn(done.trace, users, session_share, rng, lambda: inferred(done.trace.chained())))
        users = None if users is None else users[rows]
        done.sampled = True
        _record(done, ReleaseStep.SAMPLED, done.trace[rows])
    if (changed := with_tail(done.trace, profile.tail)) is not done.trace:
        _record(done, TAIL_STEPS[changed.tail], changed)
    if isolate:
        if users is None:
            raise UsageError("--isolate-tenants needs --users FILE, one user a line for each row.")
        done.isolated, done.contributors = True, contributors(done.trace, users)
        isolated, _ = share_by_k(done.trace, ISOLATE_K, lambda trace: contributors(trace, users))
        _record(done, ReleaseStep.TENANTS_ISOLATED, isolated)
    if profile.k > 1:
        shared, done.contributors = share_by_k(
            done.trace, profile.k, lambda trace: contributors(trace, users, profile.k_counts)
        )
        _record(done, ReleaseStep.K_SHARING, shared)
    _coarsen(done, profile)
    if done.contributors is not None and done.contributors.warning:
        done.notes.append(f"{done.contributors.warning}.")
    return done


def _coarsen(done: Released, profile: Profile) -> None:
    """Apply the steps that cost no hits: lengths, times, links, fields."""
    if done.trace.output_ids is not None and (profile.round_input, profile.round_output) != ("exact", "exact"):
        done.notes.append("blocks of outputs were left out: they would reveal the exact lengths.")
    trace = done.trace
    columns, left = coarsened(trace, profile, trace.block_size, trace.tail)
    if columns is not trace:
        done.trace = Trace.from_columns(columns, block_size=trace.block_size, tail=trace.tail, meta=trace.meta)
    done.notes += left_out(left)


def _record(done: Released, step: ReleaseStep, trace: Trace) -> None:
    done.trace = trace
    done.steps.append(StepHits(step, count_hits(trace, unlimited_hits(trace))))


def left_out(columns: Sequence[str]) -> list[str]:
    """A note on the extra columns that a release leaves out, if there are any."""
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
    """Whether each request is in a sample of whole sessions, else of whole users, else of inferred conversations.

    UsageError for an invalid share or an empty sample.
    """
    if not 0 < share <= 1:
        raise UsageError(f"--sample-sessions must be above 0 and at most 1, not {share:g}.")
    if trace.session is not None and (trace.session >= 0).any():
        unit = contributors(trace, counts="sessions").contributor
    else:
        unit = infer() if users is None else contributors(trace, users).contributor
    rng = rng or np.random.default_rng()
    taken = (rng.random(int(unit.max(initial=-1)) + 1) < share)[unit]
    if not taken.any():
        raise UsageError(f"the sample contains none of the {len(trace):,} requests. Use a larger share.")
    return taken
