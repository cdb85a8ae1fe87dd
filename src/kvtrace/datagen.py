"""The `datagen` command: the names, flags, defaults and table of NVIDIA Dynamo's tool, over kvtrace."""

from __future__ import annotations

import click

from . import __version__, cli


@click.group(context_settings=cli.CONTEXT)
@click.version_option(__version__, message="datagen (kvtrace %(version)s)")
def commands() -> None:
    """Analyze prefix-cache traces, with the flags of Dynamo's datagen."""


@commands.command()
@click.option("--input-file", default="mooncake_trace.jsonl", metavar="FILE", help="The trace to analyze.")
@click.option("--block-size", default=512, type=click.IntRange(1), metavar="TOKENS", help="Tokens a block.")
def analyze(input_file, block_size):
    """Print datagen's statistics of a trace; `kvtrace analyze` says more."""
    from . import formats
    from .analyze import basics
    from .cli.output import print_tables
    from .report.analysis import datagen_table

    print_tables([datagen_table(basics(formats.read(input_file, block_size=block_size, extra="ignore")))])


def main() -> None:
    """Run the command; failures end as those of kvtrace do."""
    cli.main(commands, "datagen")
