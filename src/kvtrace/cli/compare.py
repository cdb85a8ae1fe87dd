"""`kvtrace compare`: how faithful one trace is to another."""

from __future__ import annotations

import click

from .output import print_json, print_tables


@click.command()
@click.argument("a", metavar="TRACE")
@click.argument("b", metavar="TRACE2")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; docs/analysis/compare.md lists its keys.")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values with a header, a figure a line.")
@click.option(
    "--block-size",
    type=click.IntRange(1),
    metavar="TOKENS",
    help="Tokens a block, in both.  [default: each one's sidecar's, else inferred]",
)
@click.option("--chain", is_flag=True, help="Re-chain ids of blocks that were hashed without their prefix.")
def compare(a, b, as_json, as_csv, block_size, chain):
    """Say how faithful TRACE2 is to TRACE: a score from 0 to 1 for each figure, with the figure beside it."""
    import os

    from .._base.errors import UsageError
    from .._base.files import name_of
    from ..analysis.comparison import compare as compared
    from ..formats import reading
    from ..report import comparison

    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other. Give one of them.")
    if a == b == "-":
        raise UsageError("both traces are stdin, which holds one. Name a file for one of them.")
    traces = [reading.read(path, block_size=block_size, extra="ignore") for path in (a, b)]
    first, second = (trace.chained() if chain else trace for trace in traces)
    names = os.path.basename(name_of(a)), os.path.basename(name_of(b))
    names = names if names[0] != names[1] else (name_of(a), name_of(b))  # of one name in two folders
    found = compared(first, second, names=names)
    if as_json:
        print_json(found.to_dict())
    elif as_csv:
        click.echo(comparison.as_csv(found), nl=False)
    else:
        print_tables(found.tables())
        for line in found.notes:
            click.echo(line)
