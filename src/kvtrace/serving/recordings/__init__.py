"""What engines and benchmarks measured, request by request: one row for each format.

A format is two functions: whether a path has it, and its reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..._base.errors import InputError, MissingPathError, docs_page, wrong_word
from ...trace.trace import Trace
from . import benchmarks, request_logs
from .recording import EngineSettings as EngineSettings
from .recording import Recording as Recording

Matches = Callable[[Path], bool]
Read = Callable[[Path, Trace | None], Recording]
# detection tries them in this order
RECORDINGS: dict[str, tuple[Matches, Read]] = {
    "vllm-requests": (request_logs.matches_vllm_requests, request_logs.read_vllm_requests),
    "sglang-bench": (benchmarks.matches_sglang_bench, benchmarks.read_sglang_bench),
    "vllm-bench": (benchmarks.matches_vllm_bench, benchmarks.read_vllm_bench),
    "sglang-requests": (request_logs.matches_sglang_requests, request_logs.read_sglang_requests),
    "aiperf": (benchmarks.matches_aiperf, benchmarks.read_aiperf),
    "litellm": (request_logs.matches_litellm, request_logs.read_litellm),
}


def read_recording(path: str | Path, *, format: str = "auto", trace: Trace | None = None) -> Recording:
    """Read what an engine or a benchmark measured.

    Args:
        path: A file or folder of one of the formats of
            https://github.com/kvtrace/kvtrace/blob/main/docs/serving/calibrate.md.
        format: Its format; "auto" detects it.
        trace: The same requests in the same order, with the ids of their blocks. Without it, no blocks are shared.

    Returns:
        The requests in order of arrival, with their times in seconds.

    Raises:
        UsageError: The format is unknown, or the trace has other requests.
        InputError: The file is not valid: it lacks times, its clocks differ, or it has too few requests.

    >>> read_recording("missing.jsonl")
    Traceback (most recent call last):
    kvtrace._base.errors.MissingPathError: missing.jsonl: no such file or folder.
    """
    path = Path(path)
    if format != "auto" and format not in RECORDINGS:
        raise wrong_word(format, "a --recording-format", ["auto", *RECORDINGS])
    if not path.exists():
        raise MissingPathError(f"{path}: no such file or folder.")
    read = RECORDINGS[format][1] if format != "auto" else _detected(path)
    return read(path, trace)


def _detected(path: Path) -> Read:
    for matches, read in RECORDINGS.values():
        try:
            if matches(path):
                return read
        except InputError:  # JSON of another form
            continue
    page = docs_page("serving/calibrate.md")
    raise InputError(f"{path}: not a known recording. Formats: {', '.join(RECORDINGS)}; see {page}.")
