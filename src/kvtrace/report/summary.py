"""The messages of `kvtrace anonymize`: the detected settings at the start, and the figures at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from ..trace.unknown import NEEDS, PREFIXES, SESSIONS, TOO_LOW, sentence

if TYPE_CHECKING:
    from .._base.row_counts import Counts

RATES = {
    "block": "hit blocks / blocks",
    "token": "hit tokens / tokens",
    "request": "mean of each request's hit / blocks",
}
FEW_BLOCKS = 8  # blocks of a prompt on average
ENGINE_BLOCK = 64  # tokens; vLLM's blocks have 16, TensorRT-LLM's 32, the largest of usual ones 64


def opening(meta: dict[str, Any], *, verbose: bool = False) -> list[str]:
    """Lines on the detected and chosen settings.

    Args:
        meta: The sections of the sidecar so far.
        verbose: Also say which library tokenizes, and how the template is applied.
    """
    reader = meta["log"]["reader"].replace("block-hash", "rows of timestamp, input and output")
    lines = [f"log         {reader}; times: {meta['log']['time']}"]
    if tokenizer := meta["tokenizer"]:
        library = f", by {tokenizer['backend']} ({tokenizer['why']})" if verbose else ""
        lines.append(f"tokenizer   {_name(tokenizer)}{library}")
    if template := meta["chat_template"]:
        lines.append(f"template    {_name(template)}" + (f"; {template['wants']}" if verbose else ""))
    return lines


def _name(described: dict[str, str]) -> str:
    """The public name of a tokenizer or template, else the start of its digest."""
    return described.get("name") or f"a file of SHA-256 {described['sha256'][:12]}..."


def closing(figures: dict[str, Any], counts: Counts, request_sample: float | None = None) -> Table:
    """The figures of a run: trace size, hit rates without eviction, and the rows that were left out.

    Args:
        figures: The figures of the trace.
        counts: The rows of the log.
        request_sample: The share of a log that is a sample by request, whose hit rates are too low.
    """
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    for name, value, note in (*_size(figures), *_rates(figures, request_sample), *_left_out(counts)):
        table.add_row(name, value, f"[dim]{escape(note)}[/dim]")
    return table


def _size(figures):
    from ..trace.trace_figures import output_words

    yield "requests", f"{figures['requests']:,}", f"over {figures['duration_ms'] / 1000:,.0f} s"
    sessions = figures["sessions"]
    yield "sessions", f"{sessions:,}" if sessions else "unknown", "" if sessions else NEEDS[SESSIONS].missing
    yield "tokens", f"{figures['tokens']:,}", f"in prompts; {output_words(figures)}"
    distinct = f"{figures['distinct_blocks']:,}" if "hits" in figures else "unknown"
    yield "blocks", f"{figures['blocks']:,}", f"in prompts; {distinct} distinct"
    if "hits" in figures and _are_large(figures):
        yield "", "", "blocks are large for these prompts: --block-size 16, common in engines, shows more reuse"


def _are_large(figures: dict[str, Any]) -> bool:
    """Whether prompts have few blocks, of more tokens than the blocks of engines, so that much reuse is not counted."""
    blocks, tokens = figures["blocks"], figures["tokens"]
    return 0 < blocks < FEW_BLOCKS * figures["requests"] and tokens > ENGINE_BLOCK * blocks


def _rates(figures, request_sample):
    if "hits" not in figures:
        yield "hit rates", "unknown", sentence(PREFIXES)
        return
    for kind, note in RATES.items():
        yield f"{kind} hit rate", f"{figures['hits'][f'{kind}_hit_rate']:.3f}", f"{note}, without eviction"
    if outputs := figures.get("hits_with_outputs"):
        yield "block hit rate", f"{outputs['block_hit_rate']:.3f}", "with outputs cached too"
    if request_sample not in (None, 1):
        yield "", "too low", TOO_LOW.format(share=f"{100 * request_sample:.3g}%")


def _left_out(counts):
    if counts.without_output_blocks:
        yield (
            "no output blocks",
            f"{counts.without_output_blocks:,}",
            "outputs without text, or with another token count",
        )
    if logged := counts.with_logged_tokens:
        mean = counts.logged_difference / logged
        yield (
            "equal to log",
            f"{counts.equal_to_logged:,}",
            f"of {logged:,} prompt token counts; mean difference {mean:.1f}",
        )
        if 2 * counts.equal_to_logged < logged:
            yield (
                "",
                "",
                "the log's model has another tokenizer or template: name them with --tokenizer, --chat-template",
            )
    if counts.cut:
        yield (
            "truncated",
            f"{counts.cut:,}",
            "requests with truncated text: their prefixes are wrong",
        )
    if counts.filtered > counts.others:
        yield "left out", f"{counts.filtered - counts.others:,}", "requests with an empty prompt"
    if counts.others:
        yield "left out", f"{counts.others:,}", "rows that are not requests"
    if counts.unsampled:
        yield "left out", f"{counts.unsampled:,}", "requests outside the sample"
    yield "rejected", f"{counts.rejected:,}", "rows"
    for reason, count in counts.reasons.most_common():
        yield "", f"{count:,}", reason
