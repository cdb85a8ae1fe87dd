"""`kvtrace join`: one trace from the linked windows of a recording, audited."""

from __future__ import annotations

import click

from .help import Command
from .output import Outcome, console, print_line


@click.command("join", cls=Command, page="capture/record.md", examples=(
    "kvtrace join windows/monday.jsonl windows/tuesday.jsonl -o days.jsonl",
    "kvtrace join windows/monday.jsonl windows/tuesday.jsonl -o days.parquet --quiet",
))
@click.argument("traces", metavar="WINDOW...", nargs=-1, required=True)
@click.option("-o", "--output", required=True, metavar="FILE", help="File to write; - is stdout. The name may end in .gz, .zst, .parquet or .dataset.")
@click.option("--format", "to", metavar="NAME", help="Trace format: mooncake, bailian or parquet.  [default: from the file name, else mooncake]")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
def join_command(traces, output, to, quiet):
    """Join linked windows of a recording to one audited trace.

    The windows are those that `kvtrace record --link-windows` writes, each with its sidecar and its links file
    beside it. Blocks and sessions that the links equate are one again; times count from the first window's start.
    A data card and a sidecar are written beside FILE, if the audit passes.
    """
    from .._base.file_locks import only_writer
    from ..formats import writing
    from ..formats.sidecar import sidecar_path
    from ..privacy.joining import join_windows
    from ..privacy.publishing import publish
    from ..report import release_tables

    writing.check_output(output, to)
    with only_writer(output, (sidecar_path(output), writing.card_path(output))):
        joined = join_windows(traces)
        written = publish(joined, output, format=to)
    if not quiet:
        screen, windows = console(), f"{len(traces):,} window{'' if len(traces) == 1 else 's'}"
        requests = f"{len(joined):,} request{'' if len(joined) == 1 else 's'}"
        print_line(screen, f"joined      {windows}: {requests}, {joined.distinct:,} distinct blocks")
        for line in release_tables.audited(written):
            print_line(screen, line)
    return Outcome(written)
