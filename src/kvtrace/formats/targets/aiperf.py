"""AIPerf's `mooncake_trace`: NVIDIA's load generator, https://github.com/ai-dynamo/aiperf.

It builds prompts from the ids. One id with two block sizes, more ids than blocks, or an output of 0 tokens is an error;
an output_length may be null (`MooncakeTrace` in aiperf/dataset/loader/models.py). It would treat rows with the same
`session_id` as increments of one conversation.
"""

from __future__ import annotations

from pathlib import Path

from ..._base.errors import pasted
from ...trace.trace import Trace
from .portable import SIDECAR, adapt, check_name, write

DEFAULT_BLOCK_SIZE = 512
OUTPUTS_MAY_BE_UNKNOWN = True

__all__ = ["OUTPUTS_MAY_BE_UNKNOWN", "SIDECAR", "adapt", "check_name", "usage", "write"]


def usage(trace: Trace, path: str | Path) -> list[str]:
    """How to replay the file, and how to check it.

    >>> from kvtrace.trace.building import toy
    >>> usage(toy("0 1", block_size=16), "day.jsonl")[1].split(" --custom")[1]
    '-dataset-type mooncake-trace --fixed-schedule --isl-block-size 16'
    """
    size = "" if trace.block_size == DEFAULT_BLOCK_SIZE else f" --isl-block-size {trace.block_size}"
    return [
        f"aiperf validate mooncake-trace --input {pasted(path)}",
        f"aiperf profile --input-file {pasted(path)} --custom-dataset-type mooncake-trace --fixed-schedule{size}",
    ]
