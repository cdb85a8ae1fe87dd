"""`kvtrace sweep`: many simulations, one table."""

from __future__ import annotations

import click

from .help import Command
from .options import CHAIN, FIGURE, KV_BYTES, MODEL_CONFIG, QUIET, WARM_UP, figure_writer, json_option
from .output import console, print_json, print_line, print_lines, print_tables
from .simulation_options import own_policies


@click.command("sweep", cls=Command, groups={"--block-size": "Cache", "--seed": "Input", "--requests": "Input"}, examples=(
    "kvtrace sweep trace.jsonl -o table.csv --policy lru,sieve --capacity auto",
    "kvtrace sweep trace.jsonl --policy lru,arc --capacity 10%,25%,50% --block-size 1x,2x",
))
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="FILE", help="Table to write, by suffix: .csv, .json, .jsonl or .parquet, also with .gz or .zst; - writes CSV to stdout.")
@click.option("--policy", "policies", default="lru", metavar="P,...", help="Eviction orders and bounds, as in simulate. With belady, each row has its gap to it.")
@click.option("--capacity", default="auto", metavar="C,...", help="Capacities, as in simulate. auto: ten for each trace, from its longest request to its working set.")
@click.option("--engine", "engines", default="reference", metavar="E,...", help="Engines, as in simulate.")
@click.option("--mode", "modes", default="block", metavar="M,...", help="What is cached: block, token or grow, as in simulate.")
@click.option("--schedule", "schedules", default="serial", metavar="S,...", help="Requests that are active together: serial, concurrency:N, open-loop:MS, as in simulate.")
@click.option("--block-size", "block_sizes", default="1x", metavar="B,...", help="Block sizes: factors as in 2x, or tokens (a multiple of the block size of the trace).")
@click.option("--seed", "seeds", default="0", metavar="S,...", help="If a TRACE is a fitted model: seeds of its samples; 0:5 is 0,1,2,3,4.")
@click.option("--requests", type=click.IntRange(1), metavar="N", help="Requests per sample of a model.  [default: as many as the model was fitted to]")
@click.option("--capacity-counts", default="total", metavar="WHAT", help="Blocks that count: total or idle, as in simulate. (reference)")
@click.option("--pool", default="flat", metavar="WHICH", help="Blocks that can be evicted: flat or leaf-first, as in simulate. (reference)")
@click.option("--tree", default="unified", metavar="WHICH", help="Tree of the cache: unified or radix, as in simulate. (sglang)")
@click.option("--free-order", default="prepend", metavar="HOW", help="Position of freed unhashed blocks: prepend or append, as in simulate. (vllm)")
@click.option("--watermark", default="off", metavar="HOW", help="Eviction at 80 % use: on or off, as in simulate. (lmcache)")
@WARM_UP
@click.option("--resume", is_flag=True, help="Continue a stopped sweep from FILE.cells.jsonl.")
@click.option("--runner", default="local", type=click.Choice(["local", "ray"]), help="local: threads. ray: tasks on a cluster whose machines can read the TRACE files.")
@click.option("--ray-address", metavar="A", help="A Ray cluster: auto, or host:port.  [default: a new local cluster]")
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Number of simulations at a time; with Ray, of tasks, which run up to eight simulations each.  [default: one for each core; with Ray, two]")
@json_option("cache/sweep.md")
@FIGURE
@MODEL_CONFIG
@KV_BYTES
@click.option("--trace-block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens per block of the TRACEs.  [default: from their sidecars, else inferred]")
@CHAIN
@QUIET
def sweep_command(traces, output, resume, runner, ray_address, workers, as_json, png, svg, quiet, **options):
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
    write_figure = figure_writer(png, svg, quiet)
    grid = _grid(traces, **options)
    with RequestProgress(console(), quiet) as bar, own_policies():
        table = sweep(
            grid, output, resume=resume, runner=runner, threads=workers, ray_address=ray_address,
            on_total=bar.expect, on_progress=bar.update,
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


def _grid(traces, *, policies, engines, modes, schedules, block_sizes, seeds, model_config, kv_bytes_per_token, **others):
    """The grid of the options."""
    from .._base.units import names
    from ..cache.engines import DEFAULTS, non_default
    from ..cache.sweeps import Grid
    from ..serving.models.layers import chosen

    engine_options = non_default({name: others.pop(name) for name in DEFAULTS})
    lists = {"policies": policies, "engines": engines, "modes": modes, "schedules": schedules, "block_sizes": block_sizes}
    return Grid(
        tuple(traces), **{name: tuple(names(text)) for name, text in lists.items()}, seeds=_seeds(seeds), engine_options=engine_options,
        kv_bytes_per_token=chosen(model_config, kv_bytes_per_token), **others,
    )  # fmt: skip


def _seeds(text):
    """Parse a comma-separated list of seeds and ranges such as 0:5."""
    from .._base.errors import UsageError
    from .._base.units import names

    seeds = []
    for part in names(text):
        ends = part.split(":")
        if len(ends) > 2 or not all(end.isdecimal() and len(end) < 10 for end in ends) or int(ends[-1]) - int(ends[0]) > 10**6:
            raise UsageError(f"{part!r} is not a seed. Example: 0,1,2 or 0:3.")
        seeds += range(int(ends[0]), int(ends[1])) if len(ends) == 2 else [int(part)]
    if not seeds:
        raise UsageError(f"{text!r} has no seeds. Example: 0,1,2 or 0:3.")
    return tuple(dict.fromkeys(seeds))

