"""`kvtrace analyze`: statistics of a trace."""

from __future__ import annotations

from dataclasses import replace

import click

from .._base.options import record_of
from ..serving.deployment import Deployment
from . import completion
from .help import Command
from .options import (
    DOMAINS,
    FIGURE,
    STREAMED,
    RowsOption,
    Streamed,
    engine_units,
    figure_writer,
    given,
    json_option,
    record_options,
    remarks_of,
    viewed,
)
from .output import Outcome, console, print_notes, print_result, print_tables

DIVIDED = ("tensor_parallel_size", "kv_cache_dtype")  # fields of a Deployment that change its cache groups


@click.command("analyze", cls=Command, groups={"--fold": "Output"}, types={"--engine": completion.Name(completion.grouped_engines)}, examples=(
    "kvtrace analyze trace.jsonl",
    "kvtrace analyze trace.jsonl --quantiles 90%,99% --fold 1,2,4",
    "kvtrace analyze trace.jsonl --model gpt-oss-20b --engine vllm",
    "kvtrace analyze trace.jsonl --basic --json",
))
@click.argument("trace", metavar="TRACE")
@click.option("--basic", is_flag=True, help="Print only the statistics of datagen and AIPerf.")
@json_option("analysis/analyze.md")
@FIGURE
@click.option("--quantiles", metavar="Q,...", help="Extra quantiles of each distribution. Example: 0.9,0.99.")
@click.option("--fold", "factors", metavar="N,...", help="Also print hit rates at block sizes N times as large. Example: 1,2,4.")
@click.option("--ms-per-token", default=30.0, type=click.FloatRange(0), metavar="TIME", help="Decode time per output token, such as 30 (ms) or 30ms; sets the mean concurrency that is printed.")
@click.option("--engine", metavar="E", cls=RowsOption, rows=completion.grouped_engines, help="With --model: also print how many of the possible hits the model has in this engine, with its windows and states: {rows}.")
@click.option("--capacity", metavar="C", help="With --engine: capacity of its cache, such as 20000 or 40GiB.  [default: memory for all blocks]")
@record_options(Deployment, only=DIVIDED)
@DOMAINS
@STREAMED
def analyze_command(trace, basic, as_json, quantiles, factors, ms_per_token, engine, capacity, domains, **options):
    """Print statistics: lengths, hit rates, reuse, arrivals.

    The hit rates are those of a cache that never evicts. TRACE - is stdin.
    """
    from .._base.units import factors as parse_factors
    from .._base.units import quantiles as parse_quantiles
    from ..analysis.block_sizes import block_size_table, by_block_size
    from ..analysis.summary import analyze, basics
    from ..formats.memory_needs import ANALYZED, analyzing
    from ..report.progress import ANALYZE, Work
    from ..trace.building import stated_note

    divided = given(Deployment, options)
    if divided and not engine:
        raise click.UsageError("--tensor-parallel-size and --kv-cache-dtype need --engine.")
    source, png, svg = record_of(Streamed, options), options["png"], options["svg"]
    write_figure = figure_writer(png, svg, source.quiet)
    if (engine and not source.model_config) or (capacity and not engine):
        raise click.UsageError("--engine needs --model, and --capacity needs --engine.")
    extra_quantiles, fold_factors = parse_quantiles(quantiles), parse_factors(factors)
    kv_bytes = source.kv_bytes()
    whole = "--engine" if engine else "--fold" if factors else "--png" if png else "--svg" if svg else None
    with Work(console(), "analyze", ANALYZE, source.quiet) as work:
        work.step("read")
        loaded = source.load(trace, analyzing, whole=whole, extra=() if basic else ANALYZED)
        fixes = loaded.fixes
        loaded, view, notes = viewed(loaded, domains)
        notes = [*notes, *stated_note(loaded, loaded.tail, loaded.block_size)]
        loaded.fixes = fixes  # a view of domains is a trace of its own
        work.requests = len(loaded)
        work.step("count")
        if basic:
            statistics = basics(loaded, extra_quantiles)
        else:
            statistics = analyze(loaded, quantiles=extra_quantiles, ms_per_token=ms_per_token, kv_bytes_per_token=kv_bytes)
        sizes = by_block_size(loaded, fold_factors) if fold_factors else []
        reached = _reached(loaded, Deployment(source.model_config, engine, **divided), capacity, kv_bytes) if engine else None
    remarks = remarks_of(loaded, "prefixes", "outputs", "times")
    if as_json:
        reachable = {"reachable_hits": reached.to_dict()} if reached else {}
        by_size = {"by_block_size": [size.to_dict() for size in sizes]} if sizes else {}
        print_result(statistics.to_dict() | view | reachable | by_size, remarks, as_json=True, as_csv=None)
    else:
        print_tables([*statistics.tables(), *([block_size_table(sizes)] if sizes else [])])
        order = remarks.values() if basic else statistics.notes
        print_notes([*order, *notes, *([str(reached)] if reached else [])])
    write_figure(loaded, kv_bytes_per_token=kv_bytes)
    return Outcome(replace(statistics, by_block_size=sizes, reachable_hits=reached))


def _reached(trace, deployment, capacity, kv_bytes):
    """What the cache of a deployment makes of the possible hits."""
    from ..analysis.capacities import parse_capacity
    from ..serving.models.engine_layout import layouts_for
    from ..serving.models.possible_hits import reachable_hits

    layout = layouts_for(deployment, [deployment.engine], trace.block_size).get(deployment.engine)
    units = {"block_size": trace.block_size, "working_set": trace.working_set, "kv_bytes_per_token": kv_bytes}
    blocks = parse_capacity(capacity, **engine_units(layout, trace.block_size, units, deployment.gpus_per_instance)) if capacity else None
    return reachable_hits(trace, deployment, capacity=blocks)
