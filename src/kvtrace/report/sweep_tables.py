"""The table of `kvtrace sweep`: one row for each cell, with the columns in which cells differ."""

from __future__ import annotations

from collections import Counter
from typing import Any

from .._base.tables import TextTable
from ..cache.engines import DEFAULTS
from ..cache.sweeps.cells import SETTINGS
from ..cache.sweeps.table import SweepTable
from .curve_tables import RATES
from .simulation import ENDED_EARLY, MEANINGS, in_words

TEXTS = {"trace", "engine", "mode", "schedule", "policy", *DEFAULTS}
MAX_REASONS = 5  # printed reasons of failed cells
MAX_ROWS = 40  # a larger table is only written to the file


def tables(sweep: SweepTable) -> list[TextTable]:
    """The table. Settings that all cells share are in the title; failed cells have no counts."""
    rows = sweep.rows
    own = [name for name in SETTINGS if len({row[name] for row in rows}) > 1 or name in ("policy", "capacity")]
    options = [name for name, default in DEFAULTS.items() if any(row[name] not in (None, default) for row in rows)]
    same = [name for name in ("trace", "engine", "mode", "schedule", "block_size") if name not in own]
    same = [name for name in same if (name, rows[0][name]) != ("mode", "block")]
    title = ", ".join(["Hits of prefix caches", *(_phrase(name, rows[0][name]) for name in same)])
    table = TextTable(title, remedy="use -o FILE.csv or a wider terminal")
    for name in (*own, *options):
        table.add_column(name.replace("_", " "), right=name not in TEXTS, rank=0)
    table.add_column("hit blocks", right=True, rank=4)
    for rate, name in RATES.items():
        table.add_column(f"{name} hit rate", right=True, rank=1 if rate == "block_hit_rate" else 3)
    ended_early = any(row["early_frees"] for row in rows)
    if ended_early:
        table.add_column(ENDED_EARLY, right=True, rank=2)
        table.legend[ENDED_EARLY] = MEANINGS[ENDED_EARLY]
    for row in rows:
        table.add_row(
            *(str(row[name] or "") if name in TEXTS else _number(row[name]) for name in (*own, *options)),
            _number(row["hit_blocks"]), *(_rate(row[rate]) for rate in RATES),
            *([_number(row["early_frees"])] if ended_early else []),
        )  # fmt: skip
    return [table]


def failure_lines(sweep: SweepTable) -> list[str]:
    """The number of failed cells, and a line for each of the most common reasons."""
    if not sweep.failed:
        return []
    reasons = Counter(row["error"] for row in sweep.failed)
    lines = [f"{len(sweep.failed):,} of {len(sweep.rows):,} cells failed; the column `error` has the reasons."]
    lines += [f"{count:>8,} x {reason}" for reason, count in reasons.most_common(MAX_REASONS)]
    return lines + (
        [f"         and {len(reasons) - MAX_REASONS:,} other reasons"] if len(reasons) > MAX_REASONS else []
    )


def _phrase(name: str, value: Any) -> str:
    words = (
        {"block_size": f"blocks of {value:,} tokens"} if name == "block_size" else {"schedule": in_words(str(value))}
    )
    return words.get(name, f"{name} {value}")


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
