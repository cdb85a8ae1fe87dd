"""What engines and benchmarks measured, request by request: one file and one row for each format."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from ..._base.errors import InputError, UsageError
from ...trace.trace import Trace
from . import aiperf, litellm, sglang_bench, sglang_requests, vllm_bench, vllm_requests
from .recording import EngineSettings as EngineSettings
from .recording import Recording as Recording

# detection tries them in this order
RECORDINGS: dict[str, ModuleType] = {
    "vllm-requests": vllm_requests,
    "sglang-bench": sglang_bench,
    "vllm-bench": vllm_bench,
    "sglang-requests": sglang_requests,
    "aiperf": aiperf,
    "litellm": litellm,
}


def read_recording(path: str | Path, *, format: str = "auto", trace: Trace | None = None) -> Recording:
    """Read what an engine or a benchmark measured.

    Args:
        path: A file or folder of one of the formats of docs/serving/calibrate.md.
        format: Its format; "auto" detects it.
        trace: The same requests in the same order, with the ids of their blocks. Without it, no blocks are shared.

    Returns:
        The requests in order of arrival, with their times in seconds.

    Raises:
        UsageError: The format is unknown, or the trace has other requests.
        InputError: The file is not valid: it lacks times, its clocks differ, or it has too few requests.

    >>> read_recording("missing.jsonl")
    Traceback (most recent call last):
    kvtrace._base.errors.UsageError: missing.jsonl: no such file or folder.
    """
    path = Path(path)
    if format != "auto" and format not in RECORDINGS:
        raise UsageError(f"--recording-format must be one of auto, {', '.join(RECORDINGS)}.")
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder.")
    reader = RECORDINGS[format] if format != "auto" else _detected(path)
    return reader.read(path, trace)


def _detected(path: Path) -> ModuleType:
    for reader in RECORDINGS.values():
        try:
            if reader.matches(path):
                return reader
        except InputError:  # JSON of another form
            continue
    raise InputError(f"{path}: not a known recording. Formats: {', '.join(RECORDINGS)}.")
