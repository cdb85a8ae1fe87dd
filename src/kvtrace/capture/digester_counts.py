"""What a digester has done, in numbers that its reports hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from .._base.errors import KvtraceError, RowError
from ..ingest.encoding import Batch


@dataclass
class DigesterCounts:
    """What the digester has done since it started.

    >>> counts = DigesterCounts()
    >>> counts.add_malformed(2, RowError("is not valid JSON.", field="request"))
    >>> counts.malformed, dict(counts.reasons)
    (2, {'request: is not valid JSON.': 2})
    """

    covered: int = 0  # requests of payloads
    requests: int = 0  # requests with digests
    tokens: int = 0
    rejected: int = 0  # rows that could not be read, or whose blocks do not fit
    left_out: int = 0  # rows and payloads that are not requests, and empty prompts
    malformed: int = 0  # requests of payloads that are not valid
    reasons: Counter[str] = field(default_factory=Counter)  # reason -> rejected rows

    def add(self, batch: Batch) -> None:
        """Count the rows of a batch."""
        self.requests += len(batch)
        self.tokens += int(batch.input_length.sum())
        self.rejected += len(batch.rejects)
        self.left_out += batch.empty + batch.others
        self.reasons.update(_reason(reject.error) for reject in batch.rejects)

    def add_malformed(self, requests: int, error: KvtraceError) -> None:
        """Count the requests of a payload that is not valid."""
        self.malformed += requests
        self.reasons[_reason(error)] += requests

    def to_dict(self) -> dict[str, Any]:
        """The counts by name."""
        return dict(vars(self))


def _reason(error: KvtraceError) -> str:
    """The reason of an error, with the JSON path and without a place in the log."""
    if isinstance(error, RowError):
        return f"{error.field}: {error.reason}" if error.field else error.reason
    return str(error)
