"""`kvtrace plan`: the memory, the number of instances, and the savings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from ..serving.planning.plan_target import PlanTarget
from ..serving.routers import check_router
from ..serving.run_options import TimeSetup
from . import completion
from .help import Command
from .options import (
    ASSUME_OUTPUT,
    BLOCK_SIZE,
    FIGURE,
    QUIET,
    assumed,
    figure_writer,
    json_option,
    layouts_of,
    record_options,
    remarks_of,
    require_one,
    roofline_of,
    taken,
    viewed,
)
from .output import console, print_notes, print_result, print_tables
from .simulation_options import LoopOptions, loop_options

LIMITS = ("step_tokens", "max_requests")
HELP: dict[str, dict[str, Any]] = {
    "gpu": {"rows": completion.gpus, "help": "GPU: {rows}, or a JSON file; its keys are in docs/serving/models.md.  [default: h100]"},
    "gpus": {"help": "GPUs per instance, by tensor parallelism.  [default: 1; with --costs as many as were measured]"},
    "step_tokens": {"help": "Largest number of tokens per step of an instance.  [default: 8192; with --costs as measured]"},
    "max_requests": {"help": "Largest number of active requests per instance.  [default: 256; with --costs as measured]"},
    "engine": {"rows": completion.engines},
}  # fmt: skip


@click.command("plan", cls=Command, groups={"--warm-up": "Closed loop", "--seed": "Closed loop"}, examples=(
    "kvtrace plan trace.jsonl --model-config config.json --gpu h100 --ttft 2s",
    "kvtrace plan trace.jsonl --model-config config.json --quantile 95% --tiers dram=512GiB@25GB/s",
    "kvtrace plan trace.jsonl --costs costs.json --extrapolate",
))
@click.argument("trace", metavar="TRACE")
@click.option("--model", "--model-config", "model_config", metavar="M", help="Model: a name that kvtrace models lists, or its config.json.")
@record_options(TimeSetup, without=(*LIMITS, "scheduler"), settings=HELP)
@record_options(PlanTarget, only=("ttft_s", "quantile", "routers", "tiers", "write_through", "engine", "mode"), settings=HELP)
@click.option("--input-price", default=3.0, type=click.FloatRange(0), metavar="USD", help="Price of a provider for a million input tokens.")
@click.option("--output-price", default=15.0, type=click.FloatRange(0), metavar="USD", help="Price of a provider for a million output tokens.")
@record_options(TimeSetup, only=LIMITS, settings=HELP)
@ASSUME_OUTPUT
@loop_options
@click.option("--warm-up", default="0", metavar="N", help="Closed loop: requests of each lane that do not count.")
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Closed loop: seed of --start-inside.  [default: 0]")
@BLOCK_SIZE
@json_option("serving/plan.md")
@click.option("--csv", "as_csv", is_flag=True, help="Print the curves as CSV: one row for each router and number of instances.")
@FIGURE
@QUIET
def plan_command(trace, model_config, as_json, as_csv, quiet, **options):
    """Plan capacity: memory, instances for a target, costs.

    Each table lists its assumptions. The last ones show what changes if an assumption changes. TRACE - is stdin.
    """
    from ..formats import reading
    from ..report import plan_tables
    from ..report.progress import Work, plan_shares
    from ..serving.planning.planning import plan

    require_one(as_json, as_csv)
    write_figure = figure_writer(options["png"], options["svg"], quiet)
    time = taken(TimeSetup, options)
    if not (model_config or time.costs_file):
        raise click.UsageError("Missing option '--model'.")
    roofline, costs = roofline_of(model_config, time.gpu or (None if time.costs_file else "h100"), time.costs_file, time.gpus, [])
    target = _target(options, time, costs)
    shares = {"read": 1} | plan_shares(len(target.routers), tiers=bool(target.tiers), lanes=target.loop is not None)
    with Work(console(), "plan", shares, quiet) as work:
        work.step("read")
        loaded, _, notes = viewed(assumed(reading.read(trace, block_size=options["block_size"]), options["assume_output"]), None)
        work.requests = len(loaded)
        if model_config and target.engine == "vllm":
            target = replace(target, layout=layouts_of(model_config, ["vllm"], loaded.block_size, gpu=time.gpu).get("vllm"))
        result = plan(loaded, roofline, target, on_part=work.step, costs=costs, extrapolate=time.extrapolate)
    remarks = remarks_of(loaded, "prefixes", "outputs", "times")
    if not print_result(result.to_dict(), remarks, as_json=as_json, as_csv=plan_tables.as_csv(result) if as_csv else None):
        print_tables(plan_tables.tables(result))
        print_notes([*notes, *remarks.values()])
    write_figure(result)


def _target(options, time, costs):
    """The PlanTarget that the options make up; UsageError if they do not fit together."""
    from ..serving.hardware import Prices
    from ..serving.schedulers.base import BatchLimits

    loop = taken(LoopOptions, options)
    if loop.lanes is not None:
        raise click.UsageError("kvtrace plan finds the number of lanes. Leave out --lanes.")
    if loop.loop == "open" and (options["warm_up"] != "0" or options["seed"] is not None):
        raise click.UsageError("--warm-up and --seed need --loop closed.")
    limits = costs.batch_limits if costs else BatchLimits()
    target = taken(
        PlanTarget, options, prices=Prices(options["input_price"] / 1e6, options["output_price"] / 1e6),
        limits=BatchLimits(time.step_tokens or limits.step_tokens, time.max_requests or limits.requests),
        loop=loop.closed_loop(seed=options["seed"], warm_up=options["warm_up"], lanes_wanted=False),
    )  # fmt: skip
    if costs:
        if target.instance_engine != target.engine:
            raise click.UsageError(f"--costs cannot be combined with these --tiers: engine {target.engine} has fewer.")
        costs.require_engine(target.engine)
    for router in target.routers:
        check_router(router)
    return target
