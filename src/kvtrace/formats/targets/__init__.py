"""Files for clients that replay or simulate traces: each client is one file of this folder and one row of TARGETS.

A client's module describes the client's needs, and has `check_name` (verifies the name of the output), `adapt` (returns
a Trace that the client can read, and the losses), `write`, `usage` (returns commands for the client), SIDECAR (whether
the file can be read back as a trace) and, if it is not mooncake, the FORMAT in which that is. It may also have
OUTPUTS_MAY_BE_UNKNOWN (the client needs no output lengths) and NEEDS_PREFIXES (it computes nothing but hits).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ..._base.errors import wrong_word
from ..._base.files import is_regular, is_std
from ..._base.lazy_table import LazyTable, modules
from ..._base.output_files import write_together
from ...trace.building import with_whole_prompts
from ...trace.columns import MEASURED, measured_of, replace_columns
from ...trace.meta import merge, without_claims
from ...trace.trace import Trace
from ...trace.unknown import PREFIXES, require_known, require_outputs
from .. import writing
from ..format_table import NAMES
from ..sidecar import describe, dump, sidecar_path
from .losses import Losses

TARGETS: LazyTable[ModuleType] = modules(__name__, (
    "aiperf", "vllm", "sglang", "guidellm", "dynamo", "dynamo-agentic", "llm-d", "vidur", "azure", "burstgpt",
    "lmcache", "libcachesim",
))  # fmt: skip
WAITING = ("dynamo-agentic",)  # clients that know dependencies


@dataclass(frozen=True)
class Written:
    """The files written for a client, the losses, and commands for the client."""

    files: list[str]
    losses: list[str]
    usage: list[str]


def write(
    trace: Trace, path: str | Path, to: str, *, first_id: int = 0, meta: Mapping[str, Any] | None = None
) -> Written:
    """Write a trace for the client `to`; UsageError for an unknown client or a trace that it cannot read.

    `-` is stdout. A file that can be read back as a trace also gets a sidecar.
    """
    target = check_output(path, to)
    _require_known(trace, target, to)
    split = Losses()
    split.complete_prompts(trace)
    whole = split.split_domains(with_whole_prompts(trace))
    split.left_out_measured(whole)
    drops_waits = to not in WAITING and (whole.dependencies is not None or whole.service_ms is not None)
    if drops_waits or measured_of(whole):
        columns = replace_columns(whole, **dict.fromkeys(MEASURED))
        if drops_waits:
            split.drop_waits(columns)
        whole = Trace(**vars(columns), block_size=whole.block_size, tail=whole.tail, meta=whole.meta)
    adapted, losses = target.adapt(whole)
    beside = [sidecar_path(path)] if target.SIDECAR and is_regular(path) else []
    with write_together(path, beside) as (rows, *sidecars):
        target.write(rows, adapted, first_id=first_id, name=str(path))
        for sidecar in sidecars:
            sidecar.write(dump(_description(adapted, to, first_id, meta)))
    return Written(
        [writing.name_of_output(path), *beside],
        split.sentences + losses,
        target.usage(adapted, "FILE" if is_std(path) else path),
    )


def check_output(path: str | Path, to: str) -> ModuleType:
    """The client's module; UsageError if `write` cannot write there."""
    if to not in TARGETS:
        raise wrong_word(to, "a format or a client", [*NAMES, *TARGETS])
    TARGETS[to].check_name(path)
    writing.require_place(path)
    return TARGETS[to]


def _require_known(trace: Trace, target: ModuleType, to: str) -> None:
    """UnknownError for what the client needs, and the trace does not know."""
    if getattr(target, "NEEDS_PREFIXES", False):
        require_known(trace, trace.meta, f"the file for {to}", PREFIXES)
    if not getattr(target, "OUTPUTS_MAY_BE_UNKNOWN", False):
        require_outputs(trace, to)


def _description(trace, to, first_id, meta):
    values = merge(without_claims(trace.meta if meta is None else meta), {"client": to})
    format = getattr(TARGETS[to], "FORMAT", "mooncake")
    return describe(trace, block_size=trace.block_size, tail=trace.tail, first_id=first_id, format=format, meta=values)
