"""What `kvtrace anonymize` says: what it found before it starts, and the figures at the end."""

from __future__ import annotations

from typing import Any

from rich.table import Table

RATES = {
    "block hit rate": ("block_hit_rate", "hit blocks / blocks"),
    "token hit rate": ("token_hit_rate", "hit tokens / prompt tokens"),
    "request hit rate": ("request_hit_rate", "mean over requests of hit blocks / blocks"),
}


def opening(meta: dict[str, Any]) -> list[str]:
    """Lines that name what the run detected and chose."""
    lines = [f"log         {meta['log']['reader']}; times: {meta['log']['time']}"]
    if tokenizer := meta["tokenizer"]:
        lines.append(f"tokenizer   {tokenizer['name']}, by {tokenizer['backend']} ({tokenizer['why']})")
    if template := meta["chat_template"]:
        lines.append(f"template    {template['name']}; {template['wants']}")
    return lines


def closing(figures: dict[str, Any], reasons: dict[str, int]) -> Table:
    """The figures of a run as a table: counts, then the hit rates of a cache that never evicts."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name, value, note in _rows(figures):
        table.add_row(name, value, f"[dim]{note}[/dim]")
    for reason, count in sorted(reasons.items(), key=lambda item: -item[1]):
        table.add_row("  rejected", f"{count:,}", reason)
    return table


def _rows(figures):
    yield "requests", f"{figures['requests']:,}", f"over {figures['duration_ms'] / 1000:,.0f} s"
    if figures["sessions"]:
        yield "sessions", f"{figures['sessions']:,}", ""
    yield "tokens", f"{figures['tokens']:,}", f"in prompts; {figures['output_tokens']:,} in outputs"
    yield "blocks", f"{figures['blocks']:,}", f"of prompts; {figures['distinct_blocks']:,} distinct"
    for name, (key, note) in RATES.items():
        yield name, f"{figures['hits'][key]:.3f}", f"{note}, nothing ever evicted"
    if outputs := figures.get("hits_with_outputs"):
        yield "block hit rate", f"{outputs['block_hit_rate']:.3f}", "where outputs stay cached too"
    if figures["without_output_blocks"]:
        yield "no output blocks", f"{figures['without_output_blocks']:,}", "the log counts other tokens than its text has"
    if figures["with_logged_tokens"]:
        mean = figures["logged_difference"] / figures["with_logged_tokens"]
        equal = f"{figures['equal_to_logged']:,} of {figures['with_logged_tokens']:,}"
        yield "as logged", equal, f"prompts have the log's own token count; mean difference {mean:.1f} tokens"
    yield "rejected", f"{figures['rejected']:,}", "rows"
