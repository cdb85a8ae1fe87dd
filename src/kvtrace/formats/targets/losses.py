"""The losses of a trace in a client's format: each is applied, counted, and described in one line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..._base.errors import InputError
from ...trace.building import uneven_prompts
from ...trace.columns import STATED, Columns, measured_of
from ...trace.domains import count_domains, in_domains
from ...trace.meta import shares_prefixes
from ...trace.trace import Trace


@dataclass
class Losses:
    """Sentences about losses, for those that happened.

    >>> losses = Losses()
    >>> losses.add(0, "row was lost.", "rows were lost.")
    >>> losses.add(1200, "row was lost.", "rows were lost.")
    >>> losses.sentences
    ['1,200 rows were lost.']
    """

    sentences: list[str] = field(default_factory=list)

    def add(self, count: int, singular: str, plural: str) -> None:
        """Add a sentence about `count` changes, if there are any."""
        if count:
            self.sentences.append(f"{count:,} {singular if count == 1 else plural}")

    def without_empty_prompts(self, trace: Trace) -> Trace:
        """The requests with at least one prompt token; InputError if there are none."""
        empty = trace.input_length < 1
        self.add(
            int(empty.sum()), "request with an empty prompt was left out.", "requests with empty prompts were left out."
        )
        if empty.all():
            raise InputError("the trace has no request with a prompt.")
        return trace[~empty] if empty.any() else trace

    def some_output(self, columns: Columns) -> Columns:
        """The columns with outputs of at least one token."""
        none = columns.output_length == 0
        self.add(int(none.sum()), "output_length was raised from 0 to 1.", "output_lengths were raised from 0 to 1.")
        columns.output_length = np.where(none, 1, columns.output_length)  # unknown ones stay unknown
        return columns

    def unshared_prompts(self, trace: Trace) -> None:
        """Add that prompts share no blocks because it is unknown which they share."""
        if not shares_prefixes(trace.meta):
            self.sentences.append(
                "shared prefixes are unknown: each prompt has blocks of its own, so the client's hits mean nothing."
            )

    def rounded_times(self, columns: Columns) -> None:
        """Round times to whole milliseconds."""
        whole = np.round(columns.timestamp)
        moved = int((whole != columns.timestamp).sum())
        columns.timestamp = whole
        self.add(moved, "time was rounded to whole milliseconds.", "times were rounded to whole milliseconds.")

    def drop_outputs(self, columns: Columns) -> None:
        """Remove the blocks of the outputs."""
        if columns.output_ids is not None:
            self.add(len(columns.output_ids), "output block was left out.", "output blocks were left out.")
        columns.output_ids = columns.output_offsets = None

    def drop_sessions(self, columns: Columns) -> None:
        """Remove sessions and parents."""
        if columns.session is not None:
            inside = columns.session[columns.session >= 0]
            self.add(len(np.unique(inside)), "session was left out: rows are independent.",
                     "sessions were left out: rows are independent.")  # fmt: skip
        columns.session = columns.parent = None

    def complete_prompts(self, trace: Trace) -> None:
        """Add that prompts with stated blocks get the blocks that their tokens fill."""
        if trace.tail == STATED:
            more, fewer = uneven_prompts(trace, trace.block_size)
            self.add(more, "prompt became as long as its blocks.", "prompts became as long as their blocks.")
            self.add(fewer, "prompt got blocks of its own for the rest of its tokens.",
                     "prompts got blocks of their own for the rest of their tokens.")  # fmt: skip

    def left_out_waits(self, dependencies: int, service_times: int, remedy: str = "") -> None:
        """Add what is lost of requests that wait for others: their dependencies, and the recorded service times."""
        self.add(dependencies, f"dependency was left out: its request starts at its own time.{remedy}",
                 f"dependencies were left out: requests start at their own times.{remedy}")  # fmt: skip
        self.add(service_times, "service time was left out.", "service times were left out.")

    def drop_waits(self, columns: Columns) -> None:
        """Remove dependencies and service times."""
        waits, service = columns.dependencies, columns.service_ms
        self.left_out_waits(
            0 if waits is None else len(waits.row), 0 if service is None else int((~np.isnan(service)).sum())
        )
        columns.dependencies = columns.service_ms = None

    def left_out_measured(self, columns: Columns) -> None:
        """Add the names of the measured columns: a client measures its own."""
        names = list(measured_of(columns))
        rest = f"left out: {', '.join(names)}."
        self.add(len(names), f"measured column was {rest}", f"measured columns were {rest}")

    def split_domains(self, trace: Trace) -> Trace:
        """The trace with the blocks of its domains kept apart, because the client knows no domains."""
        count = 0 if trace.domain is None else count_domains(trace)
        self.add(count, "domain was left out: its blocks keep ids of their own.",
                 "domains were left out: blocks of different domains have different ids.")  # fmt: skip
        return in_domains(trace)

    def drop_extra(self, columns: Columns) -> None:
        """Remove the extra columns."""
        self.add(len(columns.extra), "extra column was left out.", "extra columns were left out.")
        columns.extra = {}

    def drop_blocks(self, columns: Columns, meta: Mapping[str, Any]) -> None:
        """Add that only lengths remain; nothing is lost where these are all that is known."""
        if not shares_prefixes(meta):
            return
        self.add(len(columns.hash_ids), "hash_id was left out: shared prefixes are lost.",
                 "hash_ids were left out: shared prefixes are lost.")  # fmt: skip
