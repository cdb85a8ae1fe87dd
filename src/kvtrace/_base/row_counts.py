"""The record of a log's rows (taken, filtered, rejected), as `ingest/row_counts.py` counts them, and the rejects file.

The rejects file has the place of each bad row and the reason, one JSON object a line; never its content.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

from .errors import RowError
from .output_files import Role, write_atomically

# not in a sidecar: of values that stay in the house, or not numbers
UNSTATED = (
    "reasons",
    "firsts",
    "failed",
    "other_calls",
    "not_rendered",
    "unsized_media",
    "invalid_measured",
    "lowered_cached",
    "with_cached",
    "without_hit",
)


ROUNDED = "up to two digits"


@dataclass
class RowCounts:
    """Counts of the rows of a log: rows = requests + filtered + rejected.

    A row with several requests, such as a whole conversation, counts once for each.
    """

    rows: int = 0
    requests: int = 0
    filtered: int = 0  # left out: empty prompts, and rows that are not requests
    rejected: int = 0
    others: int = 0  # filtered rows that are not requests
    failed: int = 0  # ... because the call failed
    other_calls: int = 0  # ... because it generates no text, such as an embedding
    lengths_only: int = 0  # requests with lengths only: their shared prefixes are unknown
    unsampled: int = 0  # requests that are not in the sample of sessions
    not_rendered: Counter[str] = field(default_factory=Counter)  # field -> requests that have it, and not in the prompt
    unsized_media: int = 0  # images, sounds and videos whose number of placeholder tokens is not known
    cut: int = 0  # requests with truncated text, taken because of --allow-truncated
    with_logged_tokens: int = 0  # requests with a logged number of prompt tokens
    equal_to_logged: int = 0  # ... equal to our count
    logged_difference: int = 0  # sum of |our count - logged|
    without_output: int = 0  # requests without an answer in the log: the length of their output is unknown
    without_output_blocks: int = 0  # with --outputs: the log has no text, or a number of tokens that does not fit it
    reasons: Counter[str] = field(default_factory=Counter)  # reason -> rejected rows
    firsts: dict[str, str] = field(default_factory=dict)  # reason -> the error of its first row, with place and hint
    invalid_measured: int = 0  # measured values that are not valid, and count as unknown
    lowered_cached: int = 0  # counts of cached tokens above our length of the prompt, lowered to it
    with_cached: int = 0  # requests with a count of cached tokens
    without_hit: int = 0  # ... that is 0

    @property
    def left_out(self) -> dict[str, int]:
        """The filtered rows, in words -> how many; without kinds that the log does not have.

        >>> RowCounts(filtered=6, others=5, failed=4, other_calls=1).left_out
        {'failed upstream': 4, 'not a generation, such as an embedding': 1, 'with an empty prompt': 1}
        """
        kinds = {
            "failed upstream": self.failed,
            "not a generation, such as an embedding": self.other_calls,
            "not a request": self.others - self.failed - self.other_calls,
            "with an empty prompt": self.filtered - self.others,
        }
        return {words: count for words, count in kinds.items() if count}

    def to_dict(self) -> dict[str, int | str]:
        """The counts by name, for a sidecar: rounded up to two digits, since they count rows that are not released.

        It says so beside them: 20,000 rows beside 19,366 requests look like a loss.

        >>> counts = RowCounts(rows=12_345, requests=12_338, rejected=7).to_dict()
        >>> counts["rows"], counts["requests"], counts["rejected"], counts["cut"], counts["rounded"]
        (13000, 13000, 10, 0, 'up to two digits')
        """
        return {"rounded": ROUNDED} | {
            name: rounded(value) for name, value in asdict(self).items() if name not in UNSTATED
        }


def rounded(count: int) -> int:
    """A count, rounded up to two digits; 1 to 9 are 10.

    >>> rounded(0), rounded(7), rounded(120), rounded(1_201)
    (0, 10, 120, 1300)
    """
    unit = 10 ** max(0, len(str(count)) - 2)
    return max(-(-count // unit) * unit, 10 if count else 0)


class RejectsFile:
    """Collects rejects in a temporary file, which gets its name when the run ends, also after a failure."""

    def __init__(self, path: str | Path | None):
        self._output: AbstractContextManager[BinaryIO] | None = (
            None if path is None else write_atomically(path, Role.ASIDE)
        )
        self._stream: BinaryIO | None = None

    def __enter__(self) -> RejectsFile:
        if self._output is not None:
            self._stream = self._output.__enter__()
        return self

    def add(self, error: RowError) -> None:
        """Add one bad row."""
        if self._stream is not None:
            row = {name: getattr(error, name) for name in ("path", "line", "offset", "length", "field", "reason")}
            self._stream.write(json.dumps(row).encode() + b"\n")

    def __exit__(self, *_):
        if self._output is not None:
            self._output.__exit__(None, None, None)  # also after a failure: the rejects may explain it
