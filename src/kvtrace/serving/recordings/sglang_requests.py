"""SGLang's request log as JSON: `--log-requests --log-requests-format json --enable-metrics`.

A line with the event `request.finished` has `out.meta_info`: request_received_ts (seconds since 1970),
first_token_latency and e2e_latency (seconds), prompt_tokens, completion_tokens, and where known cached_tokens and
queue_time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..._base.errors import InputError
from ...trace.trace import Trace
from .recording import EngineSettings, Recording, RequestTimes, recording_of
from .rows import NAN, column, number_of, read_rows, whole

EVENT = "request.finished"
HINT = "Start the server with --log-requests --log-requests-format json --enable-metrics."


def matches(path: Path) -> bool:
    """Whether the first row has this form."""
    event = read_rows(path)[0].get("event") if path.is_file() else None
    return isinstance(event, str) and event.startswith("request.")


def read(path: Path, trace: Trace | None = None) -> Recording:
    """The recording of a server's log."""
    rows = [_meta_info(row) for row in read_rows(path) if row.get("event") == EVENT]
    if not rows:
        raise InputError(f"{path}: no event {EVENT}. {HINT}")
    for name in ("request_received_ts", "first_token_latency"):
        if not any(name in row for row in rows):
            raise InputError(f"{path}: lacks {name}, which a recording needs. {HINT}")

    def values(name: str) -> np.ndarray:
        return column(rows, lambda row: row.get(name), name, path)

    arrival = values("request_received_ts")
    failed = np.array([_is_aborted(row) for row in rows])
    first = np.where(failed, NAN, arrival + values("first_token_latency"))
    queued = np.array([number_of(row.get("queue_time")) for row in rows])
    times = RequestTimes(
        arrival, first, arrival + values("e2e_latency"), whole(values("prompt_tokens")),
        whole(values("completion_tokens")), None if np.isnan(queued).any() else arrival + queued,
        whole(values("cached_tokens")) if any("cached_tokens" in row for row in rows) else None,
    )  # fmt: skip
    settings = EngineSettings(engine="sglang")
    return recording_of(times, name=str(path), trace=trace, settings=settings, format="sglang-requests")


def _meta_info(row: Mapping[str, Any]) -> Mapping[str, Any]:
    out = row.get("out")
    found = out.get("meta_info") if isinstance(out, dict) else None
    return found if isinstance(found, dict) else {}


def _is_aborted(row: Mapping[str, Any]) -> bool:
    reason = row.get("finish_reason")
    return isinstance(reason, dict) and reason.get("type") == "abort"
