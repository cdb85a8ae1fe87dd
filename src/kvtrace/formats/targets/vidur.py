"""Vidur's request traces, https://github.com/microsoft/vidur: arrival in seconds, tokens to prefill and decode."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from ..._base.errors import pasted
from ...trace.trace import Trace
from .lengths import SIDECAR, adapt, check_name, number, rows_of, write_table

__all__ = ["SIDECAR", "adapt", "check_name", "usage", "write"]

HEADER = "arrived_at,num_prefill_tokens,num_decode_tokens"


def write(stream: BinaryIO, trace: Trace, *, first_id: int = 0, name: str = "") -> None:
    """Write the table as CSV."""
    write_table(stream, HEADER, rows_of(trace), lambda time, isl, osl: f"{number(time / 1000)},{isl},{osl}\n")


def usage(_trace: Trace, path: str | Path) -> list[str]:
    """How to draw lengths from the file, and how to replay it in versions that read `arrived_at` (0.0.26 does not)."""
    command = "python -m vidur.main --request_generator_config_type"
    return [
        f"{command} synthetic --length_generator_config_type trace "
        f"--trace_request_length_generator_config_trace_file {pasted(path)}",
        f"{command} trace_replay --trace_request_generator_config_trace_file {pasted(path)}",
    ]
