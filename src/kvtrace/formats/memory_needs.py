"""How much memory each command needs for a data set: a bound that its manifest gives before any row is read.

The bytes of each term are those of the arrays that are made; docs/formats/large-traces.md adds them up, and a test
compares them with the peaks of processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from .._base.memory import PIECE, PROGRAM, Need
from .dataset import ROWS, Dataset


def analyzing(parts: Dataset) -> Need:
    """What `analyze` keeps: uses, last uses and distances of distinct blocks, and the runs that were found again."""
    return Need({
        "for the program and a piece": PROGRAM + PIECE,
        f"for {len(parts):,} requests": len(parts) * (_columns(parts, ("type",)) + 220),
        f"for {parts.distinct:,} distinct blocks": 12 * parts.distinct,
        "for reuse times": 16 * _again(parts),
    })  # fmt: skip


def curving(parts: Dataset, sample: float | None) -> Need:
    """What `curve` keeps: of all runs that are found again, or of a sample of the blocks."""
    requests = len(parts) * (_columns(parts, ()) + 160)
    if sample is None:
        what, runs = "for what is found again", 300 * _again(parts)
    else:
        what, runs = "for a sample up to twice as large as its share", 160 * sampled(parts, sample)
    return Need({
        "for the program and a piece": PROGRAM + PIECE,
        f"for {len(parts):,} requests": requests,
        f"for {parts.distinct:,} distinct blocks": 8 * parts.distinct,
        what: runs,
    }, remedy="Try --sample 0.01" if sample is None else "Try a smaller --sample")  # fmt: skip


def sampled(parts: Dataset, share: float) -> int:
    """References to blocks of a sample, twice as many as there should be: what a bound counts on."""
    return min(parts.blocks, int(2 * share * parts.blocks) + 1000)


def simulating(
    parts: Dataset, settings: Iterable, threads: int | None = None, *, per_request=False, beyond: str | None = None
) -> Need:
    """What `simulate` keeps: all ids as 32-bit numbers, and the state of as many caches as run at once."""
    settings = list(settings)
    states = sorted((_state(parts, setting) for setting in settings), reverse=True)
    at_once = states[: threads or os.cpu_count() or 1]
    demands = 1 + len({setting.demand_options for setting in settings})
    unknown = next(filter(None, map(_unknown, settings)), None)
    each = _columns(parts) + 40 + 75 * demands + 24 * len(settings)
    each += (40 * (5 + len(settings))) if per_request else 0
    return Need({
        "for the program and a piece": PROGRAM + PIECE,
        f"for {len(parts):,} requests": len(parts) * each,
        f"for {parts.blocks:,} ids": 4 * parts.blocks,
        f"for {len(at_once)} cache{'s' * (len(at_once) != 1)} at once": max(sum(at_once), 8 * parts.distinct),
    }, remedy="Try --no-gap, which leaves out the offline optimum, fewer settings, or --workers 1",
        beyond=beyond or unknown)  # fmt: skip


def _state(parts, setting) -> int:
    """Bytes of a pool's state for blocks: those of its policy's row, or a bound for heaps and leaf-first pools."""
    block_bytes = setting.row and setting.row.block_bytes
    if block_bytes and dict(setting.engine_options).get("pool", "flat") == "flat":
        queues = min(48 * parts.distinct, 6 * parts.blocks)  # a log takes up to 8 times what is in line, or all uses
        return block_bytes * parts.distinct + queues
    return 64 * parts.distinct + 16 * parts.blocks  # heaps of blocks, or a look ahead


def _unknown(setting) -> str | None:
    """What no bound is known for in a setting."""
    if setting.engine != "reference":
        return f"engine {setting.engine}"
    if setting.mode == "grow":
        return "mode grow"
    if setting.row is None:
        return "a policy of your own"
    return f"policy {setting.policy}" if setting.row.block_bytes is None else None


def converting(parts: Dataset) -> Need:
    """What `convert` keeps where it verifies rows and passes them on: a piece, and the part that is written."""
    rows = min(ROWS, len(parts))
    references = -(-rows * (parts.blocks + parts.output_blocks) // max(1, len(parts)))
    return Need({
        "for the program and a piece": PROGRAM + PIECE,
        f"for {len(parts):,} requests": len(parts) * (_columns(parts) + 60),
        f"for {parts.distinct:,} distinct blocks": 8 * parts.distinct,
        "for the part that is written": 2 * (40 * references + rows * (_columns(parts) + 100)),
    })  # fmt: skip


def whole(parts: Dataset, what: str) -> Need:
    """What it takes to have all of it in memory, which `what` asks for."""
    references = parts.blocks + parts.output_blocks
    each = 128 if what == "--chain" else 72
    return Need({
        "for the program": PROGRAM,
        f"for the whole, which {what} needs": each * references + 40 * parts.distinct,
        f"for {len(parts):,} requests": len(parts) * (2 * _columns(parts) + 400),
    }, remedy=f"Try it without {what}")  # fmt: skip


def _columns(parts, extra: tuple[str, ...] | None = None) -> int:
    """Bytes of a request's own columns, and of the `extra` ones that are kept (None = all) with room for short texts.

    Conversations are looked at turn by turn: eight numbers for each that is there.
    """
    names = parts.names()
    linked = 64 * sum(name in names for name in ("session", "parent"))
    kept = [name for name in names if name.startswith("extra.") and (extra is None or name[6:] in extra)]
    return 40 + linked + (8 if parts.output_blocks else 0) + 120 * len(kept)


def _again(parts) -> int:
    """References that can be to a block which was there before."""
    return parts.blocks - max(0, parts.distinct - parts.output_blocks)
