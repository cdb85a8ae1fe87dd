"""The suffix of an output's name states its content: a name that states another content is refused.

A name without a suffix, or with one that is not in NAMED, is valid for any content.
"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path

from .errors import UsageError
from .files import SUFFIXES, is_regular
from .shell import pasted


class Content(Enum):
    """The content of an output: its name in messages, and its suffixes, the usual one first."""

    JSON_LINES = ("JSON lines", (".jsonl", ".ndjson"))
    JSON = ("JSON", (".json",))
    CSV = ("CSV", (".csv",))
    PARQUET = ("Parquet", (".parquet", ".pq"))
    HTML = ("HTML", (".html", ".htm"))
    MARKDOWN = ("Markdown", (".md", ".markdown"))
    DATASET = ("a data set", (".dataset",))
    SESSIONS = ("a folder of sessions", (".sessions",))
    ORACLE_GENERAL = ("oracleGeneral", (".oracleGeneral", ".oraclegeneral"))

    def __init__(self, words: str, suffixes: tuple[str, ...]) -> None:
        self.words, self.suffixes = words, suffixes


OTHERS = {
    ".tsv": "tab-separated values", ".xlsx": "Excel", ".xls": "Excel", ".pdf": "PDF", ".png": "PNG", ".svg": "SVG",
    ".jpg": "JPEG", ".jpeg": "JPEG", ".arrow": "Arrow", ".feather": "Arrow", ".avro": "Avro", ".orc": "ORC",
    ".xml": "XML", ".yaml": "YAML", ".yml": "YAML", ".toml": "TOML", ".pickle": "pickle", ".pkl": "pickle",
    ".npy": "NumPy", ".npz": "NumPy", ".sqlite": "SQLite", ".db": "a database", ".docx": "Word",
}  # fmt: skip
NAMED = {suffix: content.words for content in Content for suffix in content.suffixes} | OTHERS
PACKED = {
    ".gz": ".gz", ".gzip": ".gz", ".tgz": ".gz", ".zst": ".zst", ".zstd": ".zst", ".bz2": ".gz", ".xz": ".gz",
    ".lz4": ".zst", ".br": ".gz", ".lzma": ".gz", ".zip": ".gz", ".7z": ".gz", ".tar": ".gz", ".rar": ".gz",
}  # fmt: skip


def require_name(path: str | Path, content: Content, writer: str, *, option: str = "-o") -> None:
    """UsageError if the suffix of a name states another content, or a compression that would not happen.

    Args:
        path: The name of an output.
        content: What it will hold.
        writer: What writes that, as the subject of a sentence: "the format parquet", "a report".
        option: The option that names the output.

    Raises:
        UsageError: The name contradicts the content; the message has a name that does not.

    >>> require_name("day.jsonl", Content.PARQUET, "the format parquet")
    Traceback (most recent call last):
    kvtrace._base.errors.UsageError: day.jsonl: the suffix stands for JSON lines, but the format parquet is Parquet. \
Use -o day.parquet.
    """
    if not (is_regular(path) or os.path.isdir(path)):  # stdout, a pipe or a device
        return
    folder, base = os.path.split(str(path).rstrip(os.sep))
    stem, suffix = os.path.splitext(base)
    packing = suffix if suffix.lower() in PACKED else ""
    plain, inner = os.path.splitext(stem) if packing else (stem, suffix)
    stated = NAMED.get(inner.lower())
    if stated is not None and inner.lower() not in content.suffixes:
        packing = "" if content is Content.DATASET else packing and PACKED[packing.lower()]
        name = _free(os.path.join(folder, plain), content.suffixes[0] + packing)
        raise UsageError(
            f"{path}: the suffix stands for {stated}, but {writer} is {content.words}. Use {option} {pasted(name)}."
        )
    if packing and content is Content.DATASET:
        name = os.path.join(folder, stem)
        raise UsageError(f"{path}: a data set is a folder, which is not compressed. Use {option} {pasted(name)}.")
    if packing and packing not in SUFFIXES:
        name = _free(os.path.join(folder, plain), (inner or content.suffixes[0]) + PACKED[packing.lower()])
        raise UsageError(f"{path}: the file would not be compressed as {packing}. Use {option} {pasted(name)}.")


def _free(stem: str, suffix: str) -> str:
    """A name that no file has: it could be the input."""
    number, name = 1, stem + suffix
    while os.path.exists(name):
        number += 1
        name = f"{stem}-{number}{suffix}"
    return name
