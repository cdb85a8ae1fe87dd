"""Open a trace for one computation: a data set as a stream within a memory limit, any other file in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .._base.errors import UsageError
from .._base.memory import Need, keep_little
from .._base.shell import pasted
from ..trace.trace import Trace
from . import dataset as datasets
from . import memory_needs, reading
from .dataset import Dataset
from .lazy import LazyTrace

DOMAINS = "the column domain"  # its views need all ids at once


def open_trace(
    path: str | Path,
    *,
    block_size: int | None = None,
    extra: tuple[str, ...] | None = None,
    ids: bool = False,
    chain: bool = False,
    whole: str | None = None,
    memory: int | None = None,
    need: Callable[[Dataset], Need] | None = None,
    on_need: Callable[[Need], None] | None = None,
) -> Trace:
    """Open a trace: a data set as a stream of pieces, unless all of it is needed; any other file in memory.

    Args:
        path: The file, the data set, or `-` for stdin.
        block_size: Tokens per block. Default: from the sidecar, else inferred.
        extra: The extra columns that are needed of a data set; an empty tuple leaves them out of any trace.
        ids: Also keep the ids of a data set in memory, as 32-bit numbers.
        chain: Re-chain ids that were hashed without their prefix; a data set is then read whole.
        whole: The option that needs a data set whole, such as `--fold`.
        memory: Bytes that a data set may need.
        need: The memory that the computation needs for a data set; `formats.memory_needs` has those of the commands.
        on_need: Receives that memory before the first row is read.

    Returns:
        A Trace, or a `LazyTrace` that `analyze`, `hit_curve` and simulations read piece by piece. A data set with
        isolation domains is read whole.

    Raises:
        UsageError: The data set may need more memory, `memory` is given for another file, or the block size is not
            that of the data set.
        InputError: The file is not a valid trace.

    >>> import tempfile, kvtrace
    >>> from kvtrace.trace.building import toy
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = kvtrace.write(toy("0 1", "0 2", block_size=4), f"{folder}/day.dataset")
    ...     trace = open_trace(f"{folder}/day.dataset", memory=10**9, need=memory_needs.analyzing, on_need=print)
    ...     kvtrace.analyze(trace).basics.hits.block_hit_rate
    needs at most 201 MB: 200 MB for the program and a piece
    0.25
    """
    dataset = dataset_at(path, block_size=block_size, memory=memory)
    whole = "--chain" if chain else whole
    if dataset is not None:
        whole = whole or (DOMAINS if "domain" in dataset.names() else None)
        bound = memory_needs.whole(dataset, whole) if whole else need(dataset) if need else None
        if bound is not None:
            require_memory(bound, memory, on_need)
        if not whole:
            return LazyTrace(dataset, ids=ids, extra=extra)
    trace = reading.read(path, block_size=block_size, extra="ignore" if extra == () else "keep")
    return trace.chained() if chain else trace


def dataset_at(path: str | Path, *, block_size: int | None = None, memory: int | None = None) -> Dataset | None:
    """The data set at a path, or None for any other trace; UsageError if `block_size` or `memory` does not fit it."""
    if not datasets.is_dataset(path):
        if memory is not None:
            raise UsageError(
                f"--memory needs a data set, but {path} is a single file. "
                f"Try `kvtrace convert {pasted(path)} -o FOLDER/`."
            )
        return None
    keep_little()
    dataset = datasets.open_dataset(path)
    if block_size not in (None, dataset.block_size):
        raise UsageError(
            f"{path}: the block size in the manifest is {dataset.block_size}, not {block_size}. Omit --block-size."
        )
    return dataset


def require_memory(need: Need, memory: int | None, on_need: Callable[[Need], None] | None = None) -> None:
    """Pass a need on; UsageError if it exceeds the limit."""
    need.require(memory)
    if on_need:
        on_need(need)
