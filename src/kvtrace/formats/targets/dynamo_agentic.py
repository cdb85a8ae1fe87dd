"""Dynamo's offline replay of agentic sessions: requests start when those that they wait for allow it.

Dynamo never starts a request before its `not_before_ms`. Requests that wait therefore have the time 0 here, so that a
faster engine gets further; the format agentic-mooncake keeps all recorded times.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import BinaryIO

from ...trace.trace import Trace
from .. import agentic_mooncake
from .losses import Losses
from .portable import check_name, require_small_ids

__all__ = ["FORMAT", "SIDECAR", "adapt", "check_name", "usage", "write"]

SIDECAR = True
FORMAT = "agentic-mooncake"


def adapt(trace: Trace) -> tuple[Trace, list[str]]:
    """The trace that Dynamo can replay, and a sentence for each loss.

    >>> from kvtrace.trace.building import toy
    >>> adapt(toy("", "0"))[1]
    ['1 request with an empty prompt was left out.']
    """
    losses = Losses()
    trace = losses.without_empty_prompts(trace)
    losses.unshared_prompts(trace)
    if trace.dependencies is not None:
        waits = int(((trace.dependencies.offsets[1:] - trace.dependencies.offsets[:-1]) > 0).sum())
        rest = "left out: Dynamo would not start such a request before its time."
        losses.add(waits, f"time of a request that waits was {rest}", f"times of requests that wait were {rest}")
    return trace, losses.sentences


def write(stream: BinaryIO, trace: Trace, *, first_id: int = 0, name: str = "") -> None:
    """Write the header and the rows; UsageError if ids do not fit 31 bits."""
    require_small_ids(trace, first_id)
    agentic_mooncake.write(stream, trace, first_id=first_id, recorded_times=False)


def usage(trace: Trace, path: str | Path) -> list[str]:
    """How to replay the file in Python."""
    engine = f'extra_engine_args={{"engine": {{"block_size": {trace.block_size}}}}}'
    settings = f'trace_format="agentic_mooncake", execution_model="MODEL", agentic_lanes=4, {engine}'
    return [f"dynamo._core.run_mocker_trace_replay({json.dumps([str(path)])}, {settings})"]
