"""`kvtrace simulate`: the hits of a prefix cache on a trace."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from itertools import zip_longest

import click

from ..serving.routers import ROUTERS
from . import completion
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
    layouts_of,
    load,
    remarks_of,
    require_one,
)
from .output import console, print_lines, print_notes, print_result, print_tables
from .simulation_options import (
    CACHE,
    IN_TIME,
    LOOP_NAMES,
    LOOP_WARM_UP,
    caches_of,
    hint_on_commas,
    needs_of,
    own_policies,
    times_of,
)


def _policies():
    from ..cache.policies import POLICIES

    names = [row.example if row.required else name for name, row in POLICIES.items() if not row.bound]
    bounds = [name for name, row in POLICIES.items() if row.bound]
    return [*names, f"or your class as module:Class; bounds: {', '.join(bounds)}"]


@click.command("simulate", cls=Command, groups={"--seed": "Instances and time"}, examples=(
    "kvtrace simulate trace.jsonl --policy lru,arc,sieve --capacity 25%",
    "kvtrace simulate trace.jsonl --engine vllm,sglang --capacity 400,50%",
    "kvtrace simulate trace.jsonl --capacity 200 --instances 4 --router kv-aware --schedule open-loop:30",
    "kvtrace simulate trace.jsonl --gpu h100 --model-config config.json",
))
@click.argument("trace", metavar="TRACE")
@click.option("--policy", "policies", default="lru", metavar="P,...", cls=RowsOption, rows=_policies, help="Eviction orders: {rows}.")
@click.option("--capacity", default="auto", metavar="C,...", help="Capacities. Example: 1000,64ktokens,24GiB,50%. A plain number is blocks; % is of the working set. auto: ten from the longest request to the working set.")
@click.option("--engine", "engine_names", metavar="E,...", cls=RowsOption, rows=completion.engines, help="Engine whose cache is simulated: {rows}.  [default: reference; with --gpu and the policy lru vllm]")
@CACHE
@click.option("--router", "routers", metavar="R,...", help=f"With --instances: {', '.join(ROUTERS)}.  [default: round-robin]")
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
def simulate_command(trace, assume_output, as_json, as_csv, png, svg, verbose, per_request, model_config, kv_bytes_per_token, block_size, chain, over_time, warm_up, memory, quiet, gpu_name, gpus, costs_file, extrapolate, step_tokens, max_requests, scheduler_options, domains, engine_block_size, retention, loop, **options):
    """Simulate prefix caches: engines, policies, capacities.

    Every engine runs with every policy at every capacity. With --gpu the requests are served in time. --engine dynamo
    has step times of its own, those of Dynamo's offline replay, and needs no --gpu. TRACE - is stdin.
    """
    from .._base.errors import UsageError
    from .._base.output_files import write_atomically
    from .._base.units import leading_rows
    from ..report import simulation_tables as simulation_report
    from ..report.progress import RequestProgress
    from ..report.simulation_tables import compare_loops, loop_tables
    from ..serving.models.engine_layout import counted_as_full
    from ..serving.models.layers import chosen
    from ..trace.domains import in_domains

    require_one(as_json, as_csv)
    if per_request == "-" and (as_json or as_csv):
        raise UsageError(f"--per-request - and {'--json' if as_json else '--csv'} both write to stdout. Use one of them.")
    write_figure = figure_writer(png, svg, quiet)
    kv_bytes = chosen(model_config, kv_bytes_per_token)
    window_ms = over_time
    times = times_of(
        options.pop("engine_names"), options["policies"], options["routers"], model_config=model_config, gpu_name=gpu_name, gpus=gpus, costs_file=costs_file,
        step_tokens=step_tokens, max_requests=max_requests, scheduler_options=scheduler_options, loop=loop, warm_up=warm_up, router_seed=options["router_seed"],
        **{name: options.pop(name) for name in LOOP_NAMES},
    )  # fmt: skip
    need = partial(_memory_need, times=times, per_request=per_request, over_time=over_time, **options)
    loaded = load(trace, memory, quiet, need, block_size=block_size, chain=chain, ids=True)
    loaded = assumed(loaded, assume_output)
    viewed = in_domains(loaded, domains)
    options["layouts"] = layouts_of(model_config, times.grouped, loaded.block_size, engine_block_size, retention, step_tokens, gpu_name)
    units = {"block_size": loaded.block_size, "working_set": viewed.working_set, "kv_bytes_per_token": kv_bytes}
    with write_atomically(per_request) if per_request else nullcontext() as stream:
        with RequestProgress(console(), quiet) as bar, own_policies():
            done = _simulate_all(
                loaded, units, bar, times, domains=domains, warm_up=0 if times.loop else leading_rows(warm_up, loaded.timestamp), **options,
            )  # fmt: skip
        beyond = extrapolations(times.costs, done.runs, allowed=extrapolate)
        if stream:
            simulation_report.write_per_request(done.runs, stream)
    values = simulation_report.to_dict(viewed, [
        simulation_report.result(one, done.optimum_of(one), kv_bytes_per_token=kv_bytes, window_ms=window_ms, isolation=isolation)
        for one, isolation in zip_longest(done.runs, done.isolation)
    ])  # fmt: skip
    compare_loops(values["results"])
    remarks = remarks_of(viewed, *needs_of(times, options["mode"], options["schedule"], over_time, options["instances"]))
    as_csv_text = simulation_report.as_csv(values["results"]) if as_csv else None
    if not print_result(values, remarks, as_json=as_json, as_csv=as_csv_text) and per_request != "-":  # stdout has the CSV
        print_tables([*simulation_report.tables(values, done.runs, verbose=verbose), *loop_tables(values["results"])])
        print_notes(simulation_report.isolation_notes(values))
        print_notes(simulation_report.layout_notes(values))
        print_notes(remarks.values())
        print_notes(filter(None, [counted_as_full(model_config, [one for one in times.engines if one not in options["layouts"]])]))
    if not quiet:
        print_lines(("warning", one) for one in dict.fromkeys([*map(simulation_report.warning, done.runs), *beyond]) if one)
        print_lines([("wrote", per_request)] if per_request not in (None, "-") else [])
    write_figure(done)


def _memory_need(dataset, *, times, policies, capacity, mode, schedule, tiers, no_gap, workers, inclusive, per_request, over_time, instances, routers, router_seed, **engine_options):
    """The memory that the simulations need. It depends on the number of capacities, not on their values."""
    from .._base.units import names
    from ..cache.demand import parse_schedule
    from ..cache.engines import non_default
    from ..cache.simulation import optimum_of, settings_of
    from ..formats.memory_needs import simulating

    count = 10 if capacity == "auto" else len(names(capacity))
    common = {"mode": mode, "schedule": parse_schedule(schedule or "serial"), "engine_options": non_default(engine_options)}
    settings = settings_of(range(1, count + 1), names(policies), times.engines, **common)
    bounds = [] if no_gap or tiers else [optimum_of(one) for one in settings]
    beyond = "--tiers" if tiers else "--instances" if instances else "--gpu" if times.roofline else "--engine dynamo" if times.cost else "--over-time" if over_time else "--model with windows or states" if times.has_groups else None
    return simulating(dataset, dict.fromkeys(settings + bounds), workers, per_request=bool(per_request), beyond=beyond)


def _simulate_all(trace, units, bar, times, *, policies, capacity, tiers, routers, no_gap, router_seed, **options):
    """Parse names and capacities, and run the simulations."""
    from .._base.units import names
    from ..serving.simulations import simulate_all

    with hint_on_commas(trace, capacity):
        return simulate_all(
            trace,
            policies=names(policies),
            engines=times.engines,
            routers=names(routers) if routers else None,
            router_seed=router_seed or 0,
            cost=times.cost,
            loop=times.loop,
            gap=not no_gap,
            on_start=bar.expect,
            on_progress=bar.update,
            **caches_of(trace, times, units, options["layouts"], capacity=capacity, tiers=tiers),
            **options,
        )
