"""LMCache's lookup-hash logs, which its cache simulator replays: complete chunks only, hashes as hex.

https://github.com/LMCache/LMCache, lmcache/tools/cache_simulator. A trace does not know how many bytes a chunk has, so
`dtypes` and `shapes` say one byte a token; `--kv-bytes-per-chunk` says what a chunk of a model weighs.
"""

from __future__ import annotations

import orjson

from ...trace.columns import replace_columns
from ...trace.trace import Trace
from .losses import Losses
from .portable import check_name

__all__ = ["SIDECAR", "adapt", "check_name", "usage", "write"]

SIDECAR = False  # no trace of ours: its tails are gone and its times count seconds
MODEL = "trace"


def adapt(trace: Trace) -> tuple[Trace, list[str]]:
    """The trace without what the log has no place for."""
    losses = Losses()
    trace = losses.without_empty_prompts(trace)
    columns = replace_columns(trace)
    losses.drop_outputs(columns)
    losses.drop_sessions(columns)
    losses.drop_extra(columns)
    tails = int(trace.prompt_blocks.sum() - trace.full_blocks.sum())
    losses.say(tails, "tail block was left out: always a miss.", "tail blocks were left out: always a miss.")
    losses.said.append("output_lengths were left out.")
    return Trace.from_columns(columns, block_size=trace.block_size, tail=trace.tail, meta=trace.meta), losses.said


def write(stream, trace: Trace, *, first_id: int = 0, name: str = "") -> None:
    """Write one lookup a request as JSON Lines."""
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


def usage(trace, path) -> list[str]:
    """How to simulate with the file; the capacity is an example."""
    return [
        f"lmcache tool cache-simulator sweep -i {path} --kv-bytes-per-chunk BYTES",
        f"(BYTES: the KV cache of {trace.block_size:,} tokens of your model)",
    ]
