"""`kvtrace curve`: the hit rates of an LRU cache at each capacity."""

from __future__ import annotations

import click

from .large import load
from .options import CSV, FIGURE, STREAMED, figure_writer, json_option, require_one
from .output import print_json, print_tables


@click.command("curve")
@click.argument("trace", metavar="TRACE")
@click.option("--capacity", default="auto", metavar="LIST", help="Capacities. Example: 1000,64ktokens,24GiB,50%. A plain number is blocks; % is of the working set. auto: from the longest request to the working set.")
@click.option("--points", default=25, type=click.IntRange(1, 10_000), metavar="N", help="Number of capacities for auto.")
@json_option("analysis/curve.md")
@CSV
@FIGURE
@click.option("--sample", type=float, metavar="SHARE", help="Estimate from this share of the blocks, with errors.  [default: all blocks, exact]")
@click.option("--seed", default=0, type=click.IntRange(0), metavar="N", help="Seed of the sample.")
@STREAMED
def curve_command(trace, capacity, points, as_json, as_csv, png, svg, sample, seed, model_config, kv_bytes_per_token, block_size, chain, memory, quiet):
    """Print the hit rates of an LRU cache at each capacity, exactly and in one pass. TRACE - is stdin."""
    from ..analysis.capacities import parse_capacities
    from ..analysis.curves import hit_curve
    from ..formats.lazy import LazyTrace
    from ..formats.memory_needs import curving, sampled
    from ..report import curve_tables
    from ..report.plots.capacity import curve_plot
    from ..serving.hardware.kv_bytes import chosen

    require_one(as_json, as_csv)
    write_figure = figure_writer(png, svg, quiet)
    kv_bytes = chosen(model_config, kv_bytes_per_token)
    loaded = load(trace, memory, quiet, lambda dataset: curving(dataset, sample), block_size=block_size, chain=chain, extra=())
    limited = sample and memory and isinstance(loaded, LazyTrace)
    max_references = sampled(loaded.dataset, sample) if limited else None
    curve = hit_curve(loaded, sample=sample, seed=seed, max_references=max_references)
    units = {"block_size": curve.block_size, "working_set": curve.working_set, "kv_bytes_per_token": kv_bytes}
    capacities = curve.capacities(points) if capacity == "auto" else parse_capacities(capacity, **units)
    values = curve.to_dict(sorted(set(capacities)), kv_bytes_per_token=kv_bytes)
    if as_json:
        print_json(values)
    elif as_csv:
        click.echo(curve_tables.as_csv(values), nl=False)
    else:
        print_tables([curve_tables.curve_table(values)])
        for line in curve_tables.notes(values):
            click.echo(line)
    write_figure(lambda: curve_plot(curve, kv_bytes))
