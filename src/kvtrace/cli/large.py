"""Traces larger than memory: a data set is read as a stream, and its memory bound is printed before it starts."""

from __future__ import annotations

import click

from .output import console

MEMORY = click.option("--memory", metavar="SIZE", help="Stop if a data set may need more memory than SIZE, such as 2GB.")


def opened(path, memory, block_size=None):
    """The data set at a path and the memory limit in bytes; (None, None) for any other trace."""
    from .._base.errors import UsageError
    from .._base.memory import keep_little, parse_memory
    from ..formats import dataset as datasets

    max_bytes = None if memory is None else parse_memory(memory)
    if not datasets.is_dataset(path):
        if max_bytes is not None:
            raise UsageError(f"--memory needs a data set, but {path} is a single file. Try `kvtrace convert {path} -o FOLDER/`.")
        return None, None
    keep_little()
    dataset = datasets.open_dataset(path)
    if block_size not in (None, dataset.block_size):
        raise UsageError(f"{path}: the block size in the manifest is {dataset.block_size}, not {block_size}. Omit --block-size.")
    return dataset, max_bytes


def require_memory(need, max_bytes, quiet):
    """UsageError if the need exceeds the limit; otherwise print the need."""
    need.require(max_bytes)
    if not quiet:
        console().print(f"memory      {need}", highlight=False, markup=False)
