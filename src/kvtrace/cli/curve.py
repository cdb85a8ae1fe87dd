"""`kvtrace curve`: the hit rates of an LRU cache at each capacity."""

from __future__ import annotations

import click

from .._base.options import record_of
from .._base.tables import csv_text
from .help import Command
from .options import (
    CSV,
    DOMAINS,
    FIGURE,
    STREAMED,
    Streamed,
    figure_writer,
    json_option,
    remarks_of,
    require_one,
    viewed,
)
from .output import Outcome, console, print_notes, print_result, print_tables

FULL_ATTENTION = "The curve counts all layers of this model as full attention; kvtrace simulate --engine vllm has its windows and states."


@click.command("curve", cls=Command, groups={"--sample": "Cache", "--seed": "Cache"}, examples=(
    "kvtrace curve trace.jsonl",
    "kvtrace curve trace.jsonl --capacity 100,25% --csv",
    "kvtrace curve trace.jsonl --capacity 40GB --kv-bytes-per-token 131,072",
    "kvtrace curve trace.jsonl --instances 8 --first-tier 500 --model llama-3.1-8b",
))
@click.argument("trace", metavar="TRACE")
@click.option("--capacity", default="auto", metavar="LIST", help="Capacities. Example: 1000,64ktokens,24GiB,50%. A plain number is blocks; % is of the working set. auto: from the longest request to the working set.")
@click.option("--points", default=25, type=click.IntRange(1, 10_000), metavar="N", help="Number of capacities for auto; with --instances at most 8.")
@click.option("--instances", type=click.IntRange(1), metavar="N", help="A pool below N instances: --capacity has the sizes of the pool.")
@click.option("--router", metavar="R", help="With --instances: what stands before them.  [default: round-robin]")
@click.option("--first-tier", metavar="C", help="With --instances: the capacity of each instance's own cache.")
@json_option("analysis/curve.md")
@CSV
@FIGURE
@click.option("--sample", type=float, metavar="SHARE", help="Estimate from this share of the blocks, with errors.  [default: all blocks, exact]")
@click.option("--seed", default=0, type=click.IntRange(0, 2**31 - 1), metavar="N", help="Seed of the sample.")
@DOMAINS
@STREAMED
def curve_command(trace, capacity, points, as_json, as_csv, sample, seed, domains, instances, router, first_tier, **options):
    """Print the hit rate of an LRU cache at each capacity.

    The rates are exact and take one pass. With --instances, the capacities are those of a pool that instances share,
    and the hits are those of their own caches and of the pool. TRACE - is stdin.
    """
    from ..analysis.capacities import hint_on_commas, parse_capacities
    from ..analysis.curves import hit_curve
    from ..formats.lazy import LazyTrace
    from ..formats.memory_needs import curving, sampled
    from ..report import capacity_tables
    from ..report.progress import CURVE, Work

    require_one(as_json, as_csv)
    source = record_of(Streamed, options)
    if instances is not None or router is not None or first_tier is not None:
        _require_pool(instances, first_tier, sample, options)
        return _pool_curve(trace, capacity, points, as_json, as_csv, domains, instances, router or "round-robin", first_tier, source)
    write_figure = figure_writer(options["png"], options["svg"], source.quiet)
    kv_bytes = source.kv_bytes()
    with Work(console(), "curve", CURVE, source.quiet) as work:
        work.step("read")
        loaded = source.load(trace, lambda dataset: curving(dataset, sample), extra=())
        loaded, view, view_notes = viewed(loaded, domains)
        work.requests = len(loaded)
        work.step("curve")
        limited = sample and source.memory and isinstance(loaded, LazyTrace)
        max_references = sampled(loaded.dataset, sample) if limited else None
        curve = hit_curve(loaded, sample=sample, seed=seed, max_references=max_references)
    units = {"block_size": curve.block_size, "working_set": curve.working_set, "kv_bytes_per_token": kv_bytes}
    capacities = curve.capacities(points) if capacity == "auto" else parse_capacities(capacity, **units)
    values = curve.to_dict(sorted(set(capacities)), kv_bytes_per_token=kv_bytes)
    remarks = remarks_of(loaded, "prefixes")
    if not print_result(values | view, remarks, as_json=as_json, as_csv=capacity_tables.curve_csv(values) if as_csv else None):
        print_tables([capacity_tables.curve_table(values)])
        print_notes([*capacity_tables.curve_notes(values), *notes_on(source.model_config), *view_notes, *remarks.values(), *filter(None, [hint_on_commas(capacity, values["longest"])])])
    write_figure(curve, kv_bytes_per_token=kv_bytes)
    return Outcome(curve.shown(sorted(set(capacities)), kv_bytes))


def _require_pool(instances, first_tier, sample, options) -> None:
    """UsageError if the options do not name instances with caches, or the curve of one cache alone has one of them."""
    if instances is None or first_tier is None:
        raise click.UsageError("A pool's curve needs --instances and --first-tier. Example: --instances 8 --first-tier 5000.")
    for name, given in (("--sample", sample), ("--memory", options["memory"]), ("--png", options["png"]), ("--svg", options["svg"])):
        if given:
            raise click.UsageError(f"{name} is not supported with --instances. Leave it out.")


def _pool_curve(path, capacity, points, as_json, as_csv, domains, instances, router, first_tier, source):
    """Print what pools of several sizes add to instances."""
    from .._base.errors import UsageError
    from ..analysis.capacities import log_spaced, parse_capacities, parse_capacity
    from ..formats.memory_needs import curving
    from ..report import plan_tables
    from ..report.progress import CURVE, Work
    from ..serving.planning.pools import pool_curve

    kv_bytes = source.kv_bytes()
    with Work(console(), "curve", CURVE, source.quiet) as work:
        work.step("read")
        loaded, view, view_notes = viewed(source.load(path, lambda dataset: curving(dataset, None)), domains)
        work.requests = len(loaded)
        units = {"block_size": loaded.block_size, "working_set": loaded.working_set, "kv_bytes_per_token": kv_bytes}
        work.step("curve")
        auto = [0, *log_spaced(int(loaded.prompt_blocks.max(initial=1)), loaded.working_set, min(points, 8))]
        sizes = auto if capacity == "auto" else parse_capacities(capacity, **units)
        first = parse_capacity(first_tier, **units)
        try:
            curve = pool_curve(loaded, sizes, instances=instances, first=first, router=router, kv_bytes_per_token=kv_bytes)
        except UsageError as error:  # the first tier is an option of its own here
            error.args = (str(error).replace("--tiers hbm=", "--first-tier "),)
            raise
    remarks = remarks_of(loaded, "prefixes", "outputs", "times")
    values = curve.to_dict()
    if not print_result(values | view, remarks, as_json=as_json, as_csv=csv_text(values["rows"]) if as_csv else None):
        print_tables([plan_tables.pool_table(curve)])
        print_notes([*notes_on(source.model_config), *view_notes, *remarks.values()])
    return Outcome(curve)


def notes_on(model):
    """What the curve of a model leaves out; without one, the cache's kernels need not be loaded."""
    if model is None:
        return []
    from ..serving.models.engine_layout import has_groups

    return [FULL_ATTENTION] if has_groups(model) else []
