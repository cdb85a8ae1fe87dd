"""`kvtrace texts`: prompts that a trace could have come from, made up."""

from __future__ import annotations

import click

from .output import console


@click.command()
@click.argument("trace", metavar="TRACE")
@click.option("-o", "--output", required=True, metavar="FILE", help="JSON Lines to write; - is stdout. .gz, .zst by name.")
@click.option("--tokenizer", required=True, metavar="NAME", help="deepseek-r1 (built in), the path of a tokenizer.json or of its folder, or a Hugging Face id.")
@click.option("--to", default="prompts", metavar="FORM", help="prompts (plain, with times and lengths), openai (chat bodies), vllm (custom data set), sglang (openai data set), aiperf.")
@click.option("--separator", default="none", metavar="TOKEN", help="What stands first in each block: none, bos, eos.")
@click.option("--words", metavar="FILE", help="Words to write with, apart by spaces or lines.  [default: Lorem Ipsum]")
@click.option("--model", metavar="NAME", help="The model that chat bodies name.  [default: none]")
@click.option("--block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens a block of TRACE.  [default: the sidecar's, else inferred]")
@click.option("--seed", default=0, type=click.IntRange(0), metavar="N", help="What the words are drawn with.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")
def texts(trace, output, tokenizer, to, separator, words, model, block_size, seed, quiet):
    """Make up prompts with the lengths and the sharing of TRACE; - is stdin.

    Every prompt is tokenised again and compared with the trace: the summary counts those that came back exactly.
    """
    from ..formats import reading
    from ..report.progress import Steps
    from ..text import prompts as replay
    from ..text import tokenizers

    loaded = tokenizers.load(tokenizer)
    vocabulary = None if words is None else _words(words)
    whole = reading.read(trace, block_size=block_size)
    done = 0
    with Steps(console(), quiet) as bar:

        def progress(rows):
            nonlocal done
            done += rows
            bar.update(done, len(whole), "requests")

        written = replay.write(
            whole, output, loaded, to=to, separator=separator, words=vocabulary, seed=seed, model=model, progress=progress
        )
    if not quiet:
        _say(whole, written, output, to, tokenizer, loaded)


def _words(path):
    from .._base.errors import InputError
    from .._base.input_files import open_read

    with open_read(path) as stream:
        try:
            found = stream.read().decode("utf-8").split()
        except UnicodeDecodeError:
            raise InputError(f"{path}: not UTF-8 text.") from None
    if not found:
        raise InputError(f"{path}: holds no words.")
    return found


def _say(trace, written, output, to, name, tokenizer):
    from ..text.prompts.bodies import IS_CHAT, usage

    exact = f"{written.exact:,} of {written.requests:,} prompts re-tokenise to the trace's lengths and sharing"
    lines = [
        ("wrote", f"{written.requests:,} prompts, {written.tokens:,} tokens of {tokenizer.name}, {written.words} words: {output}"),
        ("exact", f"{exact} ({written.exact / max(1, written.requests):.2%})"),
    ]
    if written.no_output:
        lines.append(("lost", f"{written.no_output:,} requests have an output of 0 tokens; they ask for 1."))
    if to in IS_CHAT:
        lines.append(("counted", _chat_tokens(name, tokenizer)))
    lines += [("use", line) for line in usage(to, output, len(trace))]
    screen = console()
    for word, line in lines:
        screen.print(f"{word:<12}{line}", highlight=False, markup=False)


def _chat_tokens(name, tokenizer):
    """How many tokens the tokenizer's own chat template adds to a text."""
    from ..text import templates

    counted = "input_length is the text's tokens, without a chat template"
    template = templates.load(name)
    if template is None:
        return f"{counted}; this tokenizer has none."
    text = " ipsum dolor"
    whole = template.render([{"role": "user", "content": text}])
    added = len(tokenizer.encode(whole)) - len(tokenizer.encode(text))
    return f"{counted}; this tokenizer's adds {added:,} tokens to a prompt of words."
