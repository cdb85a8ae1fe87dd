"""libCacheSim's traces, https://github.com/1a1a11a/libCacheSim: one row for each block, as CSV or binary oracleGeneral.

A name that ends in .csv selects CSV. A block is an object of size 1, so capacities count blocks. The rule that a hit is
a leading run is lost: libCacheSim counts each block separately.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..._base.errors import pasted
from ..._base.files import SUFFIXES, Content, require_name
from ...trace.columns import replace_columns
from ...trace.trace import Trace
from .lengths import write_table
from .losses import Losses

__all__ = ["NEEDS_PREFIXES", "OUTPUTS_MAY_BE_UNKNOWN", "SIDECAR", "adapt", "check_name", "usage", "write"]

NEEDS_PREFIXES = OUTPUTS_MAY_BE_UNKNOWN = True
SIDECAR = False
CSV_COLUMNS = ("time", "obj_id", "obj_size")  # its CSV reader has no next access: Belady needs the binary format
NEVER = -1  # next access of a block that is not used again
RECORD = np.dtype([("time", "<u4"), ("obj_id", "<u8"), ("obj_size", "<u4"), ("next_access_vtime", "<i8")])  # packed


def adapt(trace: Trace) -> tuple[Trace, list[str]]:
    """The trace with columns of blocks only, and the losses."""
    losses = Losses()
    columns = replace_columns(trace)
    losses.drop_outputs(columns)
    losses.drop_sessions(columns)
    losses.drop_extra(columns)
    losses.sentences.append("requests were split: each block counts separately, not as part of a leading run.")
    return Trace.from_columns(columns, block_size=trace.block_size, tail=trace.tail, meta=trace.meta), losses.sentences


def check_name(path: str | Path) -> None:
    """UsageError if the name states another content than CSV or oracleGeneral."""
    content = Content.CSV if is_csv(str(path)) else Content.ORACLE_GENERAL
    require_name(path, content, "the client's input")


def write(stream: BinaryIO, trace: Trace, *, first_id: int = 0, name: str = "") -> None:
    """Write one record for each block reference, in time order, each root first; times are whole seconds."""
    records = np.empty(len(trace.hash_ids), dtype=RECORD)
    records["time"] = np.repeat(trace.timestamp // 1000, trace.prompt_blocks)
    records["obj_id"] = trace.hash_ids + first_id
    records["obj_size"] = 1
    records["next_access_vtime"] = next_uses(trace.hash_ids)
    if is_csv(name):
        columns = (records[name].tolist() for name in CSV_COLUMNS)
        write_table(stream, ",".join(CSV_COLUMNS), zip(*columns, strict=True), "{},{},{}\n".format, count=len(records))
    else:
        stream.write(records.tobytes())


def next_uses(ids: np.ndarray) -> np.ndarray:
    """The place of the next reference to the same block, NEVER if there is none.

    >>> next_uses(np.array([0, 1, 0, 0]))
    array([ 2, -1,  3, -1])
    """
    order = np.argsort(ids, kind="stable")
    again = ids[order[1:]] == ids[order[:-1]]
    following = np.full(len(ids), NEVER, dtype=np.int64)
    following[order[:-1][again]] = order[1:][again]
    return following


def is_csv(name: str) -> bool:
    """Whether a file's name selects CSV."""
    plain = name.removesuffix(next((suffix for suffix in SUFFIXES if name.endswith(suffix)), ""))
    return plain.lower().endswith(".csv")


def usage(trace: Trace, path: str | Path) -> list[str]:
    """How to simulate with the file."""
    if is_csv(str(path)):
        columns = "time-col=1,obj-id-col=2,obj-size-col=3,has-header=true,delimiter=,"
        return [f'cachesim {pasted(path)} csv lru CAPACITY -t "{columns}"']
    return [f"cachesim {pasted(path)} oracleGeneral lru CAPACITY"]
