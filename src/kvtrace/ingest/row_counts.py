"""What happened to the rows of a log, counted batch by batch in its order; its bad rows are told by their place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from .._base.errors import InputError, RowError
from .._base.files import name_of
from .encoding import Batch


@dataclass(frozen=True)
class Progress:
    """How far a run has come."""

    done: int  # bytes of input
    total: int  # bytes of input, 0 where it is not known
    requests: int
    tokens: int


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


class Tally:
    """Counts what batches hold and hands their bad rows on; one too many of these ends the run with its error.

    `max_errors` rows may be bad, -1 = any number. Batches come in the order of the log.
    """

    def __init__(self, max_errors: int = 0, on_reject: Callable[[RowError], None] | None = None):
        self.counts, self.tokens = Counts(), 0
        self._max_errors, self._on_reject = max_errors, on_reject
        self._line = 1  # line of the current file that the next piece begins with
        self._path: str | None = None

    def add(self, batch: Batch, piece) -> None:
        """Count what a piece's batch holds; RowError or InputError where a bad row ends the run."""
        self._reject(batch, piece)
        self.counts.requests += len(batch)
        self.counts.rows += len(batch) + batch.empty + batch.others + len(batch.rejects)
        self.counts.filtered += batch.empty + batch.others
        self.counts.others += batch.others
        self.counts.lengths_only += batch.lengths_only
        self.counts.cut += batch.cut
        self.tokens += int(batch.input_length.sum())
        self._compare(batch)
        if batch.output_known is not None:
            self.counts.without_output_blocks += int((~batch.output_known).sum())

    def _reject(self, batch, piece):
        """Count the batch's rejects, each with its file, line and offset; stop at one too many."""
        if piece.path != self._path:
            self._path, self._line = piece.path, 1
        for reject in batch.rejects:
            place, path = reject.place, name_of(piece.path)
            error = reject.error.at(path, self._line + place.line, piece.start + place.offset, place.length)
            self.counts.rejected += 1
            self.counts.reasons[error.reason] += 1
            if self._on_reject:
                self._on_reject(error)
            if self._max_errors == 0:
                error.hint = error.hint or "Try --on-error skip --max-errors N to leave such rows out."
                raise error
            if 0 < self._max_errors < self.counts.rejected:
                raise InputError(f"{error} That is bad row {self.counts.rejected:,}; --max-errors {self._max_errors}.")
        self._line += batch.lines

    def _compare(self, batch):
        logged = batch.logged_tokens >= 0
        difference = np.abs(batch.input_length - batch.logged_tokens)[logged]
        self.counts.with_logged_tokens += int(logged.sum())
        self.counts.equal_to_logged += int((difference == 0).sum())
        self.counts.logged_difference += int(difference.sum())
