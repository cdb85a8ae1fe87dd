"""The tables, the CSV and the lines of `kvtrace explain`."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any, BinaryIO, cast

from .._base.csv_text import csv_text
from .._base.tables import Column, TextTable
from ..serving.misses.causes import CAUSES
from ..serving.misses.cure import BASES, duration
from ..serving.misses.cures import TOGETHER, Cures
from ..serving.misses.explanation import Explanation
from .simulation import in_words

NAMES = {
    "hit": "hit", "in_flight": "in flight", "evicted": "evicted", "expired": "expired",
    "other_instance": "other instance", "rounding": "rounding", "other_domain": "other domain",
    "first_use": "first use", "not_served": "not served",
}  # fmt: skip
RARE = ("in_flight", "expired", "other_instance", "other_domain", "not_served")  # left out where no token has them


def tables(explanation: Explanation, cures: Cures | None = None) -> list[TextTable]:
    """The causes, what the service delivered (of a trace with cached_tokens), and what would help."""
    made = [cause_table(explanation)]
    if explanation.delivered is not None:
        made.extend(explanation.delivered.tables())
    if cures is not None and len(cures):
        made.append(_cures(cures))
    return made


def notes(explanation: Explanation, cures: Cures | None = None) -> list[str]:
    """Sentences below the tables."""
    new, possible = explanation.totals["first_use"], explanation.possible_tokens
    lines = [
        f"{_share(possible, explanation.tokens)} of the prompt tokens repeat what an earlier request had; "
        f"{_share(explanation.totals['hit'], possible)} of these are hits. No cache can hit the {new:,} new tokens."
    ]
    if explanation.delivered is not None:
        lines.extend(explanation.delivered.notes)
    if cures is None:
        return lines
    if len(cures) > 1:
        lines.append(TOGETHER)
    if not len(cures):
        lines.append("Nothing that was tried makes more prompt tokens hits.")
    if cures.in_vain:
        tried = ", ".join(f"{_words(cure.name)} ({cure.tokens:+,} tokens)" for cure in cures.in_vain)
        lines.append(f"Tried without a gain: {tried}.")
    return lines


def cause_table(explanation: Explanation) -> TextTable:
    """The prompt tokens of each cause, and their share; hits also by tier, where there are several."""
    run, totals = explanation.simulation, explanation.totals
    setting, values = run.setting, cast("dict[str, Any]", run.to_dict())
    where = [f"engine {setting.engine}", f"policy {setting.policy}", in_words(values["schedule"])]
    instances = values.get("instances", 1)
    if instances > 1:
        where.append(f"{instances:,} instances, {values.get('router')}")
    size = f"{setting.capacity:,} blocks" if not explanation.setup.has_tiers else _tiers(values)
    title = f"Why prompt tokens were computed: {', '.join([*where, size])} of {run.trace.block_size:,} tokens"
    table = TextTable(title, [
        Column("cause", rank=0), Column("tokens", right=True, rank=0), Column("share", right=True, rank=0),
        Column("", dim=True, rank=1),
    ])  # fmt: skip
    for cause, meaning in CAUSES.items():
        if cause in RARE and not totals[cause]:
            continue
        table.add_row(NAMES[cause], f"{totals[cause]:,}", _share(totals[cause], explanation.tokens), meaning)
        if cause == "hit" and len(explanation.tiers) > 1:
            for tier, tokens in explanation.tiers.items():
                table.add_row(f"  in {tier}", f"{tokens:,}", _share(tokens, explanation.tokens), "")
    table.add_row("all", f"{explanation.tokens:,}", _share(explanation.tokens, explanation.tokens), "")
    return table


def _tiers(values: Any) -> str:
    return ", ".join(f"{tier['name']}={tier['capacity']:,}" for tier in values["tiers"]) + " blocks"


def _cures(cures: Cures) -> TextTable:
    table = TextTable("What would help, the largest gain first", remedy="use --json or a wider terminal")
    table.columns += [Column("tokens", right=True, rank=0), Column("share", right=True, rank=0)]
    timed = any(cure.prefill_s is not None for cure in cures)
    if timed:
        table.columns += [Column("prefill", right=True, rank=1), Column("USD", right=True, rank=2)]
    table.columns += [Column("basis", rank=3), Column("", dim=True, rank=0)]
    for cure in cures:
        worth = []
        if timed:
            worth = [
                "" if cure.prefill_s is None else duration(cure.prefill_s),
                "" if cure.usd is None else f"{cure.usd:,.2f}",
            ]
        at_most = "<= " if cure.basis == "bound" else ""
        table.add_row(
            f"{at_most}{cure.tokens:,}", f"{cure.share:.1%}".replace("%", " %"), *worth, cure.basis, cure.advice
        )
    table.legend = {basis: meaning for basis, meaning in BASES.items() if any(cure.basis == basis for cure in cures)}
    return table


def _words(name: str) -> str:
    return name.replace("_", " ")


def _share(tokens: int, whole: int) -> str:
    return f"{tokens / max(whole, 1):.1%}".replace("%", " %")


def group_table(groups: Sequence[Any], name: str) -> TextTable:
    """The causes of windows of time (`start_ms`) or sessions (`session`): one row for each, in shares of its tokens."""
    shown = [cause for cause in CAUSES if cause not in RARE or any(group["causes"][cause] for group in groups)]
    by_time = name == "start_ms"
    table = TextTable("Over time" if by_time else "By session", remedy="use --csv or a wider terminal")
    table.add_column("from (s)" if by_time else "session", right=True)
    table.add_columns(["requests", "tokens"], right=True, rank=0)
    table.add_columns([NAMES[cause] for cause in shown], right=True)
    for group in groups:
        first = (
            f"{group['start_ms'] / 1000:,.0f}"
            if by_time
            else "none"
            if group["session"] < 0
            else f"{group['session']:,}"
        )
        shares = [_share(group["causes"][cause], group["tokens"]) for cause in shown]
        table.add_row(first, f"{group['requests']:,}", f"{group['tokens']:,}", *shares)
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
    columns = explanation._columns()
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
    text.detach()
