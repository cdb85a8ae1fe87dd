"""The account of a release: its profile, the contributors that k counted, the hits after each step, and notes.

ReleaseStep names the steps that cost hits. A ReleasedTrace is a Trace that knows its account, which `publish` passes to
the audit; a Numbered is one in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .._base.results import Result, columns_of
from ..trace.columns import Columns
from ..trace.hits import Hits
from ..trace.meta import Claims, ReleaseSection
from ..trace.trace import Trace
from .contributors import SINGULAR, Contributors
from .release_options import Profile
from .trace_draft import TraceDraft


class ReleaseStep(StrEnum):
    """One step of a release; its value is its key in code.

    >>> ReleaseStep.K_SHARING, ReleaseStep("tails_unique").label
    (<ReleaseStep.K_SHARING: 'k_sharing'>, 'tails unique')
    """

    ORIGINAL = "original"  # before all steps
    CHAINED = "chained"
    SAMPLED = "sampled"
    ALIKE = "alike"
    TAILS_UNIQUE = "tails_unique"
    TAILS_DROPPED = "tails_dropped"
    TENANTS_ISOLATED = "tenants_isolated"
    K_SHARING = "k_sharing"
    RESAMPLED = "resampled"

    @property
    def label(self) -> str:
        """The words for tables."""
        return LABELS[self]


LABELS = {
    ReleaseStep.ORIGINAL: "original",
    ReleaseStep.CHAINED: "chained",
    ReleaseStep.SAMPLED: "sampled",
    ReleaseStep.ALIKE: "lengths alike",
    ReleaseStep.TAILS_UNIQUE: "tails unique",
    ReleaseStep.TAILS_DROPPED: "tails dropped",
    ReleaseStep.TENANTS_ISOLATED: "tenants isolated",
    ReleaseStep.K_SHARING: "k-sharing",
    ReleaseStep.RESAMPLED: "resampled",
}
TAIL_STEPS = {"unique": ReleaseStep.TAILS_UNIQUE, "dropped": ReleaseStep.TAILS_DROPPED}  # tail -> step


@dataclass(frozen=True)
class StepHits:
    """One step of a release, and the hits of a cache that never evicts after it."""

    step: ReleaseStep
    hits: Hits


@dataclass
class Account:
    """The record of a release: its profile, the counted contributors, the cost of each step, and notes."""

    profile: Profile
    contributors: Contributors | None = None  # None if nothing was split
    steps: list[StepHits] = field(default_factory=list)
    sampled: bool = False
    isolated: bool = False
    resampled: str | None = None  # the kind of contributors of drawn rows; none of the new rows has one
    notes: list[str] = field(default_factory=list)  # columns left out, weak substitutes for users

    def describe(self) -> ReleaseSection:
        """The section `release` of a sidecar: settings only.

        The hits after each step are printed and never written: they count rows and blocks that are not released, and
        their difference would tell whether a guessed document is among them.
        """
        return {
            "settings": self.profile.settings(),
            "k_counted": self.counted,
            "sampled": self.is_sample,
            "tenants_isolated": self.isolated,
        }

    @property
    def counted(self) -> str | None:
        """The kind of contributors that k counted."""
        return self.resampled if self.contributors is None else self.contributors.kind

    @property
    def is_sample(self) -> bool:
        """Whether the released rows say nothing about the number of rows of the whole."""
        return self.sampled or self.profile.is_sample

    def record(self, step: ReleaseStep, draft: TraceDraft) -> None:
        """Add a step with the hits after it."""
        self.steps.append(StepHits(step, draft.hits()))

    def note_contributors(self, unknown: int, requests: int) -> None:
        """Add notes if the contributors are a weak substitute for accounts, or `unknown` of the requests have none."""
        if self.contributors is not None and self.contributors.warning:
            self.notes.append(f"{self.contributors.warning}.")
        if self.contributors is not None and unknown:
            name, k = SINGULAR[self.contributors.kind], self.profile.k
            self.notes.append(
                f"requests that name no {name}: {unknown:,} of {requests:,}. k counts them for nobody, and they share "
                f"only blocks that {k:,} or more {name}s have."
            )

    def note_dropped_links(self, linked: bool) -> None:
        """Add a note if the profile drops the links of requests that had some."""
        if linked and self.profile.drop_sessions:
            self.notes.append("sessions and turns were left out, so rows do not name their conversation.")

    def drop_costs(self) -> None:
        """Leave out steps and notes, for a log of lengths: its requests share no blocks, so hits mean nothing."""
        self.steps, self.notes = [], []

    @property
    def meta(self) -> Claims:
        """The keys of a sidecar that declare a profile."""
        return {"profile": self.profile.name, "release": self.describe()}


class ReleasedTrace(Trace):
    """A Trace as `release` and `anonymize` return it. Parts and conversions of it are plain Traces."""

    account: Account | None = None  # in memory only: contributors are never written

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickle: all but the account."""
        return {name: value for name, value in vars(self).items() if name != "account"}


@dataclass(repr=False)
class Numbered(Result):
    """A released trace in pieces, from tasks or from memory, and its sidecar's values."""

    block_size: int
    tail: str
    meta: dict[str, Any]
    figures: Mapping[str, Any]
    account: Account
    columns: Callable[[], Iterator[Columns]]  # some rows at a time; ids and parents are those of the whole trace
    contributors: Callable[[], Contributors | None]  # the contributor of each request; None if none were counted
    bytes: dict[str, int] = field(default_factory=dict)  # stage -> bytes written

    def _headline(self) -> str:
        figures = self.figures
        size = (
            f"{figures['requests']:,} requests, {figures['blocks']:,} blocks, {figures['distinct_blocks']:,} distinct"
        )
        return f"{self.account.profile.name}, {size}, block_size={self.block_size:,}, tail={self.tail}"

    def _columns(self) -> dict[str, list[Any]]:
        """One row: the figures that a sidecar states."""
        return columns_of([{"block_size": self.block_size, "tail": self.tail, **self.figures}])

    @classmethod
    def of_rows(cls, rows: Columns, *, figures: Mapping[str, Any], account: Account, **settings: Any) -> Numbered:
        """Rows that one process released; `settings` are block_size, tail and meta."""
        counted = account.contributors
        return cls(
            figures=figures, account=account, columns=lambda: iter([rows]), contributors=lambda: counted, **settings
        )
