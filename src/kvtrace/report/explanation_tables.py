"""The tables, the CSV and the lines of `kvtrace explain`."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from .._base.tables import Column, TextTable, csv_text, printable
from ..serving.misses.baseline import BASES, duration
from ..serving.misses.causes import CAUSES
from ..serving.misses.cures import TOGETHER, Cures
from ..serving.misses.explanation import CauseGroupDict, Explanation, SessionCausesDict, WindowCausesDict
from .plots.causes import title_of

SESSIONS = 20  # in a table
ALWAYS = ("hit", "evicted", "first_use")  # columns of a table; the others are there where a token has them


def tables(explanation: Explanation, prefill_s: Mapping[str, float] | None = None) -> list[TextTable]:
    """The causes, and what the service delivered (of a trace with cached_tokens)."""
    delivered = [] if explanation.delivered is None else explanation.delivered.tables()
    return [cause_table(explanation, prefill_s), *delivered]


def cause_table(explanation: Explanation, prefill_s: Mapping[str, float] | None = None) -> TextTable:
    """The prompt tokens of each cause that occurs, and their share; hits also by tier, where there are several.

    Args:
        explanation: The explanation.
        prefill_s: Cause -> seconds of prefill of its tokens, for one more column.

    >>> from kvtrace.serving.misses.explanation import explain
    >>> from kvtrace.trace.building import toy
    >>> for row in cause_table(explain(toy("0 1", "2 3", "0 1"), 2)).rows:
    ...     print(row)
    ('hit', '0', '0.0%', 'were in the cache')
    ('evicted', '2', '33.3%', 'were evicted')
    ('first use', '4', '66.7%', 'were new')
    ('all prompt tokens', '6', '100.0%', '')
    """
    seconds = prefill_s or {}
    table = TextTable(f"Prompt tokens by cause, {title_of(explanation)}")
    table.add_column("cause")
    table.add_columns(["prompt tokens", "share"], right=True, rank=0)
    table.add_columns(["prefill"] if seconds else [], right=True)
    table.add_column("these tokens", dim=True, rank=2)
    total = max(1, explanation.tokens)

    def add(name: str, tokens: int, meaning: str, time_s: float = 0.0) -> None:
        times = [duration(time_s) if time_s else ""] if seconds else []
        table.add_row(name, f"{tokens:,}", f"{tokens / total:.1%}", *times, meaning)

    for cause, tokens in explanation.totals.items():
        if tokens or cause == "hit":
            add(cause.replace("_", " "), tokens, CAUSES[cause], seconds.get(cause, 0.0))
        if cause == "hit" and len(explanation.tiers) > 1:
            for tier, hits in explanation.tiers.items():
                add(f"  in {printable(tier)}", hits, "")
    add("all prompt tokens", explanation.tokens, "", sum(seconds.values()))
    return table


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


def loss(group: CauseGroupDict) -> int:
    """Tokens that repeat what an earlier request had, and were not hits."""
    causes = group["causes"]
    return group["tokens"] - sum(causes[name] for name in ("hit", "first_use", "not_served"))


def _group_table(title: str, first: str, groups: Sequence[tuple[str, CauseGroupDict]]) -> TextTable:
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
