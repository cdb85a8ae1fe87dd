"""Files for the clients that replay or simulate traces: each client is a file here and a row in TARGETS.

A client's module says in its first lines what the client needs, and holds `check_name` (of the file to be), `adapt` (a
Trace as the client can take it, and what was lost on the way), `write`, `usage` (what to call the client with) and
SIDECAR (whether the file can be read back as a trace).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ..._base.errors import UsageError
from ..._base.files import is_regular, is_std, write_together
from ...trace.trace import Trace
from .. import trace_files as formats
from ..sidecar import describe, dump, sidecar_path
from . import aiperf, azure, burstgpt, dynamo, guidellm, libcachesim, llmd, lmcache, sglang, vidur, vllm

TARGETS: dict[str, ModuleType] = {
    "aiperf": aiperf,
    "vllm": vllm,
    "sglang": sglang,
    "guidellm": guidellm,
    "dynamo": dynamo,
    "llm-d": llmd,
    "vidur": vidur,
    "azure": azure,
    "burstgpt": burstgpt,
    "lmcache": lmcache,
    "libcachesim": libcachesim,
}


@dataclass(frozen=True)
class Written:
    """What was written for a client: names of files, what was lost on the way, and what to call the client with."""

    files: list[str]
    losses: list[str]
    usage: list[str]


def write(trace: Trace, path: str | Path, to: str, *, first_id: int = 0, meta: Mapping | None = None) -> Written:
    """Write a trace as the client `to` needs it; UsageError if there is no such client or it can't take the trace.

    `-` is stdout. A file that can be read back as a trace has a sidecar beside it.
    """
    target = check_output(path, to)
    adapted, losses = target.adapt(trace)
    beside = [sidecar_path(path)] if target.SIDECAR and is_regular(path) else []
    with write_together(*beside, path) as streams:
        target.write(streams[-1], adapted, first_id=first_id, name=str(path))
        if beside:
            streams[0].write(dump(_description(adapted, to, first_id, meta)))
    return Written(
        [formats.name_of_output(path), *beside], losses, target.usage(adapted, "FILE" if is_std(path) else path)
    )


def check_output(path: str | Path, to: str) -> ModuleType:
    """The client's module; UsageError, before any work is done, if `write` could not write there."""
    if to not in TARGETS:
        raise UsageError(f"client is {to!r}; it is one of {', '.join(TARGETS)}.")
    formats.check_output(path, "mooncake")
    TARGETS[to].check_name(path)
    return TARGETS[to]


def _description(trace, to, first_id, meta):
    made = dict(trace.meta if meta is None else meta) | {"client": to}
    format = "bailian" if TARGETS[to] is llmd else "mooncake"
    return describe(trace, block_size=trace.block_size, tail=trace.tail, first_id=first_id, format=format, meta=made)
