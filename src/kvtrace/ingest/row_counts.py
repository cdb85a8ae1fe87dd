"""What happened to the rows of a log, counted batch by batch in its order; its bad rows are told by their place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .._base.errors import InputError, RowError
from .._base.files import name_of
from .._base.row_counts import Counts
from .encoding import Batch


@dataclass(frozen=True)
class Progress:
    """How far a run has come."""

    done: int  # bytes of input
    total: int  # bytes of input, 0 where it is not known
    requests: int
    tokens: int


class RowCounter:
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
