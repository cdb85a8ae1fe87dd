"""The memory that each command needs for a data set: a bound computed from its manifest, before any row is read.

Each term counts the bytes of the arrays that the command allocates. docs/ingest/large.md lists them, and a test
compares the bounds with the peaks of processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from .._base.memory import PIECE, PROGRAM, MemoryNeed
from ..trace.columns import NUMBERS
from .dataset import ROWS, Dataset

DEPENDENCY = 120  # bytes: its four values, once in a piece and once in the whole, the request that it belongs to, masks
ANALYZED = ("type", "agent", "input_types", "stop")  # the extra columns that `analyze` reads


def analyzing(dataset: Dataset) -> MemoryNeed:
    """The memory of `analyze`: uses, last uses and distances of distinct blocks, their places, and reused runs."""
    has_sessions = "session" in dataset.names()
    return MemoryNeed({
        "for the program and a piece": PROGRAM + PIECE,
        f"for {len(dataset):,} requests": len(dataset) * (_columns(dataset, ANALYZED) + 220 + 160 * has_sessions),
        f"for {dataset.distinct:,} distinct blocks": (12 + 13 * has_sessions) * dataset.distinct,
        "for reuse times": 16 * _reuses(dataset),
    })  # fmt: skip


def curving(dataset: Dataset, sample: float | None) -> MemoryNeed:
    """The memory of `curve`: for all reused runs, or for a sample of the blocks."""
    requests = len(dataset) * (_columns(dataset, ()) + 160)
    if sample is None:
        purpose, runs = "for reused runs", 300 * _reuses(dataset)
    else:
        purpose, runs = "for a sample of up to twice its share", 160 * sampled(dataset, sample)
    return MemoryNeed({
        "for the program and a piece": PROGRAM + PIECE,
        f"for {len(dataset):,} requests": requests,
        f"for {dataset.distinct:,} distinct blocks": 8 * dataset.distinct,
        purpose: runs,
    }, remedy="Try --sample 0.01" if sample is None else "Try a smaller --sample")  # fmt: skip


def sampled(dataset: Dataset, share: float) -> int:
    """The block references in a sample that a bound assumes: twice the expected number."""
    return min(dataset.blocks, int(2 * share * dataset.blocks) + 1000)


def simulating(
    dataset: Dataset,
    settings: Iterable[Any],
    threads: int | None = None,
    *,
    per_request=False,
    beyond: str | None = None,
) -> MemoryNeed:
    """The memory of `simulate`: all ids as 32-bit numbers, and the state of the caches that run at once."""
    settings = list(settings)
    states = sorted((_state(dataset, setting) for setting in settings), reverse=True)
    at_once = states[: threads or os.cpu_count() or 1]
    demands = 1 + len({setting.demand_options for setting in settings})
    unknown = next(filter(None, map(_unknown, settings)), None)
    each = _columns(dataset) + 40 + 75 * demands + 24 * len(settings)
    each += (40 * (5 + len(settings))) if per_request else 0
    return MemoryNeed({
        "for the program and a piece": PROGRAM + PIECE,
        f"for {len(dataset):,} requests": len(dataset) * each,
        f"for {dataset.blocks:,} ids": 4 * dataset.blocks,
        f"for {len(at_once)} cache{'s' * (len(at_once) != 1)} at once": max(sum(at_once), 8 * dataset.distinct),
    }, remedy="Try --no-gap, which leaves out the offline optimum, fewer settings, or --workers 1",
        beyond=beyond or unknown)  # fmt: skip


def _state(dataset, setting) -> int:
    """Bytes of a pool's state for blocks: those of its policy's row, or a bound for heaps and leaf-first pools."""
    block_bytes = setting.row and setting.row.block_bytes
    if block_bytes and dict(setting.engine_options).get("pool", "flat") == "flat":
        queues = min(48 * dataset.distinct, 6 * dataset.blocks)  # a log takes up to 8 times the queue, or all uses
        return block_bytes * dataset.distinct + queues
    return 64 * dataset.distinct + 16 * dataset.blocks  # heaps of blocks, or a look ahead


def _unknown(setting) -> str | None:
    """The part of a setting whose memory is not bounded."""
    if setting.engine != "reference":
        return f"engine {setting.engine}"
    if setting.mode == "grow":
        return "mode grow"
    if setting.row is None:
        return "a policy of your own"
    return f"policy {setting.policy}" if setting.row.block_bytes is None else None


def converting(dataset: Dataset) -> MemoryNeed:
    """The memory of a streamed `convert`: a piece, and the part that it writes."""
    rows = min(ROWS, len(dataset))
    references = -(-rows * (dataset.blocks + dataset.output_blocks) // max(1, len(dataset)))
    return MemoryNeed({
        "for the program and a piece": PROGRAM + PIECE,
        f"for {len(dataset):,} requests": len(dataset) * (_columns(dataset) + 60),
        f"for {dataset.distinct:,} distinct blocks": 8 * dataset.distinct,
        "for the part being written": 2 * (40 * references + rows * (_columns(dataset) + 100)),
    })  # fmt: skip


def whole(dataset: Dataset, what: str) -> MemoryNeed:
    """The memory of a command that reads the whole data set; `what` names the option that needs it."""
    references = dataset.blocks + dataset.output_blocks
    each = 128 if what == "--chain" else 72
    return MemoryNeed({
        "for the program": PROGRAM,
        f"for the whole trace, which {what} needs": each * references + 40 * dataset.distinct,
        f"for {len(dataset):,} requests": len(dataset) * (2 * _columns(dataset) + 400),
    }, remedy=f"Omit {what}")  # fmt: skip


def _columns(dataset, extra: tuple[str, ...] | None = None) -> int:
    """Bytes of a request's columns and of the given `extra` columns (None = all), assuming short strings.

    Sessions, parents and measured numbers need eight numbers each; what requests wait for is counted in the parts.
    """
    names = dataset.names()
    linked = 64 * sum(name in names for name in ("session", "parent", "domain", *NUMBERS))
    if "dependencies" in names and len(dataset):
        linked += 32 + -(-DEPENDENCY * dataset.count_dependencies() // len(dataset))
    extra_columns = [name for name in names if name.startswith("extra.") and (extra is None or name[6:] in extra)]
    return 40 + linked + (8 if dataset.output_blocks else 0) + 120 * len(extra_columns)


def _reuses(dataset) -> int:
    """The maximum number of references to a block that appeared before."""
    return dataset.blocks - max(0, dataset.distinct - dataset.output_blocks)
