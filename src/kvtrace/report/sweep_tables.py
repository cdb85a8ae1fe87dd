"""The table of `kvtrace sweep`: one row for each cell, with the columns in which cells differ."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

from .._base.results import ResultColumn, column, columns_in
from .._base.tables import TextTable
from ..cache.engines import DEFAULTS
from ..cache.simulation import Simulation
from ..cache.sweeps.table import SETTINGS, SweepTable
from .simulation_tables import BESIDE_RUNS, in_words

TEXTS = {"trace", "engine", "mode", "schedule", "policy", *DEFAULTS}
AFTER_SETTINGS = 50  # places of columns: the settings of a sweep stand before all others
MAX_REASONS = 5  # printed reasons of failed cells
MAX_ROWS = 40  # a larger table is only written to the file
UNEQUAL = (
    "The capacities differ in tokens between the block sizes, so rows of different block sizes do not compare equal "
    "memory. For equal memory, give --capacity in tokens or bytes: 64ktokens, 24GiB."
)


def tables(sweep: SweepTable) -> list[TextTable]:
    """The table. Settings that all cells share are in the title; failed cells have no counts."""
    rows = sweep.rows
    own = [name for name in SETTINGS if len({row[name] for row in rows}) > 1 or name in ("policy", "capacity")]
    same = [name for name in ("trace", "engine", "mode", "schedule", "block_size") if name not in own]
    same = [name for name in same if (name, rows[0][name]) != ("mode", "block")]
    title = ", ".join(["Hits of prefix caches", *(_phrase(name, rows[0][name]) for name in same)])
    table = TextTable(title, remedy="use -o FILE.csv or a wider terminal")
    table.add_results(_columns(own), rows)
    table.legend |= _warnings(rows)
    table.caption = "" if compares_equal_memory(rows) else UNEQUAL
    return [table]


def notes(sweep: SweepTable) -> list[tuple[str, str]]:
    """The sentences below the table, for a run that does not print it: (kind, sentence)."""
    warnings = [("warning", f"{policies}: {warning}") for policies, warning in _warnings(sweep.rows).items()]
    return warnings if compares_equal_memory(sweep.rows) else [*warnings, ("note", UNEQUAL)]


def _columns(own: list[str]) -> dict[str, ResultColumn]:
    """The columns that name a row, none of which is ever left out, then those of any simulation."""
    settings = {
        name: column(name.replace("_", " "), "" if name in TEXTS else ",", rank=0, place=at)
        for at, name in enumerate(own)
    }
    if {"capacity", "block_size"} <= {*own}:
        settings["capacity_tokens"] = replace(settings["capacity"], heading="capacity tokens")
    of_runs = columns_in(Simulation) | BESIDE_RUNS
    others = {
        key: replace(each, place=each.place + AFTER_SETTINGS)
        for key, each in of_runs.items()
        if key not in {*SETTINGS, *settings}
    }
    gib = replace(of_runs["capacity_bytes"], place=AFTER_SETTINGS)
    return others | settings | {"capacity_bytes": gib}


def _warnings(rows) -> dict[str, str]:
    """Policies -> the warning that their rows have."""
    policies: dict[str, dict[str, None]] = defaultdict(dict)
    for row in rows:
        if row["warning"]:
            policies[row["warning"]][row["policy"]] = None
    return {", ".join(names): warning for warning, names in policies.items()}


def compares_equal_memory(rows: list[dict[str, Any]]) -> bool:
    """Whether each trace has the same capacities in tokens at all block sizes, to within a block.

    >>> row = {"trace": "day.jsonl", "seed": None, "mode": "block"}
    >>> half = [row | {"block_size": size, "capacity_tokens": tokens} for size, tokens in ((16, 2688), (32, 3392))]
    >>> compares_equal_memory(half), compares_equal_memory(half[:1])
    (False, True)
    """
    sizes: dict[Any, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for row in rows:
        sizes[row["trace"], row["seed"], row["mode"]][row["block_size"]].add(row["capacity_tokens"])
    return all(_are_equal(of_trace) for of_trace in sizes.values())


def _are_equal(capacities: dict[int, set[int]]) -> bool:
    """Whether each block size has the same capacities in tokens, to within its own block."""
    largest = max(capacities)
    lists = [sorted(of_size) for of_size in capacities.values()]
    return all(
        len(sizes) == len(lists[0]) and all(abs(a - b) < largest for a, b in zip(sizes, lists[0], strict=True))
        for sizes in lists
    )


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
