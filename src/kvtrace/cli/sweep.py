"""`kvtrace sweep`: many simulations, one table."""

from __future__ import annotations

import click

from ..cache.setup import CacheSetup, Grid
from .help import Command
from .options import (
    CHAIN,
    FIGURE,
    KV_BYTES,
    MODEL_CONFIG,
    QUIET,
    WARM_UP,
    figure_writer,
    json_option,
    record_options,
    taken,
)
from .output import Outcome, console, print_json, print_line, print_lines, print_tables
from .simulation_options import own_policies

HELP = {
    "capacity_counts": {"help": "Blocks that count: total or idle, as in simulate. (reference)"},
    "pool": {"help": "Blocks that can be evicted: flat or leaf-first, as in simulate. (reference)"},
    "tree": {"help": "Tree of the cache: unified or radix, as in simulate. (sglang)"},
    "free_order": {"help": "Position of freed unhashed blocks: prepend or append, as in simulate. (vllm)"},
    "watermark": {"help": "Eviction at 80 % use: on or off, as in simulate. (lmcache)"},
}


@click.command("sweep", cls=Command, examples=(
    "kvtrace sweep trace.jsonl -o table.csv --policy lru,sieve --capacity auto",
    "kvtrace sweep trace.jsonl --policy lru,arc --capacity 10%,25%,50% --block-sizes 1x,2x",
))
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="FILE", help="Table to write, by suffix: .csv, .json, .jsonl or .parquet, also with .gz or .zst; - writes CSV to stdout.")
@record_options(Grid, without=("block_size",))
@record_options(CacheSetup, only=("capacity_counts", "pool", "tree", "free_order", "watermark"), settings=HELP)
@WARM_UP
@click.option("--resume", is_flag=True, help="Continue a stopped sweep from FILE.cells.jsonl.")
@click.option("--runner", default="local", type=click.Choice(["local", "ray"]), help="local: threads. ray: tasks on a cluster whose machines can read the TRACE files.")
@click.option("--ray-address", metavar="A", help="A Ray cluster: auto, or host:port.  [default: a new local cluster]")
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Number of simulations at a time; with Ray, of tasks, which run up to eight simulations each.  [default: one for each core; with Ray, two]")
@json_option("cache/sweep.md")
@FIGURE
@MODEL_CONFIG
@KV_BYTES
@record_options(Grid, only=("block_size",))
@CHAIN
@QUIET
def sweep_command(traces, output, as_json, quiet, **options):
    """Run many simulations and write one table of results.

    Each policy is simulated at each capacity, engine, block size and seed on each TRACE. Without -o the table is
    printed.
    """
    from .._base.errors import UsageError
    from ..cache.sweeps import sweep
    from ..report import capacity_tables
    from ..report.progress import RequestProgress

    if as_json and output == "-":
        raise UsageError("--json and -o - both write to stdout. Use one of them.")
    write_figure = figure_writer(options["png"], options["svg"], quiet)
    grid = _grid(traces, options)
    with RequestProgress(console(), quiet) as bar, own_policies():
        table = sweep(
            grid, output, resume=options["resume"], runner=options["runner"], threads=options["workers"],
            ray_address=options["ray_address"], on_total=bar.expect, on_progress=bar.update,
        )  # fmt: skip
    shows_table = not as_json and (output is None or (output != "-" and len(table.rows) <= capacity_tables.MAX_ROWS))
    if as_json:
        print_json(table.to_dict())
    elif shows_table:
        print_tables(capacity_tables.sweep_tables(table))
    if not quiet:
        print_lines([] if shows_table else capacity_tables.sweep_notes(table))
        written = [] if output in (None, "-") else [f"wrote       {output}", f"cells       {len(table.rows):,}"]
        for line in written + capacity_tables.failure_lines(table):
            print_line(console(), line)
    write_figure(table)
    return Outcome(table)


def _grid(traces, options):
    """The grid of the options."""
    from ..serving.models.layers import chosen

    setup = taken(CacheSetup, options)
    return taken(
        Grid, options, traces=traces, engine_options=setup.engine_options, warm_up=options["warm_up"], chain=options["chain"],
        kv_bytes_per_token=chosen(options["model_config"], options["kv_bytes_per_token"]),
    )  # fmt: skip
