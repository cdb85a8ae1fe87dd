"""The tables, the CSV and the lines of `kvtrace explain`."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, cast

from .._base.csv_text import csv_text
from .._base.tables import Column, TextTable, printable
from ..serving.misses.causes import CAUSES
from ..serving.misses.cure import BASES, duration
from ..serving.misses.cures import TOGETHER, Cures
from ..serving.misses.explanation import Explanation, GroupDict, SessionCausesDict, WindowCausesDict
from .simulation import in_words

SESSIONS = 20  # in a table
RARE = (
    "in_flight",
    "expired",
    "other_instance",
    "rounding",
    "other_domain",
    "not_served",
)  # left out where no token has them


def cause_table(explanation: Explanation, prefill_s: Mapping[str, float] | None = None) -> TextTable:
    """The tokens of each cause, their share, and the seconds of prefill that they took, if these are known."""
    totals = explanation.totals
    table = TextTable(f"Why prompt tokens hit or missed: {_setting(explanation)}")
    table.columns += [Column("cause", rank=0), *(Column(name, right=True, rank=0) for name in ("tokens", "share"))]
    if prefill_s is not None:
        table.columns.append(Column("prefill", right=True, rank=1))
    table.columns.append(Column("these prompt tokens ...", dim=True, rank=2))

    def add(name: str, tokens: int, seconds: float | None, meaning: str = "") -> None:
        times = [] if prefill_s is None else [duration(seconds) if seconds else ""]
        table.add_row(name, f"{tokens:,}", share(tokens, explanation.tokens), *times, meaning)

    for cause, meaning in CAUSES.items():
        if cause in RARE and not totals[cause]:
            continue
        add(words(cause), totals[cause], (prefill_s or {}).get(cause), meaning)
        if cause == "hit" and len(explanation.tiers) > 1:
            for tier, tokens in explanation.tiers.items():
                add(f"  in {printable(tier)}", tokens, None)
    add("all", explanation.tokens, sum((prefill_s or {}).values()))
    return table


def summary(explanation: Explanation) -> str:
    """How much of what repeats the cache hits, in one sentence."""
    possible, new = explanation.possible_tokens, explanation.totals["first_use"]
    return (
        f"{share(possible, explanation.tokens)} of the prompt tokens repeat what an earlier request had; "
        f"{share(explanation.totals['hit'], possible)} of these are hits. No cache can hit the {new:,} new tokens."
    )


def _setting(explanation: Explanation) -> str:
    """The engine, the policy, the schedule, the instances and the capacity, in words."""
    run, values = explanation.simulation, cast("dict[str, Any]", explanation.simulation.to_dict())
    phrases = [f"engine {run.setting.engine}", f"policy {run.setting.policy}", in_words(values["schedule"])]
    if values.get("instances", 1) > 1:
        phrases.append(f"{values['instances']:,} instances, router {values['router']}")
    tiers = [f"{printable(tier['name'])}={tier['capacity']:,}" for tier in values.get("tiers", [])]
    size = f"{' and '.join(tiers) if tiers else f'{run.setting.capacity:,}'} blocks"
    layout = run.setting.layout
    return ", ".join([*phrases, size]) + f" of {layout.tokens_per_block if layout else run.trace.block_size:,g} tokens"


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
        table.add_row(tokens, f"{100 * cure.share:.1f} %", *figures, cure.basis, cure.advice)
    table.legend = {basis: meaning for basis, meaning in BASES.items() if any(cure.basis == basis for cure in cures)}
    return table


def cure_notes(cures: Cures) -> list[str]:
    """That the values do not add up, and what was tried without a gain."""
    lines = [TOGETHER] if len(cures) > 1 else []
    if not len(cures):
        lines.append("No change that was tried makes more prompt tokens hits.")
    if cures.in_vain:
        tried = ", ".join(f"{words(cure.name)} ({cure.tokens:+,} tokens)" for cure in cures.in_vain)
        lines.append(f"Tried without a gain: {tried}.")
    return lines


def words(name: str) -> str:
    """A cause or a cure as people read it.

    >>> words("first_use")
    'first use'
    """
    return name.replace("_", " ")


def share(tokens: int, whole: int) -> str:
    """A share of tokens.

    >>> share(1, 3), share(0, 0)
    ('33.3 %', '0.0 %')
    """
    return f"{100 * tokens / max(whole, 1):.1f} %"


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
    shown = [cause for cause in CAUSES if cause not in RARE or any(group["causes"][cause] for _, group in groups)]
    table = TextTable(title, remedy="use --csv or a wider terminal")
    table.add_column(first, right=True)
    table.add_columns(["requests", "tokens"], right=True, rank=1)
    table.add_columns([words(cause) for cause in shown], right=True, rank=0)
    for name, group in groups:
        shares = [share(group["causes"][cause], group["tokens"]) for cause in shown]
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
