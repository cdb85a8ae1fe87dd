"""What a trace loses on its way to a client: each loss normalised, counted, and said in one line."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..._base.errors import InputError
from ...trace.columns import Columns
from ...trace.trace import Trace


@dataclass
class Losses:
    """Sentences for the user; a loss that did not happen is not said.

    >>> losses = Losses()
    >>> losses.say(0, "row was lost.", "rows were lost.")
    >>> losses.say(1200, "row was lost.", "rows were lost.")
    >>> losses.said
    ['1,200 rows were lost.']
    """

    said: list[str] = field(default_factory=list)

    def say(self, count: int, one: str, many: str) -> None:
        """Note that so many of something changed."""
        if count:
            self.said.append(f"{count:,} {one if count == 1 else many}")

    def without_empty_prompts(self, trace: Trace) -> Trace:
        """The requests whose prompt has at least one token; InputError if there are none."""
        empty = trace.input_length < 1
        self.say(
            int(empty.sum()), "request with an empty prompt was left out.", "requests with empty prompts were left out."
        )
        if empty.all():
            raise InputError("the trace holds no request with a prompt.")
        return trace[~empty] if empty.any() else trace

    def some_output(self, columns: Columns) -> Columns:
        """The columns with outputs of at least one token."""
        none = columns.output_length < 1
        self.say(int(none.sum()), "output_length was raised from 0 to 1.", "output_lengths were raised from 0 to 1.")
        columns.output_length = np.maximum(columns.output_length, 1)
        return columns

    def rounded_times(self, columns: Columns) -> None:
        """Round times to whole milliseconds."""
        whole = np.round(columns.timestamp)
        moved = int((whole != columns.timestamp).sum())
        columns.timestamp = whole
        self.say(moved, "time was rounded to whole milliseconds.", "times were rounded to whole milliseconds.")

    def drop_outputs(self, columns: Columns) -> None:
        """Leave out the blocks of the outputs."""
        if columns.output_ids is not None:
            self.say(len(columns.output_ids), "output block was left out.", "output blocks were left out.")
        columns.output_ids = columns.output_offsets = None

    def drop_sessions(self, columns: Columns) -> None:
        """Leave out sessions and parents."""
        if columns.session is not None:
            inside = columns.session[columns.session >= 0]
            self.say(len(np.unique(inside)), "session was left out: rows stand by themselves.",
                     "sessions were left out: rows stand by themselves.")  # fmt: skip
        columns.session = columns.parent = None

    def drop_extra(self, columns: Columns) -> None:
        """Leave out the extra columns."""
        self.say(len(columns.extra), "extra column was left out.", "extra columns were left out.")
        columns.extra = {}

    def drop_blocks(self, columns: Columns) -> None:
        """Say that only lengths are left."""
        self.say(len(columns.hash_ids), "hash_id was left out: which prompts share a prefix is lost.",
                 "hash_ids were left out: which prompts share a prefix is lost.")  # fmt: skip
