"""Count the rows of a log, batch by batch: requests, rows left out, and bad rows with their file and line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._base.errors import InputError, RowError
from .._base.files import name_of
from .._base.row_counts import RowCounts, rounded
from ..trace.meta import PREFIXES_UNKNOWN, Meta, merge
from ..trace.unknown import UNKNOWN_LENGTH
from .encoding import Batch
from .tokenizer_choice import TokenizerChoice
from .usage import UsageCheck

MEASURED_COUNTS = ("invalid_measured", "lowered_cached", "with_cached", "without_hit")


@dataclass(frozen=True)
class Progress:
    """The progress of a run."""

    done: int  # bytes of input
    total: int  # bytes of input, 0 = unknown
    requests: int
    tokens: int


class RowCounter:
    """Counts the rows of batches, which must arrive in log order, and reports bad rows.

    Args:
        max_errors: bad rows to skip, -1 = any number. The next one raises its error.
        on_reject: called with the error of each bad row.
    """

    counts: RowCounts
    tokens: int
    usage: UsageCheck  # our counts of prompt tokens beside the log's
    other_models: int  # requests to models with another tokenizer

    def __init__(self, max_errors: int = 0, on_reject: Callable[[RowError], None] | None = None):
        self.counts, self.tokens = RowCounts(), 0
        self.usage, self.other_models = UsageCheck(), 0
        self._max_errors, self._on_reject = max_errors, on_reject
        self._line = 1  # number of the first line of the next piece
        self._path: str | None = None
        self._last_ns = np.empty(0, np.int64)  # the time of the last row
        self._rises = self._falls = False  # whether a time is later, or earlier, than that of the row before

    def add(self, batch: Batch, piece) -> None:
        """Count the rows of one batch. RowError or InputError if a bad row ends the run."""
        self._reject(batch, piece)
        self.counts.requests += len(batch)
        self.counts.rows += len(batch) + batch.empty + batch.others + len(batch.rejects)
        self.counts.filtered += batch.empty + batch.others
        self.counts.others += batch.others
        self.counts.failed += batch.failed
        self.counts.other_calls += batch.other_calls
        self.counts.lengths_only += batch.lengths_only
        self.counts.cut += batch.cut
        self.counts.not_rendered.update(batch.not_rendered)
        self.counts.unsized_media += batch.unsized_media
        for name in MEASURED_COUNTS:
            setattr(self.counts, name, getattr(self.counts, name) + getattr(batch, name))
        self.tokens += int(batch.input_length.sum())
        self._compare(batch)
        self.usage += batch.usage or UsageCheck()
        self.other_models += batch.other_models
        self._follow(batch.time_ns)
        is_unknown = batch.output_length == UNKNOWN_LENGTH
        self.counts.without_output += int(is_unknown.sum())
        if batch.output_known is not None:
            self.counts.without_output_blocks += int((~batch.output_known & ~is_unknown).sum())

    def check_tokens(self, choice: TokenizerChoice, on_mismatch: str) -> str | None:
        """A warning if our counts of prompt tokens differ from the log's.

        Raises:
            MismatchError: They differ by more than 2 %, though the tokenizer is the model's; unless that is "warn".
            UsageError: Some requests are to models with another tokenizer than the one that was chosen.
        """
        choice.require_only(self.other_models, self.counts.requests)
        return self.usage.decide(is_of_model=choice.is_of_model, on_mismatch=on_mismatch)

    @property
    def is_reversed(self) -> bool:
        """Whether the times of all rows fell from row to row; `Collector.is_reversed` also looks at each session."""
        return self._falls and not self._rises and self.counts.requests >= 3

    def _follow(self, time_ns: np.ndarray) -> None:
        """Compare the times of a batch with those before; rows without a time say nothing."""
        time_ns = time_ns[time_ns >= 0]
        change = np.diff(times := np.concatenate([self._last_ns, time_ns]))
        self._rises, self._falls = self._rises or bool((change > 0).any()), self._falls or bool((change < 0).any())
        self._last_ns = times[-1:]

    def _reject(self, batch, piece):
        """Count and report the rejects, each with its file, line and offset. Raise the one that exceeds the limit."""
        if piece.path != self._path:
            self._path, self._line = piece.path, 1
        for reject in batch.rejects:
            row, path = reject.position, name_of(piece.path)
            error = reject.error.at(path, self._line + row.line, piece.start + row.offset, row.length)
            self.counts.rejected += 1
            self.counts.reasons[error.fault] += 1
            self.counts.firsts.setdefault(error.fault, str(error))
            if self._on_reject:
                self._on_reject(error)
            if self._max_errors == 0:
                error.hint = error.hint or "To skip such rows, use --on-error skip."
                raise error
            if 0 < self._max_errors < self.counts.rejected:
                raise InputError(
                    f"{error} This is bad row {self.counts.rejected:,}: --max-errors is {self._max_errors}."
                )
        self._line += batch.lines

    def _compare(self, batch):
        logged = batch.logged_tokens >= 0
        difference = np.abs(batch.input_length - batch.logged_tokens)[logged]
        self.counts.with_logged_tokens += int(logged.sum())
        self.counts.equal_to_logged += int((difference == 0).sum())
        self.counts.logged_difference += int(difference.sum())


def value_notes(counts: RowCounts) -> list[str]:
    """Notes on what the service measured, for a trace that has it.

    >>> value_notes(RowCounts(requests=9, invalid_measured=1, with_cached=4, without_hit=2))
    ['1 measured value is not valid: it counts as unknown.']
    """
    notes = []
    if invalid := counts.invalid_measured:
        verb = "value is not valid: it counts" if invalid == 1 else "values are not valid: they count"
        notes.append(f"{invalid:,} measured {verb} as unknown.")
    if lowered := counts.lowered_cached:
        plural = "s" if lowered > 1 else ""
        notes.append(
            f"cached tokens of {lowered:,} request{plural} exceed the prompt by our tokenizer: they were lowered to "
            "its length."
        )
    if 0 < counts.with_cached < counts.requests and not counts.without_hit:
        notes.append(
            f"{counts.with_cached:,} of {counts.requests:,} requests have cached tokens, and none has 0 of them: some "
            "servers leave a 0 out, so the others may have had no cached tokens."
        )
    return notes


def with_measured(meta: Meta | dict[str, Any], measured: Iterable[str]) -> dict[str, Any]:
    """The sections of a trace, with the columns of MEASURED that the log gave it.

    >>> with_measured({"log": {"reader": "sglang"}}, ["ttft_ms"])
    {'log': {'reader': 'sglang', 'measured': ['ttft_ms']}}
    """
    names = list(measured)
    return merge(meta, {"log": {**meta["log"], "measured": names}} if names else {})


def with_prompts(meta: Meta, counts: RowCounts) -> dict[str, Any]:
    """The sections of a trace, with what its prompts lack: all of them, in a log of lengths, or fields of requests.

    >>> meta = {"rendering": {"engine": "vllm", "version": 1}}
    >>> with_prompts(meta, RowCounts(not_rendered={"tools": 7}))["rendering"]
    {'engine': 'vllm', 'version': 1, 'not_rendered': {'tools': 10}}
    """
    sections = merge(meta, {"prefixes": PREFIXES_UNKNOWN} if counts.lengths_only else {})
    if "rendering" not in meta:
        return sections
    section = meta["rendering"].copy()
    if counts.not_rendered:
        section["not_rendered"] = {name: rounded(count) for name, count in sorted(counts.not_rendered.items())}
    if counts.unsized_media:
        section["unsized_media"] = rounded(counts.unsized_media)
    return merge(sections, {"rendering": section})
