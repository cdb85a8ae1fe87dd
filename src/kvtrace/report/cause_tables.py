"""The prompt tokens of each cause as a table."""

from __future__ import annotations

from collections.abc import Mapping

from .._base.tables import TextTable, printable
from ..serving.misses.causes import CAUSES
from ..serving.misses.cure import duration
from ..serving.misses.explanation import Explanation
from .plots.causes import title_of


def cause_table(explanation: Explanation, prefill_s: Mapping[str, float] | None = None) -> TextTable:
    """The prompt tokens of each cause that occurs, and their share; hits also by tier, where there are several.

    Args:
        explanation: The explanation.
        prefill_s: Cause -> seconds of prefill of its tokens, for one more column.

    >>> from kvtrace.serving.misses.explaining import explain
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
