"""`kvtrace simulate`: the hits of a prefix cache on a trace."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import zip_longest

import click

from . import completion
from .deployment_options import deployment_json, deployment_notes, expected_errors
from .help import Command
from .options import (
    ASSUME_OUTPUT,
    CSV,
    DOMAINS,
    FIGURE,
    STREAMED,
    RowsOption,
    assumed,
    extrapolations,
    figure_writer,
    json_option,
    load,
    remarks_of,
    require_one,
)
from .output import Outcome, console, print_lines, print_notes, print_result, print_tables
from .simulation_options import (
    APART,
    CACHE,
    IN_TIME,
    LOOP_WARM_UP,
    ROUTERS,
    capacity_as_written,
    kv_bytes_of,
    needs_of,
    own_policies,
    run_of,
    unbounded_groups,
    with_caches,
    with_layouts,
)


def _policies():
    from ..cache.policies import POLICIES

    names = [row.example if row.required else name for name, row in POLICIES.items() if not row.bound]
    bounds = [name for name, row in POLICIES.items() if row.bound]
    return [*names, f"or your class as module:Class; bounds: {', '.join(bounds)}"]


@click.command("simulate", cls=Command, examples=(
    "kvtrace simulate trace.jsonl --policy lru,arc,sieve --capacity 25%",
    "kvtrace simulate trace.jsonl --engine vllm,sglang --capacity 400,50%",
    "kvtrace simulate trace.jsonl --capacity 200 --instances 4 --router kv-aware --schedule open-loop:30",
    "kvtrace simulate trace.jsonl --gpu h100 --model config.json",
))
@click.argument("trace", metavar="TRACE")
@click.option("--policy", "policies", default="lru", metavar="P,...", cls=RowsOption, rows=_policies, help="Eviction policies: {rows}.")
@click.option("--capacity", default="auto", metavar="C,...", help="Capacities. Example: 1000,64ktokens,24GiB,50%. A plain number is blocks; % is of the working set. auto: ten from the longest request to the working set.")
@click.option("--engine", "engine_names", metavar="E,...", cls=RowsOption, rows=completion.engines, help="Engine whose cache is simulated: {rows}.  [default: reference; with --gpu and the policy lru vllm]")
@CACHE
@ROUTERS
@APART
@IN_TIME
@DOMAINS
@LOOP_WARM_UP
@click.option("--over-time", metavar="WINDOW", help="Also print the counts of each time window. Example: 10m.")
@click.option("--per-request", metavar="FILE", help="Also write the hit blocks of each request as CSV; - writes it to stdout in place of the tables.")
@click.option("-v", "--verbose", is_flag=True, help="Also print evictions, and a table of the load of each instance.")
@click.option("--no-gap", is_flag=True, help="Do not compute the gap to belady, the best possible eviction order; it needs one more simulation for each capacity.")
@json_option("cache/simulate.md")
@CSV
@FIGURE
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Number of simulations at a time.  [default: one for each core]")
@ASSUME_OUTPUT
@STREAMED
def simulate_command(trace, capacity, tiers, over_time, per_request, warm_up, quiet, **options):
    """Simulate prefix caches: engines, policies, capacities.

    Every engine runs with every policy at every capacity. With --gpu the requests are served in time. --engine dynamo
    has step times of its own, those of Dynamo's offline replay, and needs no --gpu. TRACE - is stdin.
    """
    from .._base.errors import UsageError
    from .._base.output_files import write_atomically
    from .._base.units import leading_rows, names
    from ..report import simulation_tables as simulation_report
    from ..report.progress import RequestProgress
    from ..report.simulation_tables import compare_fleets, compare_loops, fleet_tables, loop_tables
    from ..trace.domains import in_domains

    as_json, as_csv = options["as_json"], options["as_csv"]
    require_one(as_json, as_csv)
    if per_request == "-" and (as_json or as_csv):
        raise UsageError(f"--per-request - and {'--json' if as_json else '--csv'} both write to stdout. Use one of them.")
    write_figure = figure_writer(options["png"], options["svg"], quiet)
    run = run_of(options, engines=options["engine_names"], policies=options.pop("policies"), warm_up=warm_up, routers=options.pop("routers"))
    kv_bytes = kv_bytes_of(run, options)
    beyond = "--over-time" if over_time else "--model with windows or states" if unbounded_groups(run) else None

    def need(dataset):
        count = 10 if capacity == "auto" else len(names(capacity))
        first = replace(run, cache=replace(run.cache, tiers={"": 1} if tiers else None))
        return first.memory_need(dataset, count, options["workers"], per_request=bool(per_request), beyond=beyond)

    loaded = load(trace, options["memory"], quiet, need, block_size=options["block_size"], chain=options["chain"], ids=True)
    loaded = assumed(loaded, options["assume_output"])
    viewed = in_domains(loaded, run.cache.domains)
    run = with_layouts(run, options, loaded.block_size)
    units = {"block_size": loaded.block_size, "working_set": viewed.working_set, "kv_bytes_per_token": kv_bytes}
    with write_atomically(per_request) if per_request else nullcontext() as stream:
        with RequestProgress(console(), quiet) as bar, own_policies():
            run = run.changed(warm_up=0 if run.loop else leading_rows(warm_up, loaded.timestamp))
            with capacity_as_written(capacity, loaded, units):
                run = with_caches(run, loaded, units, capacity=capacity, tiers=tiers)
                simulations = run.simulate(loaded, workers=options["workers"], on_start=bar.expect, on_progress=bar.update)
        extrapolated = extrapolations(run.time.costs, simulations.runs, allowed=run.time.extrapolate)
        if stream:
            simulation_report.write_per_request(simulations.runs, stream)
    deployment = run.time.deployment
    values = simulation_report.to_dict(viewed, [
        simulation_report.result(simulation, simulations.optimum_of(simulation), kv_bytes_per_token=kv_bytes, gpus=run.time.deployment.gpus_per_instance, window_ms=over_time, isolation=isolation)
        for simulation, isolation in zip_longest(simulations.runs, simulations.isolation)
    ], deployment_json(run.time))  # fmt: skip
    compare_loops(values["results"])
    compare_fleets(values["results"])
    remarks = remarks_of(viewed, *needs_of(run, over_time))
    expected = expected_errors(simulations.runs)
    as_csv_text = simulation_report.as_csv(values["results"]) if as_csv else None
    if not print_result(values, remarks, as_json=as_json, as_csv=as_csv_text, notes=expected) and per_request != "-":  # stdout has the CSV
        print_tables([*simulation_report.tables(values, simulations.runs, verbose=options["verbose"]), *loop_tables(values["results"]), *fleet_tables(values["results"])])
        print_notes(simulation_report.isolation_notes(values))
        print_notes(deployment_notes(run.time))
        print_notes(simulation_report.overload_notes(simulations.runs))
        print_notes(simulation_report.layout_notes(values))
        print_notes([*remarks.values(), *expected])
        if run.time.deployment.model is not None:
            from ..serving.models.engine_layout import counted_as_full

            print_notes(filter(None, [counted_as_full(run.time.deployment.model, [engine for engine in run.cache.engines if engine not in run.cache.layouts])]))
    if not quiet:
        warnings = dict.fromkeys([*deployment.warnings, *map(simulation_report.warning, simulations.runs), *extrapolated])
        print_lines(("warning", warning) for warning in warnings if warning)
        print_lines([("wrote", per_request)] if per_request not in (None, "-") else [])
    write_figure(simulations)
    sizes = [row["capacity_bytes"] for row in values["results"] if "capacity_bytes" in row]
    return Outcome(replace(simulations, capacity_bytes=sizes))
