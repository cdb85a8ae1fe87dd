"""Tables and CSV with a row or a table for each capacity: those of `kvtrace curve`, `tune` and `sweep`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .._base.results import ResultColumn, column, columns_in
from .._base.tables import TextTable, csv_text

if TYPE_CHECKING:
    from ..cache.sweeps.table import SweepTable
    from ..cache.tuning import Tuned, TunedPolicy


def curve_table(curve: dict[str, Any]) -> TextTable:
    """A table with one row for each point of a curve's `to_dict()`; the last row is a cache that never evicts."""
    from ..analysis.curves import CurvePoint

    table = TextTable(f"LRU hit rates, one request at a time, blocks of {curve['block_size']:,} tokens")
    table.remedy = "use --csv or a wider terminal"
    rows = [*map(_with_errors, curve["points"]), {"capacity": "unlimited"} | curve["unlimited"]]
    for row in rows[:-1]:
        if not (row["exact"] or curve["sample"]):
            row["capacity"] = f"*{row['capacity']:,}"
    return table.add_results(columns_in(CurvePoint), rows)


def _with_errors(point: dict[str, Any]) -> dict[str, Any]:
    errors = point.get("error", {})
    return point | {rate: f"{point[rate]:.4f} ±{error:.4f}" for rate, error in errors.items()}


def curve_notes(curve: dict[str, Any]) -> list[str]:
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


def curve_csv(curve: dict[str, Any]) -> str:
    """A header, and one line for each point, with the keys of `to_dict()`."""
    rows = [
        point | {f"{rate}_error": error for rate, error in point.get("error", {}).items()} for point in curve["points"]
    ]
    return csv_text([{key: value for key, value in row.items() if key != "error"} for row in rows])


def tune_tables(tuned: Tuned) -> list[TextTable]:
    """A table for each capacity, the policies that close most of the gap first and the bounds last."""
    capacities = dict.fromkeys(row.capacity for row in tuned.rows)
    return [
        _tune_table(tuned, [row for row in tuned.rows if row.capacity == capacity], capacity) for capacity in capacities
    ]


def tune_notes(tuned: Tuned) -> list[str]:
    """The policies that were not tried, and why; policies with equal reasons are named together."""
    reasons: dict[str, list[str]] = {}
    for policy, reason in tuned.skipped.items():
        clause = reason.removesuffix(" Try lru.").removeprefix("the ").removeprefix(f"policy {policy} ")
        reasons.setdefault(clause, []).append(policy)
    return [
        f"Not tried: {', '.join(names)}, which {reason if len(names) == 1 else reason.replace('needs', 'need', 1)}"
        for reason, names in reasons.items()
    ]


def tune_csv(tuned: Tuned) -> str:
    """A header, and one line for each result, with the keys of the JSON."""
    return csv_text([row.to_dict() for row in tuned.rows])


def _tune_table(tuned: Tuned, rows: list[TunedPolicy], capacity: int) -> TextTable:
    from ..cache.tuning import TunedPolicy, looks_ahead

    counted = tuned.requests - tuned.first_half
    table = TextTable(
        f"Capacity {capacity:,} blocks: settings chosen on the first {tuned.first_half:,} requests, hits of the last "
        f"{counted:,}",
        remedy="use --csv or a wider terminal",
    )
    ordered = sorted(_joined(rows), key=lambda row: (looks_ahead(row.policy), -(row.gap_closed or 0.0)))
    table.add_results(columns_in(TunedPolicy), [row.to_dict() for row in ordered])
    return table


def _joined(rows: list[TunedPolicy]) -> Iterator[TunedPolicy]:
    """The rows; one for both pools if a policy has equal settings and hits in them."""
    by_policy: dict[str, list[TunedPolicy]] = {}
    for row in rows:
        by_policy.setdefault(row.policy, []).append(row)
    for of_policy in by_policy.values():
        if len({(row.setting, row.hits) for row in of_policy}) == 1:
            yield replace(of_policy[0], pool="both" if len(of_policy) > 1 else of_policy[0].pool)
        else:
            yield from of_policy


AFTER_SETTINGS = 50  # places of columns: the settings of a sweep stand before all others
MAX_REASONS = 5  # printed reasons of failed cells
MAX_ROWS = 40  # a larger table is only written to the file
UNEQUAL = (
    "The capacities differ in tokens between the block sizes, so rows of different block sizes do not compare equal "
    "memory. For equal memory, give --capacity in tokens or bytes: 64ktokens, 24GiB."
)


def sweep_tables(sweep: SweepTable) -> list[TextTable]:
    """The table. Settings that all cells share are in the title; failed cells have no counts."""
    from ..cache.sweeps.table import SETTINGS

    rows = sweep.rows
    own = [name for name in SETTINGS if len({row[name] for row in rows}) > 1 or name in ("policy", "capacity")]
    same = [name for name in ("trace", "engine", "mode", "schedule", "block_size") if name not in own]
    same = [name for name in same if (name, rows[0][name]) != ("mode", "block")]
    title = ", ".join(["Hits of prefix caches", *(_phrase(name, rows[0][name]) for name in same)])
    table = TextTable(title, remedy="use -o FILE.csv or a wider terminal")
    table.add_results(_sweep_columns(own), rows)
    table.legend |= _warnings(rows)
    table.caption = "" if compares_equal_memory(rows) else UNEQUAL
    return [table]


def sweep_notes(sweep: SweepTable) -> list[tuple[str, str]]:
    """The sentences below the table, for a run that does not print it: (kind, sentence)."""
    warnings = [("warning", f"{policies}: {warning}") for policies, warning in _warnings(sweep.rows).items()]
    return warnings if compares_equal_memory(sweep.rows) else [*warnings, ("note", UNEQUAL)]


def _sweep_columns(own: list[str]) -> dict[str, ResultColumn]:
    """The columns that name a row, none of which is ever left out, then those of any simulation."""
    from ..cache.simulation import Simulation
    from ..cache.sweeps.table import SETTINGS, TEXTS
    from .simulation_tables import BESIDE_RUNS

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
    from .simulation_tables import in_words

    words = (
        {"block_size": f"blocks of {value:,} tokens"} if name == "block_size" else {"schedule": in_words(str(value))}
    )
    return words.get(name, f"{name} {value}")
