"""What `kvtrace sweep` shows: one row a cell, with the columns in which cells differ."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.table import Table as Shown

from ..cache.engines import DEFAULTS
from ..cache.sweeps.cells import SETTINGS
from ..cache.sweeps.table import SweepTable
from .curve_tables import RATES

TEXTS = {"trace", "engine", "mode", "schedule", "policy", *DEFAULTS}
REASONS = 5
MOST = 40  # rows that are printed when there is a file that has them all


def tables(table: SweepTable) -> list[Shown]:
    """The table for people: settings that all cells share go into the title, and what failed has no counts."""
    rows = table.rows
    own = [name for name in SETTINGS if len({row[name] for row in rows}) > 1 or name in ("policy", "capacity")]
    engine_options = [name for name, usual in DEFAULTS.items() if any(row[name] not in (None, usual) for row in rows)]
    same = [name for name in ("trace", "engine", "mode", "schedule", "block_size") if name not in own]
    title = ", ".join(["Hits of prefix caches", *(_said(name, rows[0][name]) for name in same)])
    shown = Shown(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in (*own, *engine_options):
        shown.add_column(name.replace("_", " "), justify="left" if name in TEXTS else "right", no_wrap=True)
    for name in ("hit blocks", *(f"{rate} hit rate" for rate in RATES.values()), "evictions", "early frees"):
        shown.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        shown.add_row(
            *(str(row[name] or "") if name in TEXTS else _number(row[name]) for name in (*own, *engine_options)),
            _number(row["hit_blocks"]), *(_rate(row[rate]) for rate in RATES),
            _number(row["evictions"]), _number(row["early_frees"]),
        )  # fmt: skip
    return [shown]


def faults(table: SweepTable) -> list[str]:
    """How many cells could not be run, and why: a line for each of the first reasons."""
    if not table.failed:
        return []
    reasons = Counter(row["error"] for row in table.failed)
    lines = [f"{len(table.failed):,} of {len(table.rows):,} cells could not be run; the column error says why."]
    lines += [f"{count:>8,} x {reason}" for reason, count in reasons.most_common(REASONS)]
    return lines + ([f"         and {len(reasons) - REASONS:,} other reasons"] if len(reasons) > REASONS else [])


def _said(name: str, value: Any) -> str:
    return f"blocks of {value:,} tokens" if name == "block_size" else f"{name} {value}"


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
