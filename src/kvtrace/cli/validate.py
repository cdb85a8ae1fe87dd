"""`kvtrace validate`: simulated times against measured ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import click

from ..serving.run_options import TimeSetup
from . import completion
from .deployment_options import DEPLOYMENT, gpu_options
from .help import Command
from .options import FIGURE, QUIET, WARM_UP, RowsOption, figure_writer, json_option, record_options
from .output import Outcome, print_json, print_lines, print_tables
from .recording_options import SCHEDULER, TRACE_OF_LOG, contradictions, recorded_deployment, recording_of, scheduler_of

GPU = "With --model: costs by the roofline of {rows}, or a JSON file. Nothing is fitted."
GPUS = "GPUs of the engine.  [default: from LOG, else 1]"
COSTS_FILE = {"costs_file": {"help": "Costs of a calibration, as kvtrace calibrate writes them, in place of --gpu."}}


@click.command("validate", cls=Command, groups={"--trace": "Input", "--capacity": "Instances and time", "--engine": "Instances and time", "--seed": "Output", "--warm-up": "Selection", "--block-size": "Input"}, examples=(
    "kvtrace validate recording --model llama-3.1-8b --gpu h100",
    "kvtrace validate recording --costs costs.json --warm-up 50% --html validation.html",
    "kvtrace validate recording --model llama-3.1-8b --gpu h100 --per-request times.csv",
))
@click.argument("log", metavar="LOG")
@click.option("--recording-format", default="auto", metavar="F", cls=RowsOption, rows=completion.recordings, help="Format of LOG: {rows}.")
@TRACE_OF_LOG
@click.option("--model", "--model-config", "model_config", metavar="M", help="Model that was served: a name that kvtrace models lists, or its config.json. With --costs: another model than that of the costs.")
@gpu_options(gpu=GPU, gpus=GPUS)
@record_options(TimeSetup, only=("costs_file",), settings=COSTS_FILE)
@DEPLOYMENT
@click.option("--engine", type=click.Choice(["vllm", "sglang"]), metavar="E", help="Engine whose scheduler and cache are simulated: vllm, sglang.  [default: from LOG]")
@SCHEDULER
@click.option("--capacity", type=click.IntRange(1), metavar="BLOCKS", help="Blocks of the KV cache.  [default: from LOG, else what --gpu has beside the weights, else no limit]")
@WARM_UP
@click.option("--seed", default=0, type=click.IntRange(0), metavar="N", help="Seed of the bootstrap.")
@json_option("serving/calibrate.md")
@click.option("--html", metavar="FILE", help="Also write the plots and tables as an HTML page.")
@click.option("--per-request", metavar="FILE", help="Also write the measured and simulated times of each request as CSV; - writes it to stdout in place of the tables.")
@FIGURE
@QUIET
def validate_command(log, warm_up, seed, as_json, html, per_request, quiet, **options):
    """Compare simulated with measured times: errors, intervals.

    LOG is what an engine or a benchmark measured, in a format of --recording-format.
    Its requests are simulated under the costs of --gpu or --costs.
    """
    from .._base.errors import UsageError
    from .._base.output_files import write_atomically
    from .._base.units import leading_rows
    from ..report import validation_tables as validation_report
    from ..serving.validation import validate

    if (html == "-" and per_request == "-") or (as_json and "-" in (html, per_request)):
        raise UsageError("only one of --json, --html - and --per-request - can write to stdout.")
    if html:
        from ..report import html_page, interactive

        interactive.script()  # fails early if plotly is not installed
        html_page.check_output(html)
    write_figure = figure_writer(options["png"], options["svg"], quiet)
    source = _cost_source(options)
    recording = recording_of(log, options)
    costs, words, size, unfitted = source(recording)
    with write_atomically(per_request) if per_request else nullcontext() as stream:
        validation = validate(
            recording, costs, scheduler=scheduler_of(recording, options), capacity=options["capacity"] or size,
            warm_up=leading_rows(warm_up, recording.trace.timestamp), seed=seed, unfitted=unfitted,
        )  # fmt: skip
        if stream:
            validation_report.write_per_request(validation, stream)
    written = [per_request] if per_request not in (None, "-") else []
    if html:
        written += validation_report.write_page(html, validation, title=f"Simulated against measured: {_name_of(log)}", costs=words)
    if as_json:
        print_json(validation.to_dict())
    elif "-" not in (html, per_request):  # stdout has the page or the CSV
        print_tables(validation_report.tables(validation, words))
    if not quiet:
        print_lines(("warning", warning) for warning in contradictions(recording, options))
        print_lines(("warning", warning) for warning in validation_report.warnings(validation))
        print_lines(("wrote", name) for name in written)
    write_figure(validation)
    return Outcome(validation)


def _name_of(log):
    """The last part of the name of a file or folder."""
    from pathlib import Path

    from .._base.tables import printable

    return printable(Path(log).resolve().name)


def _cost_source(options: dict[str, Any]) -> Callable[[Any], tuple[Any, str, int | None, Any]]:
    """A function from a recording to its costs and their source in words, blocks of KV, and what is not fitted, or None.

    Wrong options are refused before the recording is read.
    """
    from ..serving.calibration.costs import read_costs
    from ..serving.hardware import gpu

    model, costs_file = options["model_config"], options["costs_file"]
    if bool(options["gpu"]) == bool(costs_file):
        raise click.UsageError("Give --costs, or --model and --gpu." if not options["gpu"] else "--costs and --gpu cannot be combined. Use one of them.")
    if not model and not options["serve"] and (options["gpu"] or options["gpus"]):
        raise click.UsageError(f"{'--gpu' if options['gpu'] else '--gpus'} needs --model.")
    fitted = read_costs(costs_file) if costs_file else None
    if options["gpu"]:
        gpu(options["gpu"])  # a name that is not one

    def source(recording: Any) -> tuple[Any, str, int | None, Any]:
        deployment = recorded_deployment(recording, options)
        if fitted is not None:
            words = f"{costs_file}, fitted to {fitted.model} on {fitted.gpus} x {fitted.gpu}"
            if model is None:
                return fitted, words, None, None
            return fitted.for_deployment(deployment).cost, f"{words}, for {deployment.model_name}", None, None
        time = TimeSetup(deployment=deployment).resolved([deployment.engine])
        size = None if recording.settings.blocks else time.blocks_of(deployment.engine, recording.trace.block_size)
        words = f"the roofline of {deployment.model_name} on {deployment.gpus_per_instance} x {deployment.gpu_name}, nothing fitted"
        return time.cost, words, size, deployment

    return source
