"""LiteLLM's call log or spend logs: startTime, completionStartTime and endTime, in seconds or ISO 8601.

Calls that failed, did not stream (their first token is not known) or came from LiteLLM's own cache are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...trace.trace import Trace
from .recording import Recording, RequestTimes, recording_of
from .rows import NAN, column, read_rows, whole

TIMES = ("startTime", "completionStartTime", "endTime")


def matches(path: Path) -> bool:
    """Whether the first row has this form."""
    return path.is_file() and "startTime" in read_rows(path)[0]


def read(path: Path, trace: Trace | None = None) -> Recording:
    """The recording of a log of calls."""
    rows = read_rows(path)

    def values(name: str) -> np.ndarray:
        return column(rows, lambda row: row.get(name), name, path)

    arrival, first, ended = map(values, TIMES)
    first = np.where([_left_out(row) for row in rows], NAN, first)
    # where the answer did not stream, LiteLLM writes the end as the first token
    first = np.where((first >= ended) & (values("completion_tokens") > 1), NAN, first)
    prompts, outputs = whole(values("prompt_tokens")), whole(values("completion_tokens"))
    times = RequestTimes(arrival, first, ended, prompts, outputs)
    return recording_of(times, name=str(path), trace=trace, format="litellm")


def _left_out(row: Mapping[str, Any]) -> bool:
    return row.get("status") == "failure" or row.get("stream") is False or str(row.get("cache_hit")).lower() == "true"
