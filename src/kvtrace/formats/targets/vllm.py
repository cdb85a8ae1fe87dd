"""vLLM's `bench serve --dataset-name timed_trace`, which builds prompts from the ids only.

Its default chunk size is 16 and its default unit is the second, so both must be set for a trace in milliseconds. It
seeds prompts with Python's hash(); PYTHONHASHSEED makes runs repeatable.
"""

from __future__ import annotations

from pathlib import Path

from ..._base.errors import pasted
from ...trace.trace import Trace
from .portable import SIDECAR, adapt, check_name, write

__all__ = ["SIDECAR", "adapt", "check_name", "usage", "write"]


def usage(trace: Trace, path: str | Path) -> list[str]:
    """How to replay the file; `--self-timed` preserves times, `--ignore-eos` output lengths."""
    return [
        f"PYTHONHASHSEED=0 vllm bench serve --dataset-name timed_trace --dataset-path {pasted(path)} "
        f"--timed-trace-chunk-hash-size {trace.block_size} --timed-trace-sec-multiplier 0.001 "
        f"--self-timed --num-prompts {len(trace)} --ignore-eos"
    ]
