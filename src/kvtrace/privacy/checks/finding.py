"""What a check finds: a level, a figure and a sentence; and an audit, which is all of them and a verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..profiles import Profile

LEVELS = ("PASS", "WARN", "FAIL")  # each is worse than the one before
SCHEMA = 1


@dataclass(frozen=True)
class Finding:
    """One check's answer; figure, sentence and remedy hold no value of a trace's strings, ids or names."""

    level: str  # one of LEVELS
    figure: dict[str, Any]  # JSON values
    sentence: str
    remedy: str = ""
    number: int = 0
    name: str = ""

    def to_dict(self) -> dict[str, Any]:
        """All fields, number and name first."""
        values = asdict(self)
        return {key: values[key] for key in ("number", "name", "level", "figure", "sentence", "remedy")}


def passed(figure: dict[str, Any], sentence: str) -> Finding:
    """Nothing to object to."""
    return Finding("PASS", figure, sentence)


def warned(figure: dict[str, Any], sentence: str, remedy: str = "") -> Finding:
    """Something that a publisher has to know and may accept."""
    return Finding("WARN", figure, sentence, remedy)


def failed(figure: dict[str, Any], sentence: str, remedy: str = "") -> Finding:
    """Something that the profile rules out."""
    return Finding("FAIL", figure, sentence, remedy)


def not_made(why: str, level: str = "FAIL") -> Finding:
    """A check that could not be made: what nobody looked at has not passed."""
    return Finding(level, {"made": False}, f"could not be made: {why}.", "Mend what check 11 names, and audit again.")


@dataclass(frozen=True)
class Audit:
    """The findings of an audit, and what they were graded against."""

    profile: Profile
    own: Profile | None  # what the trace declares
    findings: list[Finding]

    @property
    def declared(self) -> bool:
        """Whether the trace declares a profile of its own."""
        return self.own is not None

    @property
    def level(self) -> str:
        """The worst of all levels."""
        return max((finding.level for finding in self.findings), key=LEVELS.index, default="PASS")

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return self.level != "FAIL"

    @property
    def status(self) -> int:
        """The exit status of a command that ends with this audit: 0, or 4 where a check failed."""
        return 0 if self.passed else 4

    @property
    def publishable(self) -> bool:
        """Whether no check failed and the trace declares a profile that coarsens it."""
        graded = (self.profile, self.own)
        return self.passed and all(one is not None and one.name != "exact" and one.coarsens for one in graded)

    @property
    def verdict(self) -> str:
        """One sentence: whether the trace holds what its profile promises."""
        count = {level: sum(finding.level == level for finding in self.findings) for level in LEVELS}
        name, warnings = self.profile.name, f"{count['WARN']} warning{'' if count['WARN'] == 1 else 's'}"
        how = f"as {name}" if self.declared else f"as {name}, for it declares no profile"
        if not self.passed:
            return (
                f"FAIL: {count['FAIL']} of {len(self.findings)} checks failed (graded {how}). Do not publish this file."
            )
        if self.publishable:
            return (
                f"{self.level}: the trace holds what {name} promises, with {warnings}; check 15 says what it does not."
            )
        if not self.declared:
            return f"{self.level}: no check failed (graded {how}), with {warnings}; nobody says how it was made."
        exact = "the trace" if self.own is not None and not self.own.coarsens else name
        return f"{self.level}: no check failed, but {exact} coarsens nothing: for use inside the house, not to publish."

    def to_dict(self) -> dict[str, Any]:
        """JSON values: what was graded against, each finding, and the verdict."""
        return {
            "schema": SCHEMA,
            "profile": {"name": self.profile.name, "declared": self.declared, "settings": self.profile.settings()},
            "level": self.level,
            "passed": self.passed,
            "publishable": self.publishable,
            "status": self.status,
            "verdict": self.verdict,
            "findings": [finding.to_dict() for finding in self.findings],
        }
