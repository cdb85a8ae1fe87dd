"""GuideLLM's `mooncake` data: Mooncake's rows, times in SECONDS, ids of 32 bits, exactly ceil(ISL / block) of them.

It recognises JSON Lines by the file's name.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from ..._base.errors import UsageError, pasted
from ..._base.files import Content, is_std, require_name
from ...trace.trace import Trace
from ..jsonl_write import lists, seconds, whole, write_rows
from .portable import adapt, require_small_ids

__all__ = ["SIDECAR", "adapt", "check_name", "usage", "write"]

SIDECAR = False  # kvtrace would read its seconds as milliseconds


def check_name(path: str | Path) -> None:
    """UsageError if GuideLLM cannot read a file with this name."""
    if not is_std(path) and not str(path).endswith(".jsonl"):
        require_name(path, Content.JSON_LINES, "the client's input")
        raise UsageError(f"{path}: GuideLLM needs a file name that ends in .jsonl. Rename the output.")


def write(stream: BinaryIO, trace: Trace, *, first_id: int = 0, name: str = "") -> None:
    """Write the rows as JSON Lines."""
    require_small_ids(trace, first_id)
    fields = {
        "timestamp": seconds(trace.timestamp),
        "input_length": whole(trace.input_length),
        "output_length": whole(trace.output_length),
        "hash_ids": lists(trace.hash_ids, trace.offsets),
    }
    write_rows(stream, trace, fields, first_id=first_id)


def usage(trace: Trace, path: str | Path) -> list[str]:
    """How to replay the file."""
    data = f"kind=mooncake,source.kind=json_file,source.path={pasted(path)},hash_id_block_size={trace.block_size}"
    return [f"guidellm run --profile kind=replay --data {data}"]
