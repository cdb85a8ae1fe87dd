"""BurstGPT's CSV, https://github.com/HPMLL/BurstGPT: times in seconds, and three token counts.

`Model` is GPT-4 in every row, since vLLM's reader takes no other; `Elapsed time` is 0, since a trace does not know it.
"""

from . import lengths
from .lengths import SIDECAR, check_name, number, rows_of, write_table

__all__ = ["SIDECAR", "adapt", "check_name", "usage", "write"]

HEADER = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
MODEL, LOG = "GPT-4", "Conversation log"


def adapt(trace):
    """The requests with prompts and outputs of at least one token; sessions stay."""
    return lengths.adapt(trace, sessions=True)


def write(stream, trace, *, first_id=0, name="") -> None:
    """Write the table as CSV; a request of no session has none there either."""
    sessions = [""] * len(trace) if trace.session is None else ["" if s < 0 else s for s in trace.session.tolist()]
    rows = ((session, *row) for session, row in zip(sessions, rows_of(trace), strict=True))
    write_table(stream, HEADER, rows, _line)


def usage(trace, path) -> list[str]:
    """How two clients replay the file."""
    return [
        f"aiperf profile --input-file {path} --custom-dataset-type burst-gpt-trace --fixed-schedule",
        f"vllm bench serve --dataset-name burstgpt --dataset-path {path} --num-prompts {len(trace)}",
    ]


def _line(session, time_ms, isl, osl) -> str:
    return f"{number(time_ms / 1000)},{session},0,{MODEL},{isl},{osl},{isl + osl},{LOG}\n"
