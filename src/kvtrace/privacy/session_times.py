"""What the requests of a log's sessions waited for, and how long each took: measured by the log, or estimated.

The dependencies follow from starts, ends and blocks by the rule of `trace/session_trees.py`. The blocks are
those that the release states, after k-sharing, so that dependencies reveal no other shared prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import numpy as np

from .._base.units import NS_PER_MS
from ..trace.columns import Columns
from ..trace.meta import ServiceSection
from ..trace.session_trees import recorded_dependencies
from ..trace.unknown import known_outputs
from .release_options import Profile
from .steps import round_lengths
from .trace_draft import TraceDraft

WITHOUT_TIMES = (
    "the log has sessions, but no end times or durations, so requests do not state what they wait for: estimate "
    "service times with --service-time MODEL --gpu GPU."
)


class ServiceEstimate(Protocol):
    """Estimates how long requests take; `kvtrace.serving.service_model` makes one."""

    @property
    def about(self) -> Mapping[str, Any]:
        """The model and the GPU, for the sidecar."""
        ...

    def milliseconds(self, cached: np.ndarray, prompt: np.ndarray, output: np.ndarray) -> np.ndarray:
        """The whole milliseconds of each request, from its cached, prompt and output tokens."""
        ...


@dataclass
class SessionTimes:
    """Adds service times and dependencies to a draft, and remembers where they come from."""

    profile: Profile
    estimate: ServiceEstimate | None = None
    section: ServiceSection | None = None  # of the sidecar; None if the rows have no dependencies
    notes: list[str] = field(default_factory=list)

    def __call__(self, draft: TraceDraft) -> None:
        """Set the dependencies of the rows. Without sessions, or if the profile drops them, there are none."""
        measured, draft.rows.service_ms = draft.rows.service_ms, None
        session = draft.rows.session
        if session is None or not (session >= 0).any() or self.profile.drop_sessions:
            return
        measured = np.full(len(draft), np.nan) if measured is None else measured
        unknown = int(np.isnan(measured).sum())
        if unknown == len(draft) and self.estimate is None:
            self.notes.append(WITHOUT_TIMES)
            return
        service = service_times(
            draft.rows, measured, draft.blocks.hits(), self.profile, self.estimate, block_size=draft.block_size,
            tail=draft.tail,
        )  # fmt: skip
        draft.rows.service_ms = service
        draft.rows.dependencies = recorded_dependencies(draft.columns())
        self.state(unknown, len(draft), len(draft.rows.dependencies.row))

    def state(self, unknown: int, requests: int, dependencies: int) -> None:
        """Make the section and the note, from the number of requests whose service time the log did not measure."""
        self.section = {"measured": unknown < requests, "estimated": self.estimate is not None and unknown > 0}
        if self.section["estimated"] and self.estimate is not None:
            self.section = cast(ServiceSection, {**self.section, **self.estimate.about})
        source = "estimated" if unknown == requests else "measured"
        if 0 < unknown < requests:
            source += f" where the log has them, {'unknown' if self.estimate is None else 'estimated'} for the others"
        self.notes.append(f"{dependencies:,} dependencies within sessions; service times are {source}.")


def service_times(
    rows: Columns,
    measured: np.ndarray,
    hits: np.ndarray,
    profile: Profile,
    estimate: ServiceEstimate | None,
    *,
    block_size: int,
    tail: str,
) -> np.ndarray:
    """The measured service times, and estimates for those that are unknown (NaN), if there is a model.

    Estimates follow from the lengths and the hits that the release states, so that they reveal no others. The time of
    a request whose output length is unknown stays unknown.

    Args:
        rows: The rows, with exact lengths.
        measured: Row -> ms.
        hits: Row -> leading blocks of its prompt that an earlier prompt of the release has.
        profile: Its rounding of lengths counts.
        estimate: The model; None leaves unknown times unknown.
        block_size, tail: Of the release.
    """
    unknown = np.isnan(measured)
    if estimate is None or not unknown.any():
        return measured
    rows = round_lengths(rows, profile.round_input, profile.round_output, block_size=block_size, tail=tail)
    cached = np.minimum(hits.astype(np.int64) * block_size, rows.input_length)
    estimated = estimate.milliseconds(cached, rows.input_length, np.maximum(rows.output_length, 0))
    return np.where(unknown, np.where(known_outputs(rows), estimated, np.nan), measured)


def measured_ms(time_ns: np.ndarray, service_ns: np.ndarray, first_ns: int) -> np.ndarray:
    """Measured times in whole ms, as a clock gives them that shows whole ms since the first request; NaN = unknown.

    >>> measured_ms(np.array([0, 1_700_000]), np.array([2_500_000, -1]), 0)
    array([ 2., nan])
    """
    since = time_ns - first_ns
    whole = (since + service_ns) // NS_PER_MS - since // NS_PER_MS
    return np.where(service_ns < 0, np.nan, whole)
