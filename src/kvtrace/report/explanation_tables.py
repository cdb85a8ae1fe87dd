"""The tables, the CSV and the lines of `kvtrace explain`."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from .._base.results import any_value, column, columns_in
from .._base.tables import TextTable, csv_text, printable
from .._base.units import duration
from ..serving.misses.baseline import BASES, Cure
from ..serving.misses.causes import CAUSES
from ..serving.misses.cures import TOGETHER, Cures
from ..serving.misses.explanation import CauseGroupDict, Explanation, SessionCausesDict, WindowCausesDict
from ..trace.domains import in_domains
from ..trace.hits import leading_tokens, unlimited_hits
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


LINT = " kvtrace lint LOG finds what in the prompts makes tokens new, such as a date at their beginning."


def notes(explanation: Explanation) -> list[str]:
    """How much of what repeats the cache hits, and what was not served, in one sentence each."""
    totals, possible = explanation.totals, explanation.possible_tokens
    repeated, hit = possible / max(explanation.tokens, 1), totals["hit"] / max(possible, 1)
    lines = [
        f"{100 * repeated:.1f} % of the prompt tokens repeat what an earlier request had; {100 * hit:.1f} % of these "
        f"are hits. No cache of prompts can hit the {totals['first_use']:,} new tokens."
        f"{LINT if totals['first_use'] else ''}"
    ]
    if of_outputs := _repeated_outputs(explanation):
        lines.append(
            f"An engine that keeps outputs can hit {of_outputs:,} of them, which repeat an earlier output; the "
            "simulation does not."
        )
    refused = np.flatnonzero(explanation.causes.tokens["not_served"])
    if totals["not_served"]:
        longest = int(explanation.simulation.trace.prompt_blocks[refused].max())
        lines.append(f"Requests that do not fit are not served; the longest of their prompts has {longest:,} blocks.")
    return lines + ([] if explanation.delivered is None else [*explanation.delivered.notes])


def cure_table(cures: Cures) -> TextTable:
    """The cures with a gain."""
    table = TextTable("What would help", remedy="use --json or a wider terminal")
    table.legend = {basis: meaning for basis, meaning in BASES.items() if any(cure.basis == basis for cure in cures)}
    rows = [
        cure.to_dict() | {"sentence": cure.advice}
        | ({"tokens": f"<= {cure.tokens:,}"} if cure.basis == "bound" else {}) for cure in cures
    ]  # fmt: skip
    return table.add_results(columns_in(Cure), rows)


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
    return _group_table("Over time", windows)


def session_table(sessions: Sequence[SessionCausesDict]) -> TextTable:
    """The causes of the sessions with the largest loss: tokens that repeat, and were not hits."""
    largest = sorted(sessions, key=loss, reverse=True)[:SESSIONS]
    table = _group_table("By session", largest)
    if len(largest) < len(sessions):
        table.caption = (
            f"The {len(largest)} of {len(sessions):,} sessions with the largest loss. --json and --csv have all."
        )
    return table


def loss(group: CauseGroupDict) -> int:
    """Tokens that repeat what an earlier request had, and were not hits."""
    causes = group["causes"]
    return group["tokens"] - sum(causes[name] for name in ("hit", "first_use", "not_served"))


OF_GROUPS = {
    "start_ms": column("from (s)", lambda ms: f"{ms / 1000:,.0f}", rank=0),
    "session": column("session", lambda number: "none" if number < 0 else f"{number:,}", rank=0),
    "requests": column("requests", ","),
    "tokens": column("tokens", ","),
} | {
    cause: column(cause.replace("_", " "), ".1%", rank=0, when=None if cause in ALWAYS else any_value)
    for cause in CAUSES
}  # fmt: skip


def _group_table(title: str, groups: Sequence[CauseGroupDict]) -> TextTable:
    rows = [
        {**group, **{cause: tokens / max(group["tokens"], 1) for cause, tokens in group["causes"].items()}}
        for group in groups
    ]
    return TextTable(title, remedy="use --csv or a wider terminal").add_results(OF_GROUPS, rows)


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


def _repeated_outputs(explanation: Explanation) -> int:
    """Prompt tokens after the warm-up that repeat an earlier output, and no earlier prompt; 0 if that is not known."""
    trace = explanation.trace
    if not trace.has_output_blocks:
        return 0
    view = in_domains(trace)
    with_outputs, without = (leading_tokens(trace, unlimited_hits(view, outputs=kept)) for kept in (True, False))
    return int((with_outputs - without)[explanation.simulation.warm_up :].sum())
