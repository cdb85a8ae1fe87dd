"""The steps of a release that cost hits: an identifier for code, a label for people."""

from __future__ import annotations

from enum import StrEnum


class ReleaseStep(StrEnum):
    """One step of a release; its value is its key in code.

    >>> ReleaseStep.K_SHARING, ReleaseStep("tails_unique").label
    (<ReleaseStep.K_SHARING: 'k_sharing'>, 'tails unique')
    """

    ORIGINAL = "original"  # before all steps
    CHAINED = "chained"
    SAMPLED = "sampled"
    TAILS_UNIQUE = "tails_unique"
    TAILS_DROPPED = "tails_dropped"
    TENANTS_ISOLATED = "tenants_isolated"
    K_SHARING = "k_sharing"

    @property
    def label(self) -> str:
        """The words for tables."""
        return LABELS[self]


LABELS = {
    ReleaseStep.ORIGINAL: "original",
    ReleaseStep.CHAINED: "chained",
    ReleaseStep.SAMPLED: "sampled",
    ReleaseStep.TAILS_UNIQUE: "tails unique",
    ReleaseStep.TAILS_DROPPED: "tails dropped",
    ReleaseStep.TENANTS_ISOLATED: "tenants isolated",
    ReleaseStep.K_SHARING: "k-sharing",
}
TAIL_STEPS = {"unique": ReleaseStep.TAILS_UNIQUE, "dropped": ReleaseStep.TAILS_DROPPED}  # tail -> step
