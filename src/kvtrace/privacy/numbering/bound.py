"""How much memory the stages take on this machine: a bound before they start, and tasks small enough for one."""

from __future__ import annotations

from ..._base.errors import UsageError
from ..._base.memory import PROGRAM, Need
from .task_plan import BLOCKS

BLOCK = 200  # bytes of a block reference that a task holds: digests, contributors, and their sorts
FEWEST = 1 << 16  # blocks, below which tasks are mostly files


def running(workers: int, blocks: int = BLOCKS) -> Need:
    """What so many workers take at once, and the process that gives them their tasks.

    >>> running(2).total
    719430400
    """
    return Need({
        f"for {workers + 1} processes": (workers + 1) * PROGRAM,
        f"for {blocks:,} blocks in each of {workers} tasks at once": workers * BLOCK * blocks,
    }, remedy="Try fewer --workers")  # fmt: skip


def blocks_within(memory: int | None, workers: int) -> int:
    """Blocks that a task may hold so that all at once stay within so many bytes; UsageError where it can't be.

    >>> blocks_within(None, 2) == BLOCKS, blocks_within(500_000_000, 2)
    (True, 500000)
    """
    if memory is None:
        return BLOCKS
    running(workers, FEWEST).require(memory)
    return min(BLOCKS, (memory - (workers + 1) * PROGRAM) // (workers * BLOCK))


def require_folder(memory: int | None, output) -> None:
    """UsageError where a bound is asked for and the output is no folder of parts, whose audit has one."""
    from ...formats.dataset import has_dataset_name

    if memory is not None and not has_dataset_name(output):
        raise UsageError("--memory is kept where a folder of parts is written. Try -o FOLDER.dataset.")
