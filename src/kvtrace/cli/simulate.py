"""`kvtrace simulate`: the hits of a prefix cache on a trace."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import zip_longest

import click

from ..serving.routers import ROUTERS
from . import completion
from .help import Command
from .large import load
from .loop_options import NAMES, closed_loop_of, loop_options
from .options import (
    COSTS,
    CSV,
    DOMAINS,
    ENGINE_BLOCK_SIZE,
    EXTRAPOLATE,
    FIGURE,
    RETENTION,
    STREAMED,
    RowsOption,
    engine_units,
    extrapolations,
    figure_writer,
    json_option,
    layouts_of,
    require_one,
    roofline_of,
)
from .output import console, print_json, print_lines, print_notes, print_tables
from .own_policies import own_policies


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
@click.option("--mode", default="block", metavar="M", help="What is cached. block: each id counts as a full block. token: true lengths of prompts. grow: outputs too.")
@click.option("--schedule", metavar="S", help="Requests that are active together: serial is one at a time, concurrency:N is N at a time, open-loop:MS starts them at their times and takes MS ms per output token.  [default: serial; with --instances open-loop:30]")
@click.option("--capacity-counts", default="total", metavar="WHAT", help="Blocks that count: total is active and idle blocks, idle is idle blocks only. (reference)")
@click.option("--pool", default="flat", metavar="WHICH", help="Blocks that can be evicted: flat is any idle block, leaf-first is idle blocks without a resident child. (reference)")
@click.option("--free-order", default="prepend", metavar="HOW", help="Position of freed unhashed blocks in the free queue: prepend, or append as before May 2026. (vllm)")
@click.option("--tree", default="unified", metavar="WHICH", help="Tree of the cache: unified, or radix as in earlier versions. (sglang)")
@click.option("--watermark", default="off", metavar="HOW", help="on: evict a fifth of the blocks at 80 % use. (lmcache)")
@ENGINE_BLOCK_SIZE
@RETENTION
@click.option("--tiers", metavar="NAME=C,...", help="Tiers of blocks, fastest first, in place of --capacity. Example: hbm=5000,dram=50000; with --gpu hbm=5000,dram=50000@25GB, with bytes per second.")
@click.option("--inclusive", is_flag=True, help="A tier also holds the blocks of the tiers above it.  [default: exclusive]")
@click.option("--instances", type=click.IntRange(1), metavar="N", help="Number of instances behind a router, each with its own cache.")
@click.option("--router", "routers", metavar="R,...", help=f"With --instances: {', '.join(ROUTERS)}.  [default: round-robin]")
@click.option("--seed", "router_seed", type=click.IntRange(0), metavar="N", help="Seed of --router dynamo, which draws among instances of equal cost, and of --start-inside.  [default: 0]")
@click.option("--gpu", "gpu_name", metavar="G", cls=RowsOption, rows=completion.gpus, help="With --model: simulate serving in time on {rows}, or a JSON file; prints TTFT and TPOT.")
@click.option("--gpus", type=click.IntRange(1), metavar="N", help="With --gpu or --costs: GPUs per instance.  [default: 1; with --costs as many as were measured]")
@COSTS
@EXTRAPOLATE
@click.option("--step-tokens", type=click.IntRange(1), metavar="N", help="Largest number of tokens in a step: of an instance in time, or of a prompt for a --model with windows or states.  [default: 8192; with --costs as measured]")
@click.option("--max-requests", type=click.IntRange(1), metavar="N", help="In time: largest number of requests that an instance serves at once.  [default: 1024 for vllm, 2048 for sglang, else 256; with --costs as measured]")
@click.option("--scheduler", "scheduler_options", metavar="K=V,...", help="In time, with --engine vllm, sglang or dynamo: options of its scheduler, with the engine's own names. Example: watermark=0.01,async_scheduling=off.")
@loop_options
@DOMAINS
@click.option("--warm-up", default="0", metavar="N", help="Do not count the first requests: a number (1000), a share (10%) or a time (10m); with --loop closed a number of each lane.")
@click.option("--over-time", metavar="WINDOW", help="Also print the counts of each time window. Example: 10m.")
@click.option("--per-request", metavar="FILE", help="Also write the hit blocks of each request as CSV; - writes it to stdout in place of the tables.")
@click.option("-v", "--verbose", is_flag=True, help="Also print evictions, and a table of the load of each instance.")
@click.option("--no-gap", is_flag=True, help="Do not compute the gap to belady, the best possible eviction order; it needs one more simulation for each capacity.")
@json_option("cache/simulate.md")
@CSV
@FIGURE
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Number of simulations at a time.  [default: one for each core]")
@STREAMED
def simulate_command(trace, as_json, as_csv, png, svg, verbose, per_request, model_config, kv_bytes_per_token, block_size, chain, over_time, warm_up, memory, quiet, gpu_name, gpus, costs_file, extrapolate, step_tokens, max_requests, scheduler_options, domains, engine_block_size, retention, loop, **options):
    """Simulate prefix caches: engines, policies, capacities.

    Every engine runs with every policy at every capacity. With --gpu the requests are served in time. --engine dynamo
    has step times of its own, those of Dynamo's offline replay, and needs no --gpu. TRACE - is stdin.
    """
    from .._base.errors import UsageError
    from .._base.lists import leading_rows, names
    from .._base.output_files import write_atomically
    from ..report import simulation as simulation_report
    from ..report.loops import compare_loops, loop_tables
    from ..report.progress import RequestProgress
    from ..serving.models.engine_layout import LAYOUTS, counted_as_full, has_groups
    from ..serving.models.kv_bytes import chosen
    from ..trace.domains import in_domains

    require_one(as_json, as_csv)
    if per_request == "-" and (as_json or as_csv):
        raise UsageError(f"--per-request - and {'--json' if as_json else '--csv'} both write to stdout. Use one of them.")
    write_figure = figure_writer(png, svg, quiet)
    kv_bytes = chosen(model_config, kv_bytes_per_token)
    window_ms = over_time
    timed = bool(gpu_name or costs_file)
    options["engine_names"] = options["engine_names"] or ("vllm" if timed and options["policies"] == "lru" else "reference")
    engines = names(options["engine_names"])
    options["roofline"], costs = roofline_of(model_config, gpu_name, costs_file, gpus, engines)
    options["cost"] = cost = _step_cost(options["roofline"], engines)
    grouped = [] if timed and "vllm" not in engines else ["vllm"] if timed else engines  # whose cache groups are modelled
    chunked = model_config and not timed and has_groups(model_config)
    if not cost and ((step_tokens and not chunked) or max_requests or scheduler_options):
        raise click.UsageError("--step-tokens, --max-requests and --scheduler need --gpu, --costs or --engine dynamo.")
    closed = closed_loop_of(loop, seed=options["router_seed"], warm_up=warm_up if loop == "closed" else "0", **{name: options.pop(name) for name in NAMES})
    if closed and not cost:
        raise click.UsageError("--loop closed is a simulation in time. Add --gpu and --model, or --engine dynamo.")
    if options["router_seed"] is not None and "dynamo" not in names(options["routers"] or "round-robin") and not (closed and closed.start == "inside"):
        raise click.UsageError("--seed needs --router dynamo or --start-inside.")
    need = partial(_memory_need, per_request=per_request, over_time=over_time, hybrid=bool(chunked and LAYOUTS.keys() & engines), **options)
    loaded = load(trace, memory, quiet, need, block_size=block_size, chain=chain, ids=True)
    viewed = in_domains(loaded, domains)
    options["layouts"] = layouts_of(model_config, grouped, loaded.block_size, engine_block_size, retention, step_tokens, gpu_name)
    units = {"block_size": loaded.block_size, "working_set": viewed.working_set, "kv_bytes_per_token": kv_bytes}
    with write_atomically(per_request) if per_request else nullcontext() as stream:
        with RequestProgress(console(), quiet) as bar, own_policies():
            done = _simulate_all(
                loaded, units, bar, domains=domains, costs=costs, loop=closed, warm_up=0 if closed else leading_rows(warm_up, loaded.timestamp),
                step_tokens=step_tokens, max_requests=max_requests, scheduler_options=scheduler_options, **options,
            )  # fmt: skip
        beyond = extrapolations(costs, done.runs, allowed=extrapolate)
        if stream:
            simulation_report.write_per_request(done.runs, stream)
    values = simulation_report.to_dict(viewed, [
        simulation_report.result(one, done.optimum_of(one), kv_bytes_per_token=kv_bytes, window_ms=window_ms, isolation=isolation)
        for one, isolation in zip_longest(done.runs, done.isolation)
    ])  # fmt: skip
    compare_loops(values["results"])
    if as_json:
        print_json(values)
    elif as_csv:
        click.echo(simulation_report.as_csv(values["results"]), nl=False)
    elif per_request != "-":  # stdout has the CSV
        print_tables([*simulation_report.tables(values, verbose=verbose), *loop_tables(values["results"])])
        print_notes(simulation_report.isolation_notes(values))
        print_notes(simulation_report.layout_notes(values))
        print_notes(filter(None, [counted_as_full(model_config, [one for one in engines if one not in options["layouts"]])]))
    if not quiet:
        print_lines(("warning", one) for one in dict.fromkeys([*map(simulation_report.warning, done.runs), *beyond]) if one)
        print_lines([("wrote", per_request)] if per_request not in (None, "-") else [])
    write_figure(done)


def _memory_need(dataset, *, policies, capacity, engine_names, mode, schedule, tiers, no_gap, workers, inclusive, per_request, over_time, instances, routers, roofline, cost, router_seed, hybrid, **engine_options):
    """The memory that the simulations need. It depends on the number of capacities, not on their values."""
    from .._base.lists import names
    from ..cache.engines import non_default
    from ..cache.many_settings import optimum_of, settings_of
    from ..cache.schedules import parse_schedule
    from ..formats.memory_needs import simulating

    count = 10 if capacity == "auto" else len(names(capacity))
    common = {"mode": mode, "schedule": parse_schedule(schedule or "serial"), "engine_options": non_default(engine_options)}
    settings = settings_of(range(1, count + 1), names(policies), names(engine_names), **common)
    bounds = [] if no_gap or tiers else [optimum_of(one) for one in settings]
    beyond = "--tiers" if tiers else "--instances" if instances else "--gpu" if roofline else "--engine dynamo" if cost else "--over-time" if over_time else "--model with windows or states" if hybrid else None
    return simulating(dataset, dict.fromkeys(settings + bounds), workers, per_request=bool(per_request), beyond=beyond)


def _simulate_all(trace, units, bar, *, policies, capacity, engine_names, tiers, routers, no_gap, roofline, cost, costs, router_seed, step_tokens, max_requests, scheduler_options, **options):
    """Parse names and capacities, and run the simulations."""
    from .._base.lists import names
    from ..analysis.capacities import parse_capacities, parse_capacity
    from ..cache.tiered import parse_tiers
    from ..serving.simulations import simulate_all
    from ..serving.timed_tiers import parse_timed_tiers

    if cost:
        options["schedulers"] = _schedulers(names(engine_names), costs, step_tokens, max_requests, scheduler_options)
    parse = partial(parse_capacity, **units)
    if roofline and tiers:
        first, options["lower"] = parse_timed_tiers(tiers, parse, trace.block_size * roofline.model.kv_bytes_per_token)
        tiers, capacity = None, str(first)
    sizes = {engine: engine_units(options["layouts"].get(engine), trace.block_size, units) for engine in names(engine_names)}
    with _hint_on_commas(trace, capacity):
        capacities = None
        if roofline and capacity == "auto":
            limits = [scheduler.limits for scheduler in options["schedulers"].values()]
            holds = partial(costs.capacity_tokens, roofline) if costs else lambda one: roofline.capacity_tokens(one.step_tokens, one.requests)
            room = min(map(holds, limits)) * roofline.model.kv_bytes_per_token  # bytes
            capacities = {engine: [max(room // own.get("block_bytes", trace.block_size * roofline.model.kv_bytes_per_token), 1)] for engine, own in sizes.items()}
        elif capacity != "auto" and not tiers:
            capacities = {engine: dict.fromkeys(parse_capacities(capacity, **own)) for engine, own in sizes.items()}
        return simulate_all(
            trace,
            capacities,
            names(policies),
            engines=names(engine_names),
            tiers=parse_tiers(tiers, parse) if tiers else None,
            routers=names(routers) if routers else None,
            router_seed=router_seed or 0,
            cost=cost,
            gap=not no_gap,
            on_start=bar.expect,
            on_progress=bar.update,
            **options,
        )


def _step_cost(roofline, engines):
    """The time of a step on a GPU, else the one that an engine has of its own; None for a simulation without times."""
    from ..serving.planning.planning import step_cost
    from ..serving.schedulers import cost_of

    return step_cost(roofline) if roofline else cost_of(engines)


def _schedulers(engines, costs, step_tokens, max_requests, scheduler_options):
    """Engine -> its scheduler with the options of the command."""
    from ..serving.schedulers import BatchLimits, scheduler_of
    from ..serving.schedulers.options import with_options

    made = {}
    for engine in engines:
        scheduler = scheduler_of(engine)
        own = costs.batch_limits if costs else scheduler.limits
        scheduler = scheduler.limited(BatchLimits(step_tokens or own.step_tokens, max_requests or own.requests))
        made[engine] = with_options(scheduler, scheduler_options) if scheduler_options else scheduler
    return made


@contextmanager
def _hint_on_commas(trace, capacity):
    """Add to an error how to write `--capacity 20,208` as one number, if that can be what is meant."""
    from .._base.errors import UsageError
    from ..analysis.capacities import hint_on_commas

    try:
        yield
    except UsageError as error:
        if hint := hint_on_commas(capacity, int(trace.prompt_blocks.max(initial=1))):
            error.add_note(hint)
        raise
