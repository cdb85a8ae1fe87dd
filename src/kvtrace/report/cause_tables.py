"""The prompt tokens of each cause as a table."""

from __future__ import annotations

from .._base.tables import TextTable
from ..serving.misses.causes import CAUSES
from ..serving.misses.explanation import Explanation
from .plots.causes import title_of


def cause_table(explanation: Explanation) -> TextTable:
    """The prompt tokens of each cause that occurs, and their share; hits also by tier, where there are several.

    >>> from kvtrace.serving.misses.explaining import explain
    >>> from kvtrace.trace.building import toy
    >>> for row in cause_table(explain(toy("0 1", "2 3", "0 1"), 2)).rows:
    ...     print(row)
    ('hit', '0', '0.0%', 'were in the cache')
    ('evicted', '2', '33.3%', 'were evicted')
    ('first use', '4', '66.7%', 'were new')
    ('all prompt tokens', '6', '100.0%', '')
    """
    table = TextTable(f"Prompt tokens by cause, {title_of(explanation)}")
    table.add_column("cause")
    table.add_columns(["prompt tokens", "share"], right=True)
    table.add_column("these tokens", dim=True)
    total = max(1, explanation.tokens)

    def add(name: str, tokens: int, meaning: str) -> None:
        table.add_row(name, f"{tokens:,}", f"{tokens / total:.1%}", meaning)

    for cause, tokens in explanation.totals.items():
        if tokens or cause == "hit":
            add(cause.replace("_", " "), tokens, CAUSES[cause])
        if cause == "hit" and len(explanation.tiers) > 1:
            for tier, hits in explanation.tiers.items():
                add(f"  in {tier}", hits, "")
    add("all prompt tokens", explanation.tokens, "")
    return table
