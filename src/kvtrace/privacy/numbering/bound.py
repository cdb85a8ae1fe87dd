"""The memory that the stages need on this machine: a bound before they start, and the task size that fits it."""

from __future__ import annotations

from ..._base.errors import UsageError
from ..._base.memory import PROGRAM, Need
from .task_plan import BLOCKS

BLOCK = 200  # bytes a block reference in a task: digests, contributors, and their sorts
ROW_BLOCK, ROW = 53, 310  # bytes a block reference (each may be a distinct block) and a request in one process
MIN_BLOCKS = 1 << 16  # smaller tasks would mostly open files


def running(workers: int, blocks: int = BLOCKS) -> Need:
    """The memory of the workers and of the main process.

    >>> running(2).total
    719430400
    """
    return Need({
        f"for {workers + 1} processes": (workers + 1) * PROGRAM,
        f"for {blocks:,} blocks in each of {workers} tasks at once": workers * BLOCK * blocks,
    }, remedy="Try fewer --workers")  # fmt: skip


def in_one_process(requests: int, blocks: int) -> Need:
    """The memory to number and release rows without stages, after they were encoded.

    >>> in_one_process(1_000_000, 30_000_000).total
    2000000000
    """
    return Need({
        "for this process": PROGRAM,
        f"for {blocks:,} block references": ROW_BLOCK * blocks,
        f"for {requests:,} requests": ROW * requests,
    }, remedy="One process holds all rows for these options: give it more memory, or choose other options")  # fmt: skip


def blocks_within(memory: int | None, workers: int) -> int:
    """The blocks in each task that keep all workers within `memory` bytes; UsageError if it is too small.

    >>> blocks_within(None, 2) == BLOCKS, blocks_within(500_000_000, 2)
    (True, 500000)
    """
    if memory is None:
        return BLOCKS
    running(workers, MIN_BLOCKS).require(memory)
    return min(BLOCKS, (memory - (workers + 1) * PROGRAM) // (workers * BLOCK))


def require_folder(memory: int | None, output) -> None:
    """UsageError if memory is limited and the output is not a data set: other audits have no memory bound."""
    from ...formats.dataset import has_dataset_name

    if memory is not None and not has_dataset_name(output):
        raise UsageError("--memory needs a data set as output. Try -o FOLDER.dataset.")
