"""The table and the CSV of `kvtrace curve`."""

from __future__ import annotations

from typing import Any

from .._base.tables import TextTable, csv_text

GIB = 1 << 30
RATES = {"block_hit_rate": "block", "token_hit_rate": "token", "request_hit_rate": "request"}


def curve_table(curve: dict[str, Any]) -> TextTable:
    """A table with one row for each point of a curve's `to_dict()`; the last row is a cache that never evicts."""
    table = TextTable(f"LRU hit rates, one request at a time, blocks of {curve['block_size']:,} tokens")
    table.remedy = "use --csv or a wider terminal"
    table.add_column("capacity (blocks)", right=True)
    table.add_column("tokens", right=True, rank=2)
    if curve["kv_bytes_per_token"]:
        table.add_column("GiB", right=True)
    table.add_column("of the working set", right=True)
    table.add_columns((f"{name} hit rate" for name in RATES.values()), right=True)
    for point in curve["points"]:
        mark = "" if point["exact"] or curve["sample"] else "*"
        table.add_row(f"{mark}{point['capacity']:,}", *_sizes(point), f"{point['share']:.2%}", *_rates(point))
    blank = [""] * (3 if curve["kv_bytes_per_token"] else 2)
    table.add_row("unlimited", *blank, *_rates(curve["unlimited"]))
    return table


def notes(curve: dict[str, Any]) -> list[str]:
    """Sentences on how to read the table, and the capacities that most of the hits need."""
    sentences, least = [], list(curve["least"].values()) if curve["unlimited"]["hit_blocks"] else []
    exact = all(point["exact"] for point in curve["points"]) and all(size >= curve["longest"] for size in least)
    if curve["sample"]:
        sentences.append(f"Estimated from {curve['sample']:.2%} of the blocks; ± is a 95 % confidence interval.")
    elif not exact:
        sentences.append(
            f"* smaller than the longest request ({curve['longest']:,} blocks). The part of such a request that stays "
            "in the cache depends on the engine, so the figure is only a guide."
        )
    return [*sentences, _least(curve)] if least else sentences


def _least(curve):
    shares = [share.replace("%", " %") for share in curve["least"]]
    blocks = curve["least"].values()
    marks = ["" if curve["sample"] or size >= curve["longest"] else "*" for size in blocks]
    sizes = [f"{mark}{size:,}" for mark, size in zip(marks, blocks, strict=True)]
    about = "about " if curve["sample"] else ""
    return f"{_and(shares)} of the unlimited block hits need {about}{_and(sizes)} blocks."


def _and(parts):
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def as_csv(curve: dict[str, Any]) -> str:
    """A header, and one line for each point, with the keys of `to_dict()`."""
    return csv_text([_flat(point) for point in curve["points"]])


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
    return flat | {f"{rate}_error": error for rate, error in errors.items()}
