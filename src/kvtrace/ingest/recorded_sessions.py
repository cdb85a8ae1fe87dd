"""What the requests of a log's sessions waited for, and how long each took: measured by the log, or estimated.

The dependencies follow from starts, ends and blocks by the rule of `trace/recorded_dependencies.py`. The blocks are those
that the release states, after k-sharing, so that dependencies reveal no other shared prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import numpy as np

from ..privacy.profiles import Profile
from ..privacy.steps import round_lengths
from ..privacy.trace_draft import TraceDraft
from ..trace.meta import ServiceSection
from ..trace.recorded_dependencies import recorded_dependencies

WITHOUT_TIMES = (
    "the log has sessions, but no end times or durations, so requests do not state what they wait for: estimate "
    "service times with --service-time MODEL --gpu GPU."
)


class ServiceModel(Protocol):
    """Estimates how long requests take; `kvtrace.service_model` makes one."""

    about: Mapping[str, Any]  # the model and the GPU, for the sidecar

    def milliseconds(self, cached: np.ndarray, prompt: np.ndarray, output: np.ndarray) -> np.ndarray:
        """The whole milliseconds of each request, from its cached, prompt and output tokens."""
        ...


@dataclass
class SessionTimes:
    """Adds service times and dependencies to a draft, and remembers where they come from."""

    profile: Profile
    estimate: ServiceModel | None = None
    section: ServiceSection | None = None  # of the sidecar; None if the rows have no dependencies
    notes: list[str] = field(default_factory=list)

    def __call__(self, draft: TraceDraft) -> None:
        """Set the dependencies of the rows. Without sessions, or if the profile drops them, there are none."""
        measured, draft.rows.service_ms = draft.rows.service_ms, None
        session = draft.rows.session
        if session is None or not (session >= 0).any() or self.profile.drop_sessions:
            return
        service = np.full(len(draft), np.nan) if measured is None else measured
        unknown = np.isnan(service)
        if unknown.all() and self.estimate is None:
            self.notes.append(WITHOUT_TIMES)
            return
        if self.estimate is not None:
            service = np.where(unknown, self._estimated(draft), service)
        draft.rows.service_ms = service
        draft.rows.dependencies = recorded_dependencies(draft.columns())
        self.section = {
            "measured": not bool(unknown.all()),
            "estimated": self.estimate is not None and bool(unknown.any()),
        }
        if self.section["estimated"] and self.estimate is not None:
            self.section = cast(ServiceSection, self.section | self.estimate.about)
        self.notes.append(self._note(int(unknown.sum()), len(draft), len(draft.rows.dependencies.row)))

    def _estimated(self, draft: TraceDraft) -> np.ndarray:
        """Service times in ms, from lengths that are rounded as the release states them: they reveal no others."""
        assert self.estimate is not None
        rows = round_lengths(
            draft.rows, self.profile.round_input, self.profile.round_output, block_size=draft.block_size,
            tail=draft.tail,
        )  # fmt: skip
        cached = np.minimum(draft.blocks.hits().astype(np.int64) * draft.block_size, rows.input_length)
        return self.estimate.milliseconds(cached, rows.input_length, rows.output_length)

    def _note(self, unknown: int, rows: int, dependencies: int) -> str:
        source = "measured" if not unknown else "estimated" if unknown == rows else "measured where the log has them"
        if 0 < unknown < rows:
            source += ", estimated for the others" if self.estimate is not None else ", unknown for the others"
        return f"{dependencies:,} dependencies within sessions; service times are {source}."
