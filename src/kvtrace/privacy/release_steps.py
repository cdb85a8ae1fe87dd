"""The steps of a release that cost hits: an identifier for code and JSON, a label for people."""

from __future__ import annotations

from enum import StrEnum


class ReleaseStep(StrEnum):
    """One step of a release; its value is the key in a sidecar.

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
STEPS_BEFORE_SAMPLING = (ReleaseStep.ORIGINAL, ReleaseStep.CHAINED)
TAIL_STEPS = {"unique": ReleaseStep.TAILS_UNIQUE, "dropped": ReleaseStep.TAILS_DROPPED}  # tail -> step


def label_of(step: str) -> str:
    """The label of a step in a sidecar; an unknown one is its own label.

    >>> label_of("tails_dropped"), label_of("later step")
    ('tails dropped', 'later step')
    """
    return ReleaseStep(step).label if step in list(ReleaseStep) else step
