"""`vllm bench serve --save-result --save-detailed`: one JSON object with lists, in the client's clock."""

from __future__ import annotations

from pathlib import Path

from ...trace.trace import Trace
from .bench_lists import has_lists, read_lists
from .recording import Recording

HINT = "Run vllm bench serve with --save-result --save-detailed, in a version that saves start_times."


def matches(path: Path) -> bool:
    """Whether a file has this form."""
    return path.is_file() and has_lists(path, ("endpoint_type", "backend", "model_id"))


def read(path: Path, trace: Trace | None = None) -> Recording:
    """The recording of a benchmark's result."""
    return read_lists(path, trace, "vllm-bench", HINT)
