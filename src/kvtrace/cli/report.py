"""`kvtrace report`: an HTML page of plots and tables."""

from __future__ import annotations

import click

from ..serving.planning.plan_target import PlanTarget
from ..serving.run_options import TIME, TimeSetup
from .deployment_options import DEPLOYMENT, gpu_options
from .help import Command
from .options import (
    ASSUME_OUTPUT,
    BLOCK_SIZE,
    CHAIN,
    KV_BYTES,
    MODEL_CONFIG,
    QUIET_ERRORS,
    assumed,
    extrapolations,
    record_options,
    taken,
)
from .output import Outcome, console, print_lines
from .simulation_options import DRAWN, drawn_run, own_policies, time_of

GPU = "With --model: add a capacity plan for {rows}, or a JSON file."
TTFT = {"ttft_s": {"help": "With --gpu or --costs: the largest time to first token for 90 % of the requests."}}


@click.command("report", cls=Command, page="report/report.md", groups={"--ttft": TIME}, examples=(
    "kvtrace report trace.jsonl -o report.html",
    "kvtrace report trace.jsonl synthetic.jsonl -o compared.html --title 'Before and after'",
    "kvtrace report trace.jsonl -o plan.html --model config.json --gpu h100",
    "kvtrace report trace.jsonl -o tiers.html --tiers hbm=100,pool=1000@cluster --instances 2",
))
@click.argument("trace", metavar="TRACE")
@click.argument("other", metavar="[TRACE2]", required=False)
@click.option("-o", "--output", required=True, metavar="FILE", help="HTML file to write; - is stdout.")
@click.option("--png", metavar="DIR", help="Also write the plots as PNG files into this folder, for a paper.")
@click.option("--title", metavar="TEXT", help="Title of the page.  [default: the names of the traces]")
@click.option("--policy", "policies", metavar="P,...", help="Eviction policies to compare.  [default: lru,lfu,s3fifo,sieve, if prompts have at most 5 million blocks]")
@click.option("--capacity", metavar="C", help="Capacity of the LRU cache whose hits and misses are drawn. Example: 1000, 64ktokens, 24GiB or 50%.  [default: the smallest with 90 % of the hits]")
@MODEL_CONFIG
@gpu_options(gpu=GPU)
@record_options(TimeSetup, only=("costs_file", "kernels", "extrapolate"))
@record_options(PlanTarget, only=("ttft_s", "max_busy", "spare", "gpu_price"), settings=TTFT)
@DEPLOYMENT
@DRAWN
@ASSUME_OUTPUT
@KV_BYTES
@BLOCK_SIZE
@CHAIN
@QUIET_ERRORS
def report_command(trace, other, output, policies, capacity, quiet, **options):
    """Write an HTML page of plots and tables.

    The page needs no network. With TRACE2 it compares the two traces. With --tiers, or --prefill-workers and --gpu, it
    shows one simulation of TRACE over time: hits by source, or both kinds of workers.
    """
    from .._base.files import base_names
    from .._base.tables import printable
    from .._base.units import names as policy_names
    from ..formats import reading
    from ..report import html_page, interactive
    from ..report.progress import COMPARED, REPORT, Work
    from ..serving.models.layers import chosen
    from ..serving.planning.planning import plan
    from ..trace.domains import in_domains

    interactive.script()  # fails early if plotly is not installed
    html_page.check_output(output)
    paths = [path for path in (trace, other) if path is not None]
    model = options["model_config"]
    time = time_of(options, model=model)
    kv_bytes = chosen(model, options["kv_bytes_per_token"])
    with Work(console(), "report", COMPARED if other else REPORT, quiet, files=len(paths)) as work, own_policies():
        work.step("read")
        traces = [reading.read(path, block_size=options["block_size"]) for path in paths]
        traces = [assumed(loaded.chained() if options["chain"] else loaded, options["assume_output"]) for loaded in traces]
        first = in_domains(traces[0])
        work.requests = sum(map(len, traces))
        units = {"block_size": first.block_size, "working_set": first.working_set, "kv_bytes_per_token": kv_bytes}
        chosen_capacity = _capacity_of(capacity, first, units)
        drawn = drawn_run(options, time, first, units)  # before the target, which has fields of the same names
        if time.roofline:
            work.step("plan")
        target = taken(PlanTarget, options)
        result = plan(first, time.deployment, target, costs=time.costs, extrapolate=time.extrapolate) if time.roofline else None
        if drawn:
            work.step("simulate")
        run = drawn.simulate(first).runs[0] if drawn else None
        warnings = extrapolations(time.costs, [run], allowed=time.extrapolate) if run else []
        written = html_page.write_report(
            output, *traces, names=[printable(name) for name in base_names(*paths)], title=options["title"], kv_bytes_per_token=kv_bytes, plan=result,
            png=options["png"], policies=policy_names(policies) if policies else (), capacity=chosen_capacity, run=run, on_step=work.step,
        )
    if not quiet:
        print_lines(("warning", warning) for warning in warnings)
        print_lines([("wrote", name) for name in written])
    return Outcome(written)


def _capacity_of(text, trace, units):
    """The blocks of --capacity; None without it, UsageError if it is not one capacity."""
    from .._base.errors import UsageError
    from ..analysis.capacities import parse_capacities

    if text is None:
        return None
    capacities = parse_capacities(text, **units)
    if len(capacities) != 1:
        raise UsageError("--capacity must be one capacity. Example: --capacity 1000.")
    longest = int(trace.prompt_blocks.max(initial=1))
    if capacities[0] < longest:
        raise UsageError(f"--capacity {text} does not hold the longest prompt of {longest:,} blocks. Try {longest} or more.")
    return capacities[0]

