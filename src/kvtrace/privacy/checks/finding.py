"""The result of one check (Finding) and of all checks (Audit): a level, a figure, a sentence and a remedy each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ..._base.results import Described, DescribedResult, Result, column, columns_of, headed, html_table
from ..release_options import Profile

PEOPLE = ("accounts", "users", "client_users")  # contributors that no trace shows
LEVELS = ("PASS", "WARN", "FAIL")  # from good to bad
SCHEMA = 2


@dataclass(frozen=True, repr=False)
class Finding(DescribedResult):
    """The result of one check. Figure, sentence and remedy contain no string, id or name from the trace."""

    name: str = field(default="", kw_only=True)  # of the check: its key in CHECKS
    level: str  # one of LEVELS
    figure: dict[str, Any]  # JSON values
    sentence: str
    remedy: str = ""
    beside: Finding | None = field(default=None, kw_only=True)  # the finding without what files beside the trace add

    _keys = ("name", "level", "figure", "sentence", "remedy")

    def _headline(self) -> str:
        return f"{self.name}, {self.level}: {self.sentence}"

    def _columns(self) -> dict[str, list[Any]]:
        return columns_of([self._row()])

    def _row(self) -> dict[str, Any]:
        """The columns of a table: all but the figures, which differ among checks."""
        return {name: value for name, value in self.to_dict().items() if name != "figure"}


def passed(figure: dict[str, Any], sentence: str) -> Finding:
    """No objection."""
    return Finding("PASS", figure, sentence)


def warned(figure: dict[str, Any], sentence: str, remedy: str = "") -> Finding:
    """A risk that the publisher may accept."""
    return Finding("WARN", figure, sentence, remedy)


def failed(figure: dict[str, Any], sentence: str, remedy: str = "") -> Finding:
    """A violation of the profile."""
    return Finding("FAIL", figure, sentence, remedy)


def not_checked(reason: str, level: str = "FAIL") -> Finding:
    """A check that could not run. It counts as failed, because nothing was verified."""
    remedy = 'Fix the problems listed under "lengths", then run the audit again.'
    return Finding(level, {"checked": False}, f"the check could not run: {reason}.", remedy)


@dataclass(frozen=True)
class GradedProfile(Described):
    """The profile that an audit graded against."""

    name: str
    declared: bool
    settings: dict[str, Any]


@dataclass(frozen=True, repr=False)
class Audit(Described, Result):
    """The findings of all checks, and the profile that they were graded against."""

    _schema = SCHEMA
    _keys = ("_graded", "level", "passed", "publishable", "status", "verdict", "findings")

    profile: Profile
    own: Profile | None  # the profile that the trace declares
    findings: list[Finding]

    def _headline(self) -> str:
        levels = [finding.level for finding in self.findings]
        counts = ", ".join(f"{levels.count(level)} {level}" for level in LEVELS)
        return f"{self.level}, graded as {self.profile.name}, {counts}"

    def _columns(self) -> dict[str, list[Any]]:
        return columns_of(finding._row() for finding in self.findings)

    def _repr_html_(self) -> str:
        columns = self._columns()
        return headed(self, html_table(columns, zip(*columns.values(), strict=True)))

    @property
    def declared(self) -> bool:
        """Whether the trace declares a profile."""
        return self.own is not None

    @property
    def level(self) -> str:
        """The worst level of all findings."""
        return max((finding.level for finding in self.findings), key=LEVELS.index, default="PASS")

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return self.level != "FAIL"

    @property
    def status(self) -> int:
        """The exit status of a command that ends with this audit: 0, or 4 if a check failed."""
        return 0 if self.passed else 4

    @property
    def publishable(self) -> bool:
        """Whether no check failed and the trace declares a profile that coarsens it."""
        profiles = (self.profile, self.own)
        return self.passed and all(
            profile is not None and profile.name != "exact" and profile.coarsens for profile in profiles
        )

    def of_trace(self) -> Audit:
        """The audit without what the files beside the trace add: as its card states it."""
        return replace(self, findings=[finding.beside or finding for finding in self.findings])

    def of_file_alone(self) -> Audit:
        """The audit that `kvtrace audit FILE` prints: it cannot count accounts or users of the log."""
        findings = [
            replace(finding, level="WARN")
            if finding.name == "k_sharing" and finding.level == "PASS" and self.profile.k > 1
            and finding.figure.get("counted") in PEOPLE else finding
            for finding in self.findings
        ]  # fmt: skip
        return replace(self, findings=findings)

    @property
    def verdict(self) -> str:
        """One sentence: whether the trace keeps the promises of its profile, and what to do."""
        count = {level: sum(finding.level == level for finding in self.findings) for level in LEVELS}
        name, warnings = self.profile.name, f"{count['WARN']} warning{'' if count['WARN'] == 1 else 's'}"
        graded = f"graded as {name}" if self.declared else f"graded as {name}, because it declares no profile"
        if not self.passed:
            return f"FAIL: {count['FAIL']} of {len(self.findings)} checks failed ({graded}). Do not publish this file."
        if self.publishable:
            return (
                f"{self.level}: the trace meets the requirements of {name}, with {warnings}. "
                '"not_protected" lists what it still reveals.'
            )
        if not self.declared:
            return f"{self.level}: no check failed ({graded}), with {warnings}. Nothing documents how it was made."
        exact = "the trace" if self.own is not None and not self.own.coarsens else name
        return f"{self.level}: no check failed, but {exact} coarsens nothing. Use it internally; do not publish it."

    @property
    @column(key="profile")
    def _graded(self) -> GradedProfile:
        """The profile in JSON."""
        return GradedProfile(self.profile.name, self.declared, {**self.profile.settings()})
