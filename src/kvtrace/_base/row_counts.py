"""What happened to the rows of a log, in numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Counts:
    """What happened to the rows of a log: rows = requests + filtered + rejected.

    A row that holds several requests, a whole conversation say, counts as so many.
    """

    rows: int = 0
    requests: int = 0
    filtered: int = 0  # left out: empty prompts, and rows that are no requests
    rejected: int = 0
    others: int = 0  # of those filtered, the ones that are no requests
    lengths_only: int = 0  # requests of which the log holds lengths only: what they share is not known
    unsampled: int = 0  # requests that a sample of the sessions left out, after all were read
    cut: int = 0  # requests whose text the logger cut, taken because --allow-truncated said so
    with_logged_tokens: int = 0  # requests whose log says how many tokens the prompt has
    equal_to_logged: int = 0  # ... and where our count is the same
    logged_difference: int = 0  # sum of |ours - logged| over them
    without_output_blocks: int = 0  # with --outputs: the log has no text, or counts other tokens than it has
    reasons: Counter = field(default_factory=Counter)  # why rows were rejected

    @property
    def unknown(self) -> dict[str, str]:
        """What a sidecar says of what the log does not show."""
        if not self.lengths_only:
            return {}
        return {"prefixes": "unknown: the log holds lengths only, so no block is shared"}

    def to_dict(self) -> dict[str, Any]:
        """The counts by name."""
        return {name: value for name, value in asdict(self).items() if name != "reasons"}
