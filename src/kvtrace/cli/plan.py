"""`kvtrace plan`: the memory, the number of instances, and the savings."""

from __future__ import annotations

from dataclasses import replace

import click

from ..serving.routers import PLANNED, ROUTERS, check_router
from . import completion
from .help import Command
from .options import (
    ASSUME_OUTPUT,
    BLOCK_SIZE,
    COSTS,
    EXTRAPOLATE,
    FIGURE,
    QUIET,
    RowsOption,
    assumed,
    figure_writer,
    json_option,
    layouts_of,
    remarks_of,
    require_one,
    roofline_of,
    taken,
    viewed,
)
from .output import console, print_notes, print_result, print_tables
from .simulation_options import LoopOptions, loop_options


@click.command("plan", cls=Command, groups={"--warm-up": "Closed loop", "--seed": "Closed loop", "--tiers": "Instances and time", "--write-through": "Instances and time", "--router": "Instances and time"}, examples=(
    "kvtrace plan trace.jsonl --model-config config.json --gpu h100 --ttft 2s",
    "kvtrace plan trace.jsonl --model-config config.json --quantile 95% --tiers dram=512GiB@25GB/s",
    "kvtrace plan trace.jsonl --costs costs.json --extrapolate",
))
@click.argument("trace", metavar="TRACE")
@click.option("--model", "--model-config", "model_config", metavar="M", help="Model: a name that kvtrace models lists, or its config.json.")
@click.option("--gpu", "gpu_name", metavar="G", cls=RowsOption, rows=completion.gpus, help="GPU: {rows}, or a JSON file; its keys are in docs/serving/models.md.  [default: h100]")
@click.option("--gpus", type=click.IntRange(1), metavar="N", help="GPUs per instance, by tensor parallelism.  [default: 1; with --costs as many as were measured]")
@COSTS
@EXTRAPOLATE
@click.option("--ttft", default="2s", metavar="TIME", help="Target: the largest time to first token.")
@click.option("--quantile", default=0.9, type=click.FloatRange(0.01, 0.999), metavar="Q", help="Target: the share of the requests that must meet --ttft.")
@click.option("--router", "routers", default=",".join(PLANNED), metavar="R,...", help=f"Routers to try: {', '.join(ROUTERS)}.")
@click.option("--tiers", metavar="NAME=SIZE@RATE,...", help="Tiers of an instance below its GPUs, fastest first. Example: dram=512GiB@25GB,ssd=4TB@3GB.")
@click.option("--write-through", is_flag=True, help="A tier also holds the blocks of the tiers above it.  [default: only blocks evicted from them; vllm always]")
@click.option("--input-price", default=3.0, type=click.FloatRange(0), metavar="USD", help="Price of a provider for a million input tokens.")
@click.option("--output-price", default=15.0, type=click.FloatRange(0), metavar="USD", help="Price of a provider for a million output tokens.")
@click.option("--engine", default="vllm", metavar="E", cls=RowsOption, rows=completion.engines, help="Engine whose scheduler and cache an instance has: {rows}. With more --tiers than it has: reference.")
@click.option("--mode", default="block", metavar="M", help="As in kvtrace simulate, for engines other than vllm. block: each id is a full block. token: true lengths. grow: outputs are cached too.")
@click.option("--step-tokens", type=click.IntRange(1), metavar="N", help="Largest number of tokens per step of an instance.  [default: 8192; with --costs as measured]")
@click.option("--max-requests", type=click.IntRange(1), metavar="N", help="Largest number of active requests per instance.  [default: 256; with --costs as measured]")
@ASSUME_OUTPUT
@loop_options
@click.option("--warm-up", default="0", metavar="N", help="Closed loop: requests of each lane that do not count.")
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Closed loop: seed of --start-inside.  [default: 0]")
@BLOCK_SIZE
@json_option("serving/plan.md")
@click.option("--csv", "as_csv", is_flag=True, help="Print the curves as CSV: one row for each router and number of instances.")
@FIGURE
@QUIET
def plan_command(trace, model_config, gpu_name, gpus, costs_file, extrapolate, ttft, quantile, routers, tiers, write_through, input_price, output_price, engine, mode, step_tokens, max_requests, assume_output, block_size, as_json, as_csv, png, svg, quiet, warm_up, seed, **loop_values):
    """Plan capacity: memory, instances for a target, costs.

    Each table lists its assumptions. The last ones show what changes if an assumption changes. TRACE - is stdin.
    """
    from .._base.units import names
    from ..formats import reading
    from ..report import plan_tables
    from ..report.progress import Work, plan_shares
    from ..serving.hardware import Prices
    from ..serving.planning.planning import PlanTarget, parse_tier, plan
    from ..serving.simulation import BatchLimits

    require_one(as_json, as_csv)
    write_figure = figure_writer(png, svg, quiet)
    if not (model_config or costs_file):
        raise click.UsageError("Missing option '--model'.")
    chosen = None if costs_file else "h100"
    roofline, costs = roofline_of(model_config, gpu_name or chosen, costs_file, gpus, [])
    loop = taken(LoopOptions, loop_values)
    if loop.lanes is not None:
        raise click.UsageError("kvtrace plan finds the number of lanes. Leave out --lanes.")
    if loop.loop == "open" and (warm_up != "0" or seed is not None):
        raise click.UsageError("--warm-up and --seed need --loop closed.")
    own = costs.batch_limits if costs else BatchLimits()
    target = PlanTarget(
        ttft_s=ttft / 1000, quantile=quantile, tiers=tuple(map(parse_tier, names(tiers))) if tiers else (),
        write_through=write_through, prices=Prices(input_price / 1e6, output_price / 1e6),
        limits=BatchLimits(step_tokens or own.step_tokens, max_requests or own.requests), routers=names(routers), mode=mode, engine=engine,
        loop=loop.closed_loop(seed=seed, warm_up=warm_up, lanes_wanted=False),
    )  # fmt: skip
    if costs:
        if target.instance_engine != engine:
            raise click.UsageError(f"--costs cannot be combined with these --tiers: engine {engine} has fewer.")
        costs.require_engine(engine)
    for router in target.routers:
        check_router(router)
    shares = {"read": 1} | plan_shares(len(target.routers), tiers=bool(target.tiers), lanes=target.loop is not None)
    with Work(console(), "plan", shares, quiet) as work:
        work.step("read")
        loaded, _, notes = viewed(assumed(reading.read(trace, block_size=block_size), assume_output), None)
        work.requests = len(loaded)
        if model_config and engine == "vllm":
            target = replace(target, layout=layouts_of(model_config, [engine], loaded.block_size, gpu=gpu_name).get(engine))
        result = plan(loaded, roofline, target, on_part=work.step, costs=costs, extrapolate=extrapolate)
    remarks = remarks_of(loaded, "prefixes", "outputs", "times")
    if not print_result(result.to_dict(), remarks, as_json=as_json, as_csv=plan_tables.as_csv(result) if as_csv else None):
        print_tables(plan_tables.tables(result))
        print_notes([*notes, *remarks.values()])
    write_figure(result)
