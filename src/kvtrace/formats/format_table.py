"""The trace formats: each is one file of this folder, and one row of FORMATS, or of FOLDERS if it is no stream."""

from __future__ import annotations

from types import ModuleType

from .._base.errors import UsageError
from . import agentic_mooncake, bailian, mooncake, parquet

FORMATS: dict[str, ModuleType] = {
    "mooncake": mooncake,
    "bailian": bailian,
    "agentic-mooncake": agentic_mooncake,
    "parquet": parquet,
}
FOLDERS = ("dataset", "weka")  # formats of a folder; sessions of Weka (weka.py) may also be a single file
NAMES = (*FORMATS, *FOLDERS)


def require_format(format: str | None) -> None:
    """UsageError for an unknown format; None means that the format is inferred."""
    if format not in (None, *NAMES):
        raise UsageError(f"{format!r} is not a trace format. Choose one of {', '.join(NAMES)}.")


def format_of(keys) -> str:
    """The format of rows with these keys: those of Qwen-Bailian have request names, and times in seconds."""
    return "bailian" if any(mark in keys for mark in bailian.MARKS) else "mooncake"
