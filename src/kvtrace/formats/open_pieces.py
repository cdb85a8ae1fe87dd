"""Open a trace of any format, to read it piece by piece. The content determines the format, not the name."""

from __future__ import annotations

import os
from pathlib import Path

from .._base.errors import InputError
from .._base.files import is_regular, name_of
from .._base.input_files import open_read
from . import agentic_mooncake, parquet, weka
from . import dataset as datasets
from .file_kinds import require_trace
from .format_table import require_format
from .open_agentic import OpenAgentic
from .open_parquet import OpenDataset, OpenParquet, PackedParquet
from .open_rows import OpenRows
from .opened import OpenTrace
from .seen_words import SeenWords


def open_pieces(path: str | Path, *, format: str | None = None, threads: int | None = None) -> OpenTrace:
    """Open a trace file or a data set, to read it piece by piece.

    Args:
        path: A file (plain, gzip or zstd), a data set, or `-` for stdin.
        format: One of NAMES. By default inferred from the content.
        threads: Parser threads for JSON Lines; the default is one a core.

    Returns:
        The open trace; its rows are still to be read. Unreadable rows are listed in `unread`.

    Raises:
        InputError: The file cannot be read at all, or holds Weka sessions; also later, when its pieces are read.
        UsageError: The format is unknown.

    >>> import tempfile
    >>> from kvtrace.formats import writing
    >>> from kvtrace.trace.building import toy
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = writing.write(toy("0 1", "0 2"), f"{folder}/day.dataset")
    ...     open_pieces(f"{folder}/day.dataset").read().result.columns.input_length
    array([2, 2])
    """
    require_format(format)
    if names_dataset(path, format):
        return OpenDataset(path)
    if format == "weka" or (format is None and weka.holds_sessions(path)):
        name = name_of(path)
        raise InputError(
            f"{name}: holds Weka sessions: a recording, not a release. To release it: kvtrace release {name} -o TRACE"
        )
    require_trace(path)
    seen = SeenWords(repeats=is_regular(path))
    stream = open_read(path, seen=seen)
    try:
        if format == "parquet" or (format is None and stream.peek(4)[:4] == parquet.MAGIC):
            opened: OpenTrace = OpenParquet(path, stream) if OpenParquet.fits(stream) else PackedParquet(path, stream)
        elif agentic_mooncake.is_of(format, stream):
            opened = OpenAgentic(path, stream)
        else:
            opened = OpenRows(path, stream, format, threads)
    except BaseException:
        stream.close()
        raise
    opened.seen = seen
    return opened


def names_dataset(path: str | Path, format: str | None = None) -> bool:
    """Whether a path is read as a data set: by format, or a folder that is one by content or name."""
    is_folder = os.path.isdir(path) and (datasets.is_dataset(path) or datasets.has_dataset_name(path))
    return format == "dataset" or (format is None and is_folder)
