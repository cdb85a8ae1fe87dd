"""The CSV of `kvtrace compare --csv`: one row for each figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._base.tables import csv_text

if TYPE_CHECKING:
    from ..analysis.comparison import Comparison


def as_csv(comparison: Comparison) -> str:
    """A header, and one line for each figure. Only distributions have relative errors."""
    return csv_text(comparison.to_rows(), ["figure", "score", "distance", "a", "b"])
