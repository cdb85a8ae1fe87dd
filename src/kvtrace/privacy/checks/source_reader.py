"""Open the audited file or data set with the reader of its kind."""

from __future__ import annotations

import os

from ..._base.input_files import open_read
from ...formats import dataset as datasets
from ...formats import parquet
from . import source_parquet, source_rows
from .source import ReleaseSource, Take


def read(path, format: str | None, see: Take) -> ReleaseSource:
    """Read a file or a data set; `see` gets the block ids during this first pass."""
    if is_dataset(path, format):
        return source_parquet.read_dataset(path, see)
    with open_read(path) as stream:
        if format == "parquet" or (format is None and stream.peek(4)[:4] == parquet.MAGIC):
            return source_parquet.read_parquet(path, stream, see)
        return source_rows.read_rows(path, stream, format, see)


def is_dataset(path, format: str | None = None) -> bool:
    """Whether the audit reads a data set: by format, or a folder that is one by content or name."""
    is_folder = os.path.isdir(path) and (datasets.is_dataset(path) or datasets.has_dataset_name(path))
    return format == "dataset" or (format is None and is_folder)
