"""`kvtrace plan`: the memory, the number of instances, and the savings."""

from __future__ import annotations

from typing import Any

import click

from ..serving.deployment import Deployment
from ..serving.planning.plan_target import PlanTarget
from ..serving.routers import check_router
from ..serving.run_options import TimeSetup
from . import completion
from .deployment_options import DEPLOYMENT, LIMITS, costs_of, deployment_of, expected_errors, gpu_options
from .help import Command
from .options import (
    ASSUME_OUTPUT,
    BLOCK_SIZE,
    FIGURE,
    QUIET,
    assumed,
    figure_writer,
    json_option,
    record_options,
    remarks_of,
    require_one,
    taken,
    viewed,
)
from .output import Outcome, console, print_lines, print_notes, print_result, print_tables
from .simulation_options import LoopOptions, loop_options

GPU = "GPU: {rows}, or a JSON file.  [default: h100]"
MORE = "-v prints all tables: memory, curves, changed assumptions, block sizes, prices."
GPUS = "GPUs per instance, by tensor parallelism.  [default: 1; with --costs as many as were measured]"


@click.command("plan", cls=Command, groups={"--warm-up": "Closed loop", "--seed": "Closed loop"}, examples=(
    "kvtrace plan trace.jsonl --model config.json --gpu h100 --ttft 2s",
    "kvtrace plan trace.jsonl --model config.json --quantile 95% --tiers dram=512GiB@25GB/s,pool=4TiB@cluster@10GB/s",
    "kvtrace plan trace.jsonl --model llama-3.1-8b --max-busy 70% --spare 1 --gpu-price 2.5",
    "kvtrace plan trace.jsonl --costs costs.json --extrapolate",
))
@click.argument("trace", metavar="TRACE")
@click.option("--model", "--model-config", "model_config", metavar="M", help="Model: a name that kvtrace models lists, or its config.json.")
@gpu_options(gpu=GPU, gpus=GPUS)
@record_options(TimeSetup, only=("costs_file", "kernels", "extrapolate"))
@record_options(PlanTarget, only=("ttft_s", "quantile", "max_busy", "spare", "tpot_s", "disaggregate", "kv_transfer_bandwidth", "routers", "tiers", "write_through"))
@record_options(Deployment, only=("engine",), settings={"engine": {"rows": completion.engines}})
@record_options(PlanTarget, only=("mode",))
@record_options(PlanTarget, only=("gpu_price",))
@click.option("--input-price", default=3.0, type=click.FloatRange(0), metavar="USD", help="Price of a provider for a million input tokens.")
@click.option("--output-price", default=15.0, type=click.FloatRange(0), metavar="USD", help="Price of a provider for a million output tokens.")
@record_options(Deployment, only=LIMITS)
@DEPLOYMENT
@ASSUME_OUTPUT
@loop_options
@click.option("--warm-up", default="0", metavar="N", help="Closed loop: requests of each lane that do not count.")
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Closed loop: seed of --start-inside.  [default: 0]")
@BLOCK_SIZE
@json_option("serving/plan.md")
@click.option("--csv", "as_csv", is_flag=True, help="Print the curves as CSV: one row for each router and number of instances.")
@click.option("-v", "--verbose", is_flag=True, help="Print all tables: memory, tiers, curves, changed assumptions, block sizes, prices.")
@FIGURE
@QUIET
def plan_command(trace, model_config, as_json, as_csv, quiet, **options):
    """Plan capacity: memory, instances for a target, costs.

    The first line is the answer; why, and the number of instances if an assumption changes, follow in 40 lines at most.
    With -v all tables follow, each with its assumptions. TRACE - is stdin.
    """
    from ..formats import reading
    from ..report import plan_tables
    from ..report.progress import Work, plan_shares
    from ..serving.planning.planning import plan

    require_one(as_json, as_csv)
    write_figure = figure_writer(options["png"], options["svg"], quiet)
    time = taken(TimeSetup, options)
    costs = _costs_of(time, options)
    deployment = deployment_of(options, costs.measured if costs else None, model=model_config)
    if deployment.model is None:
        raise click.UsageError("Missing option '--model'.")
    costs = costs_of(time, deployment, costs)
    target = _target(options)
    if costs:
        costs.require_engine(deployment.engine)
    shares = {"read": 1} | plan_shares(len(target.routers), tiers=bool(target.own_tiers), lanes=target.loop is not None, pool=target.pool is not None, disaggregate=target.disaggregate)
    with Work(console(), "plan", shares, quiet) as work:
        work.step("read")
        loaded, _, notes = viewed(assumed(reading.read(trace, block_size=options["block_size"]), options["assume_output"]), None)
        work.requests = len(loaded)
        result = plan(loaded, deployment, target, on_part=work.step, costs=costs, extrapolate=time.extrapolate)
    remarks = remarks_of(loaded, "prefixes", "outputs", "times")
    if not print_result(result.to_dict(), remarks, as_json=as_json, as_csv=plan_tables.as_csv(result) if as_csv else None, notes=expected_errors([result])):
        print_tables(plan_tables.tables(result, verbose=options["verbose"]))
        print_notes([*notes, *remarks.values(), *([] if options["verbose"] else [MORE])])
    if not quiet:
        print_lines(("warning", warning) for warning in deployment.warnings)
    write_figure(result)
    return Outcome(result)


def _costs_of(time: TimeSetup, options: dict[str, Any]) -> Any:
    """The costs of --costs, or None; without them the GPU is an H100 unless another one is named."""
    from .._base.errors import UsageError
    from ..serving.calibration.costs import read_costs

    if not time.costs_file:
        options["gpu"] = options["gpu"] or "h100"
        return None
    if options["gpu"]:
        raise UsageError("--costs and --gpu cannot be combined. Use one of them.")
    return read_costs(time.costs_file)


def _target(options: dict[str, Any]) -> PlanTarget:
    """The PlanTarget that the options make up; UsageError if they do not fit together."""
    from ..serving.hardware import Prices

    loop = taken(LoopOptions, options)
    if loop.lanes is not None:
        raise click.UsageError("kvtrace plan finds the number of lanes. Leave out --lanes.")
    if loop.loop == "open" and (options["warm_up"] != "0" or options["seed"] is not None):
        raise click.UsageError("--warm-up and --seed need --loop closed.")
    target = taken(
        PlanTarget, options, prices=Prices(options["input_price"] / 1e6, options["output_price"] / 1e6),
        loop=loop.closed_loop(seed=options["seed"], warm_up=options["warm_up"], lanes_wanted=False),
    )  # fmt: skip
    for router in target.routers:
        check_router(router)
    return target
