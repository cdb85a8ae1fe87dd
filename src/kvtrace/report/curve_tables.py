"""What `kvtrace curve` shows: a table for people, and rows for a spreadsheet."""

from __future__ import annotations

import csv
import io
from typing import Any

from rich.table import Table

GIB = 1 << 30
RATES = {"block_hit_rate": "block", "token_hit_rate": "token", "request_hit_rate": "request"}


def table(found: dict[str, Any]) -> Table:
    """A point a row, of a curve's `to_dict()`; the last row is a cache that holds everything."""
    shown = Table(
        title=_title(found), title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for name in ("blocks", "tokens", *(["GiB"] if found["kv_bytes_per_token"] else []), "of the working set"):
        shown.add_column(name, justify="right", no_wrap=True)
    for name in RATES.values():
        shown.add_column(f"{name} hit rate", justify="right", no_wrap=True)
    for point in found["points"]:
        mark = "" if point["exact"] or found["sample"] else "*"
        shown.add_row(f"{mark}{point['capacity']:,}", *_sizes(point), f"{point['share']:.2%}", *_rates(point))
    blank = [""] * (3 if found["kv_bytes_per_token"] else 2)
    shown.add_row("unlimited", *blank, *_rates(found["unlimited"]))
    return shown


def notes(found: dict[str, Any]) -> list[str]:
    """What the reader of a table has to know."""
    said = []
    if found["sample"]:
        said.append(f"Estimated from {found['sample']:.2%} of the blocks; ± is how far off a rate may be (95 %).")
    elif not all(point["exact"] for point in found["points"]):
        said.append(
            f"* smaller than the longest request ({found['longest']:,} blocks), which it can't hold whole: what stays "
            "of such a request depends on the engine, and the figure is a guide."
        )
    return said


def as_csv(found: dict[str, Any]) -> str:
    """A header and a point a line, with the keys of `to_dict()`."""
    rows = [_flat(point) for point in found["points"]]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _title(found):
    return f"LRU hit rates, one request at a time, blocks of {found['block_size']:,} tokens"


def _sizes(point):
    yield f"{point['capacity_tokens']:,}"
    if "capacity_bytes" in point:
        yield f"{point['capacity_bytes'] / GIB:,.2f}"


def _rates(point):
    errors = point.get("error", {})
    return [f"{point[rate]:.4f}" + (f" ±{errors[rate]:.4f}" if rate in errors else "") for rate in RATES]


def _flat(point):
    errors = point.get("error", {})
    flat = {name: value for name, value in point.items() if name != "error"}
    return flat | {f"{rate}_error": off for rate, off in errors.items()}
