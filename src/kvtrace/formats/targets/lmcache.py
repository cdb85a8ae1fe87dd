"""LMCache's lookup-hash logs, which its cache simulator replays: complete chunks only, hashes as hex.

https://github.com/LMCache/LMCache, lmcache/tools/cache_simulator. A trace has no bytes per chunk, so `dtypes` and
`shapes` state one byte a token; `--kv-bytes-per-chunk` sets the size for a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import orjson

from ..._base.errors import pasted
from ..._base.step_work import report_work
from ...trace.columns import replace_columns
from ...trace.trace import Trace
from .losses import Losses
from .portable import check_name

__all__ = ["NEEDS_PREFIXES", "OUTPUTS_MAY_BE_UNKNOWN", "SIDECAR", "adapt", "check_name", "usage", "write"]

NEEDS_PREFIXES = OUTPUTS_MAY_BE_UNKNOWN = True
SIDECAR = False  # the file cannot be read back: tails are missing and times are in seconds
MODEL = "trace"


def adapt(trace: Trace) -> tuple[Trace, list[str]]:
    """The trace with the columns of the log only, and the losses."""
    losses = Losses()
    trace = losses.without_empty_prompts(trace)
    columns = replace_columns(trace)
    losses.drop_outputs(columns)
    losses.drop_sessions(columns)
    losses.drop_extra(columns)
    tails = int(trace.prompt_blocks.sum() - trace.full_blocks.sum())
    losses.add(tails, "tail block was left out: always a miss.", "tail blocks were left out: always a miss.")
    losses.sentences.append("output_lengths were left out.")
    return Trace.from_columns(columns, block_size=trace.block_size, tail=trace.tail, meta=trace.meta), losses.sentences


def write(stream: BinaryIO, trace: Trace, *, first_id: int = 0, name: str = "") -> None:
    """Write one lookup for each request as JSON Lines."""
    size, full = trace.block_size, trace.full_blocks.tolist()
    hashes = [f"0x{block + first_id:016x}" for block in range(trace.distinct)]  # id -> its hash
    for row, (time, tokens) in enumerate(zip(trace.timestamp.tolist(), trace.input_length.tolist(), strict=True)):
        stream.write(
            orjson.dumps(
                {
                    "timestamp": time / 1000,
                    "request_id": f"{row}",
                    "model_name": MODEL,
                    "chunk_size": size,
                    "seq_len": tokens,
                    "dtypes": ["int8"],
                    "shapes": [[size]],
                    "chunk_hashes": [hashes[block] for block in trace.prompt(row)[: full[row]].tolist()],
                },
                option=orjson.OPT_APPEND_NEWLINE,
            )
        )
        report_work(1)


def usage(trace: Trace, path: str | Path) -> list[str]:
    """How to simulate with the file."""
    return [
        f"lmcache tool cache-simulator sweep -i {pasted(path)} --kv-bytes-per-chunk BYTES",
        f"(BYTES: the KV cache of {trace.block_size:,} tokens of your model)",
    ]
