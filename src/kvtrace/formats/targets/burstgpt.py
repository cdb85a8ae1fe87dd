"""BurstGPT's CSV, https://github.com/HPMLL/BurstGPT: times in seconds, and three token counts.

`Model` is always GPT-4, the only value that vLLM's reader accepts; `Elapsed time` is 0, because a trace has none.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from ..._base.errors import pasted
from ...trace.trace import Trace
from . import lengths
from .lengths import SIDECAR, check_name, number, rows_of, write_table

__all__ = ["SIDECAR", "adapt", "check_name", "usage", "write"]

HEADER = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
MODEL, LOG = "GPT-4", "Conversation log"


def adapt(trace: Trace) -> tuple[Trace, list[str]]:
    """The requests with at least one prompt token and one output token, with sessions, and the losses."""
    return lengths.adapt(trace, sessions=True)


def write(stream: BinaryIO, trace: Trace, *, first_id: int = 0, name: str = "") -> None:
    """Write the table as CSV; requests without a session have an empty one."""
    sessions = [""] * len(trace) if trace.session is None else ["" if s < 0 else s for s in trace.session.tolist()]
    rows = ((session, *row) for session, row in zip(sessions, rows_of(trace), strict=True))
    write_table(stream, HEADER, rows, _line)


def usage(trace: Trace, path: str | Path) -> list[str]:
    """How to replay the file with two clients."""
    return [
        f"aiperf profile --input-file {pasted(path)} --custom-dataset-type burst-gpt-trace --fixed-schedule",
        f"vllm bench serve --dataset-name burstgpt --dataset-path {pasted(path)} --num-prompts {len(trace)}",
    ]


def _line(session, time_ms, isl, osl) -> str:
    return f"{number(time_ms / 1000)},{session},0,{MODEL},{isl},{osl},{isl + osl},{LOG}\n"
