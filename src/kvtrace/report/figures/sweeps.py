"""A sweep: the block hit rate by capacity, one panel for each trace and block size, one line for each setting."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ...cache.sweeps.table import SweepTable
from ..plots.plot import MAX_LINES, Axis, Panel, Plot, Series, bars, rate_axis

MAX_PANELS = 6
LINES = ("engine", "policy", "mode", "schedule")


def plot(sweep: SweepTable) -> Plot:
    """The mean over seeds of the block hit rate of each setting. Failed cells are left out.

    >>> plot(SweepTable([])).panels[0].missing
    'no cell has a result.'
    """
    rows = [row for row in sweep.rows if not row["error"]]
    if not rows:
        return Plot("Sweep", "", [Panel("Sweep", missing="no cell has a result.")])
    groups = _grouped(rows, ("trace", "block_size"))
    names = [name for name in LINES if len({row[name] for row in rows}) > 1]
    panels = [_panel(_title(key, groups), group, names) for key, group in list(groups.items())[:MAX_PANELS]]
    left = len(groups) - MAX_PANELS
    more = f" {left} more traces and block sizes are not drawn." if left > 0 else ""
    return Plot("Hits of a sweep", f"Block hit rate by capacity; the mean over seeds.{more}", panels)


def _title(key: tuple[Any, ...], groups: Iterable[tuple[Any, ...]]) -> str:
    """The label of a panel: the trace, the block size, or both, as far as they differ."""
    trace, size = key
    parts = [str(trace)] if len({one for one, _ in groups}) > 1 else []
    parts += [f"blocks of {size:,} tokens"] if len({one for _, one in groups}) > 1 else []
    return ", ".join(parts) or "Block hit rate"


def _panel(title: str, rows: list[dict[str, Any]], names: list[str]) -> Panel:
    lines = {", ".join(map(str, key)) or rows[0]["policy"]: group for key, group in _grouped(rows, names).items()}
    top = max(row["block_hit_rate"] for row in rows)
    axis = rate_axis("block hit rate", top)
    if len({row["capacity"] for row in rows}) == 1:
        means = {name: float(np.mean([row["block_hit_rate"] for row in group])) for name, group in lines.items()}
        return bars(f"{title}, {rows[0]['capacity']:,} blocks", axis, means)
    series = [_line(name, group, number) for number, (name, group) in enumerate(list(lines.items())[:MAX_LINES])]
    note = f"{len(lines) - MAX_LINES} more settings are not drawn." if len(lines) > MAX_LINES else ""
    return Panel(title, Axis("capacity (blocks)", log=True), axis, series, note=note)


def _line(name: str, rows: list[dict[str, Any]], colour: int) -> Series:
    points = sorted(_grouped(rows, ("capacity",)).items())
    rates = [float(np.mean([row["block_hit_rate"] for row in group])) for _, group in points]
    return Series(name, np.array([key[0] for key, _ in points]), np.array(rates), colour, "dots")


def _grouped(rows: list[dict[str, Any]], names: Iterable[str]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups
