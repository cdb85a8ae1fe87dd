"""What `kvtrace anonymize` and `kvtrace lint` print of a raw log: detected settings, figures, and findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..trace.unknown import NEEDS, PREFIXES, SESSIONS, TOO_LOW, sentence

if TYPE_CHECKING:
    from .._base.row_counts import RowCounts


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


def closing(
    figures: dict[str, Any],
    counts: RowCounts,
    usage: Iterable[tuple[str, str, str]] = (),
    request_sample: float | None = None,
) -> list[tuple[str, str, str]]:
    """The figures of a run, each with its name and a note: trace size, hit rates without eviction, rows left out.

    Args:
        figures: The figures of the trace.
        counts: The rows of the log.
        usage: The lines on the log's own counts of prompt tokens.
        request_sample: The share of a log that is a sample by request, whose hit rates are too low.
    """
    return [*_size(figures), *_rates(figures, request_sample), *usage, *_left_out(counts)]


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


NOT_RENDERED = {  # field of a request -> why it is not in the prompt as the engine has it, and what to do
    "tools": "the chat template does not write tools: they are in the prompt as plain JSON. For the prompts of the "
    "log's own model, name its tokenizer: --tokenizer FOLDER",
    "chat_template": "a request's own template is used with --request-templates only, within a second and 64 MB",
    "chat_template_kwargs": "the chat template does not read all of these names",
    "documents": "the chat template does not read them",
    "reasoning_effort": "the chat template does not read it",
    "response_format": "vLLM and SGLang write no schema into the prompt; another service may",
    "mm_processor_kwargs": "other sizes of images than the model's own are not known",
    "media": "the log does not state where they stand in the prompt, so they change all of its blocks",
    "thinking": "vLLM and SGLang give it to no template",
}
OTHER = "it can change the prompt, and is not rendered"


def not_rendered(fields: Mapping[str, int], media: int = 0) -> list[str]:
    """Warnings about what of requests is not in their prompts as the engine has it.

    Args:
        fields: Field of a request -> number of requests.
        media: Number of images, sounds and videos whose number of tokens is not known.

    >>> not_rendered({"documents": 7})
    ['documents of 7 requests: the chat template does not read them.']
    """
    warnings = [
        f"{name} of {count:,} request{'s' if count > 1 else ''}: {NOT_RENDERED.get(name, OTHER)}."
        for name, count in sorted(fields.items())
    ]
    if media:
        warnings.append(
            f"{media:,} image{'s' if media > 1 else ''}, sounds or videos count as one token each: the log does not "
            "state their size, or the model's rule is not known. Input lengths are too small."
        )
    return warnings


def _left_out(counts):
    if counts.without_output:
        yield (
            "no answer",
            f"{counts.without_output:,}",
            "requests of unknown output length: log the answers, or name the field of their length with "
            "--map output_length=FIELD",
        )
    if counts.without_output_blocks:
        yield (
            "no output blocks",
            f"{counts.without_output_blocks:,}",
            "outputs without text, or with another token count",
        )
    if counts.cut:
        yield (
            "truncated",
            f"{counts.cut:,}",
            "requests with truncated text: their prefixes are wrong",
        )
    for words, count in counts.left_out.items():
        yield "left out", f"{count:,}", words
    if counts.unsampled:
        yield "left out", f"{counts.unsampled:,}", "requests outside the sample"
    yield "rejected", f"{counts.rejected:,}", "rows"
    for reason, count in counts.reasons.most_common():
        yield "", f"{count:,}", reason


def lint_lines(report: Any, most: int | None = None) -> list[str]:
    """The findings of a `LintReport`, the most expensive first: two lines each, the second says what to change.

    >>> from ..ingest.linting.findings import LintFinding, LintReport
    >>> date = LintFinding("date", "date", "system", 0, 12, 12, 12, 12, 0, 5, 4, 900)
    >>> for line in lint_lines(LintReport(10, 3000, 0, 512, (date,))):
    ...     print(line)
    1. date in message 1 (system), token 12: loses 900 tokens (30.0 %) in 5 requests, 4 values
       Move the date or time behind the part that all requests share, or make it coarser.
    """
    lines = []
    for number, finding in enumerate(report.findings[:most], 1):
        values = f", {finding.values:,} values" if finding.values else ""
        lost = f"loses {finding.tokens:,} tokens ({_percent(finding.tokens, report.prompt_tokens)})"
        requests = f"{finding.requests:,} request{'' if finding.requests == 1 else 's'}"
        lines += [
            f"{number}. {finding.kind} in {finding.where}: {lost} in {requests}{values}",
            f"   {finding.sentence}",
        ]
    return lines


def lint_notes(report: Any) -> list[str]:
    """The totals of a `LintReport`, in sentences."""
    total, hit, lost = report.prompt_tokens, report.hit_tokens, report.lost_tokens
    lines = [
        f"{report.requests:,} requests with {total:,} prompt tokens; an unlimited cache with blocks of "
        f"{report.block_size:,} tokens would hit {_percent(hit, total)}"
        + (f", and {_percent(min(hit + lost, total), total)} without the findings." if lost else "."),
    ]
    if not report.findings:
        lines.append("No prompts diverge in a way that is known to break sharing.")
    if report.other_tokens:
        lines.append(
            f"{report.other_tokens:,} more tokens are shared behind differences of no known kind, such as another "
            "question."
        )
    rendering = report.settings.get("rendering", {})
    lines += [
        f"Warning: {warning}"
        for warning in not_rendered(rendering.get("not_rendered", {}), rendering.get("unsized_media", 0))
    ]
    if note := report.settings.get("note"):
        lines.append(f"{note[0].upper()}{note[1:].rstrip('.')}.")
    if report.skipped:
        lines.append(f"{report.skipped:,} requests hold no text and were left out.")
    if report.left_out:
        lines.append(f"Left out: {', '.join(f'{count:,} {words}' for words, count in report.left_out.items())}.")
    if report.rejected:
        lines.append(f"{report.rejected:,} bad rows were skipped.")
    return lines


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.1f} %"
