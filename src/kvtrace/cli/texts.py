"""`kvtrace texts`: make up prompts with a trace's lengths and shared prefixes."""

from __future__ import annotations

import click

from .completion import Name, prompt_forms
from .help import Command
from .options import BLOCK_SIZE_OF_TRACE, QUIET_ERRORS
from .output import Outcome, console, is_silent, print_lines


@click.command("texts", cls=Command, page="text/tokenizers.md", groups={"--model": "Text", "--seed": "Text"}, types={"--to": Name(prompt_forms)}, examples=(
    "kvtrace texts trace.jsonl -o prompts.jsonl",
    "kvtrace texts trace.jsonl -o bodies.jsonl --to openai --model my-model",
))
@click.argument("trace", metavar="TRACE")
@click.option("-o", "--output", required=True, metavar="FILE", help="JSON Lines file to write; - is stdout. The name may end in .gz or .zst.")
@click.option("--tokenizer", metavar="NAME", help="Built-in name, o200k_base or cl100k_base, path of a tokenizer.json or of its folder, or Hugging Face id.  [default: from the sidecar, else deepseek-r1]")
@click.option("--to", default="prompts", metavar="FORM", help="Output format: prompts (plain, with times and lengths), openai (chat bodies), vllm (custom data set), sglang (openai data set), aiperf or dag-jsonl (AIPerf, sessions of agents).")
@click.option("--separator", default="none", metavar="TOKEN", help="Control token at the start of each block: none, bos or eos.")
@click.option("--words", metavar="FILE", help="File of words to use, separated by white space.  [default: Lorem Ipsum]")
@click.option("--model", metavar="NAME", help="Model name in chat bodies.  [default: none]")
@BLOCK_SIZE_OF_TRACE
@click.option("--seed", default=0, type=click.IntRange(0), metavar="N", help="Seed of the random words.")
@QUIET_ERRORS
def texts_command(trace, output, tokenizer, to, words, block_size, quiet, **options):
    """Generate prompts with the lengths and sharing of a trace.

    Each prompt is tokenized again and compared with the trace; the summary counts the exact ones. TRACE - is stdin.
    """
    from ..formats import reading
    from ..report.progress import Steps
    from ..text import tokenizers, trial
    from ..text.prompts import write_prompts
    from ..text.prompts.words import read_words
    from ..text.prompts.writing import check_output
    from ..text.tokenizer_files import tokenizer_of

    trial.hides_panics = not is_silent()  # a Python program may write to stderr from its own threads
    check_output(output)
    given = None if tokenizer is None else tokenizers.load(tokenizer)
    vocabulary = None if words is None else read_words(words)
    source = reading.read(trace, block_size=block_size)
    tokenizer = tokenizer or tokenizer_of(source.meta)
    loaded = given or tokenizers.load(tokenizer)
    rows_written = 0
    with Steps(console(), quiet) as bar:

        def progress(rows):
            nonlocal rows_written
            rows_written += rows
            bar.update(rows_written, len(source), "requests")

        written = write_prompts(source, output, loaded, to=to, words=vocabulary, progress=progress, **options)
    if not quiet:
        print_lines(_summary(source, written, output, to, tokenizer, loaded))
    return Outcome(written)


def _summary(trace, written, output, to, name, tokenizer):
    from ..text.prompts.bodies import CHAT_FORMS, usage
    from ..trace.unknown import stated

    exact = f"{written.exact:,} of {written.requests:,} prompts have the trace's lengths and sharing when tokenised again"
    yield "wrote", f"{written.requests:,} prompts, {written.tokens:,} tokens of {tokenizer.name}, {written.words} words: {output}"
    yield "exact", f"{exact} ({written.exact / max(1, written.requests):.2%})"
    if written.no_output:
        yield "lost", f"{written.no_output:,} requests have an output of 0 tokens; 1 is written instead."
    for loss in written.losses:
        yield "lost", loss
    if to in CHAT_FORMS:
        yield "counted", _chat_tokens(name, tokenizer)
    for sentence in stated(trace.meta).values():
        yield "note", sentence
    for line in usage(to, output, len(trace)):
        yield "use", line


def _chat_tokens(name, tokenizer):
    """The number of tokens that the tokenizer's own chat template adds to a text, in words."""
    from ..text import templates

    counted = "input_length counts the text without a chat template"
    template = templates.load(name)
    if template is None:
        return f"{counted}; this tokenizer has none."
    text = " ipsum dolor"
    templated = template.render([{"role": "user", "content": text}])
    added = len(tokenizer.encode(templated)) - len(tokenizer.encode(text))
    return f"{counted}; this tokenizer's template adds {added:,} tokens to each prompt."
