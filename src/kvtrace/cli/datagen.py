"""The `datagen` command: the flags, defaults and table of NVIDIA Dynamo's tool, on top of kvtrace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .. import __version__, cli
from .options import CHAIN, SAME_BYTES, remarks_of
from .output import keep_inputs

TOKENS: dict[str, Any] = {"type": int, "metavar": "TOKENS"}
TIMES: dict[str, Any] = {"default": 1.0, "metavar": "X"}


@click.group(context_settings=cli.CONTEXT)
@click.version_option(__version__, message="datagen (kvtrace %(version)s)")
def commands() -> None:
    """Analyze and synthesize prefix-cache traces, with the flags of Dynamo's datagen."""


@commands.command("analyze")
@click.option("--input-file", default="mooncake_trace.jsonl", metavar="FILE", help="The trace to analyze.")
@click.option("--block-size", default=512, type=click.IntRange(1), metavar="TOKENS", help="Tokens per block.")
def analyze_command(input_file, block_size):
    """Print the statistics of datagen; `kvtrace analyze` prints more."""
    from ..analysis.summary import basics
    from ..formats import reading
    from .output import print_tables

    trace = reading.read(input_file, block_size=block_size, extra="ignore")
    print_tables([datagen_table(basics(trace), remarks_of(trace, "prefixes", "outputs").values())])


@commands.command("synthesize")
@click.option("--input-file", default="mooncake_trace.jsonl", metavar="FILE", help="The trace to fit.")
@click.option("--num-requests", default=100_000, type=click.IntRange(1), metavar="N", help="Requests to synthesize.")
@click.option("--speedup-ratio", **TIMES, help="Divide times by X.")
@click.option("--prefix-len-multiplier", **TIMES, help="Multiply the length of shared prefixes.")
@click.option("--prefix-root-multiplier", default=1, metavar="N", help="Number of disjoint copies of the shared prefixes.")
@click.option("--prompt-len-multiplier", **TIMES, help="Multiply the length of unique prompt parts.")
@click.option("--osl-multiplier", **TIMES, help="Multiply output lengths.")
@click.option("--min-isl", **TOKENS, help="Redraw shorter prompts.  [default: no limit]")
@click.option("--max-isl", **TOKENS, help="Redraw longer prompts.  [default: no limit]")
@click.option("--min-osl", **TOKENS, help="Raise shorter outputs to this length.  [default: no limit]")
@click.option("--max-osl", **TOKENS, help="Cut longer outputs to this length.  [default: no limit]")
@click.option("--block-size", default=512, type=click.IntRange(1), metavar="TOKENS", help="Tokens per block.")
@click.option("--output-file", metavar="FILE", help="File to write.  [default: a name from the input and the options, in the current folder]")
@SAME_BYTES
@click.option("--max-rejections", default=10_000, metavar="N", help="Stop after N redrawn prompts in a row.")
@click.option(
    "--method", default="attach", type=click.Choice(["attach", "tree"]), help="tree: the algorithm of datagen, with corrections."
)
@CHAIN
def synthesize_command(input_file, num_requests, block_size, output_file, seed, method, chain, **knobs):
    """Synthesize a trace of any size from another trace; `kvtrace synthesize` has more options."""
    from ..synthesis.knobs import Knobs
    from ..synthesis.model_files import model_of
    from ..synthesis.sampling import write_sample
    from .output import print_lines

    settings = Knobs(**knobs)  # validate before reading a long trace
    model = model_of(input_file, method=method, block_size=block_size, chain=chain, extra="ignore")
    output_file = output_file or auto_name(input_file, num_requests, seed, method, settings)
    # a longer trace at the same rate, as in datagen
    written = write_sample(model, num_requests, output_file, seed=seed, scale="duration", knobs=settings)
    print_lines([("wrote", " and ".join(map(str, written)))])


keep_inputs(synthesize_command)


def auto_name(input_file: str, num_requests: int, seed: int, method: str, knobs) -> str:
    """The default name of the output: the input and the options, in the current folder.

    >>> from kvtrace.synthesis.knobs import Knobs
    >>> auto_name("logs/day.jsonl.gz", 500, 7, "tree", Knobs(max_isl=4096, osl_multiplier=1.5))
    'day_synth_500_seed7_tree_osl-multiplier1.5_max-isl4096.jsonl'
    """
    stem = "stdin" if input_file == "-" else Path(input_file).name.split(".")[0] or "trace"
    options = [f"{name.replace('_', '-')}{value}" for name, value in knobs.to_dict().items()]
    return "_".join([stem, "synth", str(num_requests), f"seed{seed}", method, *options]) + ".jsonl"


def main() -> None:
    """Run the command, with the error handling of kvtrace."""
    cli.main(commands, "datagen")


def datagen_table(statistics, remarks=()):
    """The table of `datagen analyze`, with its row and column names."""
    from .._base.tables import TextTable
    from ..analysis.summary import DISTRIBUTIONS

    table = TextTable("Statistics")
    table.add_column("")
    table.add_columns(["Mean", "Std Dev", "Min", "P25", "Median", "P75", "Max"], right=True)
    names = ("Input Length", "Context Length", "Unique Prompt Length", "Output Length", "Theoretical Hit Rates")
    measured = statistics.distributions()
    for name, key in zip(names, DISTRIBUTIONS, strict=True):
        if key in measured:
            table.add_row(name, *("-" if figure is None else f"{figure:,.2f}" for figure in measured[key].figures()))
        else:
            table.add_row(name, *["unknown"] * 7)
    table.caption = " ".join(remarks)
    return table
