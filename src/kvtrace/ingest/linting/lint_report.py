"""The result of `kvtrace lint`: counts, positions and kinds, without a character of the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..._base.results import Result, columns_of
from .kinds import KINDS, LOST_HISTORY, REMEDIES


@dataclass(frozen=True)
class LintFinding:
    """A place where prompts diverge that nearly agree, and what it costs."""

    kind: str  # a key of KINDS
    form: str  # a key of REMEDIES
    role: str  # of the message: system, user, ..., template, or prompt if roles are unknown
    message: int  # from 0; -1 before the first; the median where it varies
    token: int  # of the prompt, from 0: the median
    message_token: int  # of the message, from 0: the median
    first_token: int
    last_token: int
    block: int  # of the token
    requests: int  # that diverge there
    values: int  # different values there; 0 = not counted
    tokens: int  # prompt tokens that would hit without it

    @property
    def sentence(self) -> str:
        """What to change, in words."""
        return REMEDIES[self.form]

    @property
    def where(self) -> str:
        """The position, in words.

        >>> LintFinding("date", "date", "system", 0, 12, 12, 12, 12, 0, 5, 5, 900).where
        'message 1 (system), token 12'
        """
        if self.kind == LOST_HISTORY:
            return f"message {self.message + 1} (median), token {self.token:,}"
        name = f"message {self.message + 1} ({self.role})" if self.message >= 0 else "template"
        if self.role in ("prompt", "template"):
            name = self.role
        return f"{name}, token {self.token:,}"

    def to_dict(self) -> dict[str, Any]:
        """The finding as JSON values."""
        return asdict(self) | {"sentence": self.sentence}


@dataclass(frozen=True, repr=False)
class LintReport(Result):
    """Where the prompts of a log diverge though they nearly agree. It holds positions, kinds and counts, no text.

    >>> LintReport(requests=10, prompt_tokens=1000, hit_tokens=600, block_size=16)
    LintReport(10 requests, no findings)
    """

    requests: int
    prompt_tokens: int
    hit_tokens: int  # in leading blocks of `block_size` tokens that an earlier prompt has, as `anonymize` counts them
    block_size: int
    findings: tuple[LintFinding, ...] = ()  # the most tokens first
    other_requests: int = 0  # that differ before a shared part in no way that is a kind, such as by a question
    other_tokens: int = 0  # shared tokens behind such differences
    skipped: int = 0  # requests without text: token ids, hashes or lengths
    rejected: int = 0  # bad rows
    windows: int = 1  # parts of the log that were compared, each with itself
    settings: Mapping[str, Any] = field(default_factory=dict)  # reader, tokenizer and template

    @property
    def lost_tokens(self) -> int:
        """Prompt tokens that would hit without the findings."""
        return sum(finding.tokens for finding in self.findings)

    @property
    def status(self) -> int:
        """The exit status of `kvtrace lint`: 3 with findings, else 0."""
        return 3 if self.findings else 0

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values; docs/ingest/lint.md lists the keys."""
        return {
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "hit_tokens": self.hit_tokens,
            "lost_tokens": self.lost_tokens,
            "block_size": self.block_size,
            "kinds": {
                kind: {
                    "findings": sum(one.kind == kind for one in self.findings),
                    "tokens": sum(one.tokens for one in self.findings if one.kind == kind),
                }
                for kind in KINDS
            },
            "findings": [one.to_dict() | {"share": self.share(one)} for one in self.findings],
            "other": {"requests": self.other_requests, "tokens": self.other_tokens},
            "skipped": self.skipped,
            "rejected": self.rejected,
            "windows": self.windows,
            "settings": dict(self.settings),
        }

    def share(self, finding: LintFinding) -> float:
        """A finding's part of all prompt tokens."""
        return finding.tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def _headline(self) -> str:
        count = len(self.findings)
        found = "no findings" if not count else f"{count} finding{'' if count == 1 else 's'}"
        return f"{self.requests:,} requests, {found}"

    def _columns(self) -> Mapping[str, Any]:
        return columns_of([one.to_dict() | {"share": self.share(one)} for one in self.findings])
