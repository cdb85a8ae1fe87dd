"""Traces larger than memory: a folder of parts is read in a stream, and the bound is said before it starts."""

from __future__ import annotations

import click

from .output import console

MEMORY = click.option("--memory", metavar="SIZE", help="Refuse a folder of parts that may need more, as in 2GB.")


def opened(path, memory, block_size=None):
    """The folder of parts that a path names, and the memory that may be taken, in bytes; None for any other trace."""
    from .._base.errors import UsageError
    from .._base.memory import keep_little, parse_memory
    from ..formats import dataset as parts

    most = None if memory is None else parse_memory(memory)
    if not parts.is_dataset(path):
        if most is not None:
            raise UsageError(f"--memory goes with a folder of parts; {path} is read whole. Try `kvtrace convert {path} -o FOLDER/`.")
        return None, None
    keep_little()
    found = parts.open_dataset(path)
    if block_size not in (None, found.block_size):
        raise UsageError(f"{path}: the manifest says {found.block_size}, not --block-size {block_size}. Leave the option out.")
    return found, most


def say(need, most, quiet):
    """Refuse what does not fit, say what is needed otherwise."""
    need.require(most)
    if not quiet:
        console().print(f"memory      {need}", highlight=False, markup=False)
