"""llm-d-benchmark's trace replay: Qwen-Bailian's keys, times in seconds, blocks of 16 tokens."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from ...formats import bailian
from ...trace.columns import replace_columns
from ...trace.normalise import normalise
from ...trace.trace import Trace
from .losses import Losses
from .portable import check_name

__all__ = ["SIDECAR", "adapt", "check_name", "usage", "write"]

SIDECAR = True
FORMAT = "bailian"
BLOCK_SIZE = 16


def adapt(trace: Trace) -> tuple[Trace, list[str]]:
    """The trace with at least one output token in each request, and the losses; sessions become chat ids."""
    losses = Losses()
    trace = losses.without_empty_prompts(trace)
    losses.unshared_prompts(trace)
    columns = losses.some_output(replace_columns(trace))
    losses.drop_outputs(columns)
    extra = {name: values for name, values in columns.extra.items() if name in ("type", "turn")}
    left_out = len(columns.extra) - len(extra)
    columns.extra = extra
    losses.add(left_out, "extra column was left out.", "extra columns were left out.")
    if trace.block_size != BLOCK_SIZE:
        losses.sentences.append(
            f"blocks have {trace.block_size:,} tokens; readers of this format expect {BLOCK_SIZE} by default."
        )
    columns, _ = normalise(columns)
    return Trace(**vars(columns), block_size=trace.block_size, tail=trace.tail, meta=trace.meta), losses.sentences


def write(stream: BinaryIO, trace: Trace, *, first_id: int = 0, name: str = "") -> None:
    """Write the rows as JSON Lines."""
    bailian.write(stream, trace, first_id=first_id)


def usage(trace: Trace, path: str | Path) -> list[str]:
    """How readers must interpret the file."""
    return [f"Qwen-Bailian rows in {path}: times in seconds, block size {trace.block_size}"]
