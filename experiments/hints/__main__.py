"""`python -m experiments.hints FOLDER`: the tables of experiments/hints.md, from a folder of Weka sessions."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

from experiments.hints.closed_loop import LANES, closed_loop
from experiments.hints.load import sessions_of
from experiments.hints.open_loop import open_loop
from experiments.hints.tables import closed_table, open_table, put
from kvtrace.trace.trace import Trace


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False))
@click.option("--seeds", default=5, type=click.IntRange(1), metavar="N", help="Orders and starts of the sessions.")
@click.option("--page", type=click.Path(dir_okay=False, exists=True), help="Also replace the tables of this page.")
def main(folder: str, seeds: int, page: str | None) -> None:
    """Simulate policies with hints on recorded sessions, and print one table for each load."""
    import kvtrace

    tables = tables_of(kvtrace.read(folder), seeds)
    for name, table in tables.items():
        click.echo(f"{name}\n\n{table}\n")
    if page:
        put(Path(page), tables)


def tables_of(trace: Trace, seeds: int) -> dict[str, str]:
    """All tables: of the sessions that policies were chosen on, and of the held-out third."""
    context, tables = int(np.median(trace.prompt_blocks)), {}
    for part, held_out in (("development", False), ("held out", True)):
        sessions = sessions_of(trace, held_out=held_out)
        tables[f"{part}, open loop"] = open_table(open_loop(sessions, context, range(seeds), _say))
        points = closed_loop(sessions, context, range(seeds), _say)
        for lanes in LANES:
            for dram in (False, True):
                name = f"{part}, closed loop, {lanes} lanes{', DRAM' if dram else ''}"
                tables[name] = closed_table([one for one in points if (one.lanes, one.dram) == (lanes, dram)])
    return tables


def _say(run: str) -> None:
    click.echo(run, err=True)


if __name__ == "__main__":
    main()
