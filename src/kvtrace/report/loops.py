"""The open and the closed loop side by side: the difference of each closed run to the open run before it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from .._base.tables import TextTable

FIGURES = {  # name in the table -> keys of a result, and how it is written
    "block hit rate": (("block_hit_rate",), "{:.4f}"),
    "token hit rate": (("token_hit_rate",), "{:.4f}"),
    "TTFT p50 (s)": (("ttft_s", "p50"), "{:.3f}"),
    "TTFT p90 (s)": (("ttft_s", "p90"), "{:.3f}"),
    "TTFT p99 (s)": (("ttft_s", "p99"), "{:.3f}"),
    "TPOT p50 (ms)": (("tpot_s", "p50"), "{:.1f}"),
    "end to end p50 (s)": (("e2e_s", "p50"), "{:.3f}"),
    "requests per second": (("requests_per_s",), "{:.3f}"),
    "requests counted": (("requests",), "{:,.0f}"),
}


def compare_loops(results: list[dict[str, Any]]) -> None:
    """Add to each result of a closed loop its difference to the open loop, the result before it.

    >>> rows = [{"requests_per_s": 2.0}, {"requests_per_s": 3.5, "loop": {"lanes": 4}}]
    >>> compare_loops(rows)
    >>> rows[1]["difference"]
    {'requests_per_s': 1.5}
    """
    for before, row in pairwise(results):
        if "loop" in row:
            keys = [keys for keys, _ in FIGURES.values() if keys[0] in row and keys[0] != "requests"]
            row["difference"] = {"_".join(keys): _value(row, keys) - _value(before, keys) for keys in keys}


def loop_tables(results: list[dict[str, Any]]) -> list[TextTable]:
    """A table for each result of a closed loop: the open loop, the closed one, and the difference."""
    pairs = [(before, row) for before, row in pairwise(results) if "loop" in row]
    return [_table(before, row, many=len(pairs) > 1) for before, row in pairs]


def _table(before: dict[str, Any], row: dict[str, Any], *, many: bool) -> TextTable:
    loop = row["loop"]
    which = f", {row['engine']}, {row['policy']}, {row['capacity']:,} blocks, {row['router']}" if many else ""
    table = TextTable(f"Open and closed loop, {loop['lanes']:,} {'lane' if loop['lanes'] == 1 else 'lanes'}{which}")
    table.add_columns([""])
    table.add_columns(["open", "closed", "difference"], right=True)
    for name, (keys, text) in FIGURES.items():
        scale = 1000 if "(ms)" in name else 1
        old, new = scale * _value(before, keys), scale * _value(row, keys)
        table.add_row(name, text.format(old), text.format(new), text.replace("{:", "{:+").format(new - old))
    if before["rejected"] or row["rejected"]:
        old, new = before["rejected"], row["rejected"]
        table.add_row("requests rejected", f"{old:,}", f"{new:,}", f"{new - old:+,}")
    table.add_row("sessions completed", "", f"{loop['sessions_completed']:,} of {loop['plays']:,}", "")
    table.add_row("sessions per hour", "", f"{loop['sessions_per_hour']:,.1f}", "")
    length = f"{loop['window_s']:,.0f} s"
    table.caption = f"Counted: the requests of a window of {length}. open: requests arrive at the times of the trace."
    if loop["idle_skipped_s"]:
        table.caption += f" Idle caps skipped {loop['idle_skipped_s']:,.0f} s without a request."
    return table


def _value(row: dict[str, Any], keys: tuple[str, ...]) -> float:
    value: Any = row
    for key in keys:
        value = value[key]
    return float(value)
