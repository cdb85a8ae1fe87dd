"""The tables, the CSV and the lines of `kvtrace explain`."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from .._base.csv_text import csv_text
from .._base.tables import Column, TextTable
from ..serving.misses.causes import CAUSES
from ..serving.misses.cure import BASES, duration
from ..serving.misses.cures import TOGETHER, Cures
from ..serving.misses.explanation import Explanation, GroupDict, SessionCausesDict, WindowCausesDict

SESSIONS = 20  # in a table
ALWAYS = ("hit", "evicted", "first_use")  # columns of a table; the others are there where a token has them


def notes(explanation: Explanation) -> list[str]:
    """How much of what repeats the cache hits, and what was not served, in one sentence each."""
    totals, possible = explanation.totals, explanation.possible_tokens
    repeated, hit = possible / max(explanation.tokens, 1), totals["hit"] / max(possible, 1)
    lines = [
        f"{100 * repeated:.1f} % of the prompt tokens repeat what an earlier request had; {100 * hit:.1f} % of these "
        f"are hits. No cache can hit the {totals['first_use']:,} new tokens."
    ]
    refused = np.flatnonzero(explanation.causes.tokens["not_served"])
    if totals["not_served"]:
        longest = int(explanation.simulation.trace.prompt_blocks[refused].max())
        lines.append(f"Requests that do not fit are not served; the longest of their prompts has {longest:,} blocks.")
    return lines + ([] if explanation.delivered is None else [*explanation.delivered.notes])


def cure_table(cures: Cures) -> TextTable:
    """The cures with a gain."""
    table = TextTable("What would help", remedy="use --json or a wider terminal")
    table.columns += [Column("tokens", right=True, rank=0), Column("share", right=True, rank=0)]
    worth = {
        "prefill": [None if cure.prefill_s is None else duration(cure.prefill_s) for cure in cures],
        "GPU USD": [None if cure.usd is None else f"{cure.usd:,.2f}" for cure in cures],
        "bill USD": [None if cure.provider_usd is None else f"{cure.provider_usd:,.2f}" for cure in cures],
    }
    known = {name: cells for name, cells in worth.items() if any(cells)}
    table.columns += [Column(name, right=True, rank=1 + (name != "prefill")) for name in known]
    table.columns += [Column("basis", rank=3), Column("change", dim=True, rank=0)]
    for number, cure in enumerate(cures):
        tokens = f"{'<= ' if cure.basis == 'bound' else ''}{cure.tokens:,}"
        figures = [cells[number] or "" for cells in known.values()]
        table.add_row(tokens, f"{cure.share:.1%}", *figures, cure.basis, cure.advice)
    table.legend = {basis: meaning for basis, meaning in BASES.items() if any(cure.basis == basis for cure in cures)}
    return table


def cure_notes(cures: Cures) -> list[str]:
    """That the values do not add up, and what was tried without a gain."""
    lines = [TOGETHER] if len(cures) > 1 else []
    if not len(cures):
        lines.append("No change that was tried makes more prompt tokens hits.")
    if cures.in_vain:
        tried = ", ".join(f"{cure.name.replace('_', ' ')} ({cure.tokens:+,} tokens)" for cure in cures.in_vain)
        lines.append(f"Tried without a gain: {tried}.")
    return lines + [f"Not possible in this setting: {reason}" for reason in cures.refused]


def window_table(windows: Sequence[WindowCausesDict]) -> TextTable:
    """The causes of windows of time, as shares of their tokens."""
    return _group_table("Over time", "from (s)", [(f"{one['start_ms'] / 1000:,.0f}", one) for one in windows])


def session_table(sessions: Sequence[SessionCausesDict]) -> TextTable:
    """The causes of the sessions with the largest loss: tokens that repeat, and were not hits."""
    most = sorted(sessions, key=loss, reverse=True)[:SESSIONS]
    named = [("none" if one["session"] < 0 else f"{one['session']:,}", one) for one in most]
    table = _group_table("By session", "session", named)
    if len(most) < len(sessions):
        table.caption = (
            f"The {len(most)} of {len(sessions):,} sessions with the largest loss. --json and --csv have all."
        )
    return table


def loss(group: GroupDict) -> int:
    """Tokens that repeat what an earlier request had, and were not hits."""
    causes = group["causes"]
    return group["tokens"] - sum(causes[name] for name in ("hit", "first_use", "not_served"))


def _group_table(title: str, first: str, groups: Sequence[tuple[str, GroupDict]]) -> TextTable:
    shown = [cause for cause in CAUSES if cause in ALWAYS or any(group["causes"][cause] for _, group in groups)]
    table = TextTable(title, remedy="use --csv or a wider terminal")
    table.add_column(first, right=True)
    table.add_columns(["requests", "tokens"], right=True, rank=1)
    table.add_columns([cause.replace("_", " ") for cause in shown], right=True, rank=0)
    for name, group in groups:
        shares = [f"{group['causes'][cause] / max(group['tokens'], 1):.1%}" for cause in shown]
        table.add_row(name, f"{group['requests']:,}", f"{group['tokens']:,}", *shares)
    return table


def as_csv(explanation: Explanation, groups: Sequence[Any] | None = None) -> str:
    """A header, and one line for all requests, or for each window or session: its tokens by cause."""
    if groups is None:
        values = explanation.to_dict()
        groups = [{key: values[key] for key in ("requests", "tokens", "causes")}]  # type: ignore[literal-required]
    rows = []
    for group in groups:
        keys = {key: group[key] for key in ("start_ms", "session") if key in group}
        rows.append({**keys, "requests": group["requests"], "tokens": group["tokens"], **group["causes"]})
    return csv_text(rows)


def write_per_request(explanation: Explanation, stream: BinaryIO) -> None:
    """Write CSV, one line for each request: its arrival, its prompt tokens, and how many of them have each cause."""
    columns = explanation.per_request
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
    text.detach()
