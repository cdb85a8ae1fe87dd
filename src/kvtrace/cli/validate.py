"""`kvtrace validate`: simulated times against measured ones."""

from __future__ import annotations

from contextlib import nullcontext

import click

from . import completion
from .help import Command
from .options import BLOCK_SIZE_OF_TRACE, FIGURE, QUIET, WARM_UP, RowsOption, figure_writer, json_option
from .output import print_json, print_lines, print_tables


@click.command("validate", cls=Command, groups={"--trace": "Input", "--capacity": "Instances and time", "--engine": "Instances and time", "--seed": "Output", "--warm-up": "Selection", "--block-size": "Input"}, examples=(
    "kvtrace validate recording --model llama-3.1-8b --gpu h100",
    "kvtrace validate recording --costs costs.json --warm-up 50% --html validation.html",
    "kvtrace validate recording --model llama-3.1-8b --gpu h100 --per-request times.csv",
))
@click.argument("log", metavar="LOG")
@click.option("--recording-format", default="auto", metavar="F", cls=RowsOption, rows=completion.recordings, help="Format of LOG: {rows}.")
@click.option("--trace", "trace", metavar="TRACE", help="The same requests in the same order as in LOG, with the ids of their blocks.  [default: no two requests share a block]")
@BLOCK_SIZE_OF_TRACE
@click.option("--model", "--model-config", "model_config", metavar="M", help="Model that was served: a name that kvtrace models lists, or its config.json. With --costs: another model than that of the costs.")
@click.option("--gpu", "gpu_name", metavar="G", cls=RowsOption, rows=completion.gpus, help="With --model: costs by the roofline of {rows}, or a JSON file. Nothing is fitted.")
@click.option("--gpus", type=click.IntRange(1), metavar="N", help="With --model: GPUs of the engine.  [default: from LOG, else 1]")
@click.option("--costs", "costs_file", metavar="FILE", help="Costs of a calibration, as kvtrace calibrate writes them, in place of --gpu.")
@click.option("--engine", type=click.Choice(["vllm", "sglang"]), metavar="E", help="Engine whose scheduler and cache are simulated: vllm, sglang.  [default: from LOG]")
@click.option("--scheduler", "scheduler_options", metavar="K=V,...", help="Options of the engine's scheduler, with its own names. Example: max_num_seqs=128.  [default: from LOG]")
@click.option("--capacity", type=click.IntRange(1), metavar="BLOCKS", help="Blocks of the KV cache.  [default: from LOG, else what --gpu has beside the weights, else no limit]")
@WARM_UP
@click.option("--seed", default=0, type=click.IntRange(0), metavar="N", help="Seed of the bootstrap.")
@json_option("serving/calibrate.md")
@click.option("--html", metavar="FILE", help="Also write the plots and tables as an HTML page.")
@click.option("--per-request", metavar="FILE", help="Also write the measured and simulated times of each request as CSV; - writes it to stdout in place of the tables.")
@FIGURE
@QUIET
def validate_command(log, recording_format, trace, block_size, model_config, gpu_name, gpus, costs_file, engine, scheduler_options, capacity, warm_up, seed, as_json, html, per_request, png, svg, quiet):
    """Compare simulated with measured times: errors, intervals.

    LOG is what an engine or a benchmark measured: docs/serving/calibrate.md lists the formats.
    Its requests are simulated under the costs of --gpu or --costs.
    """
    from .._base.errors import UsageError
    from .._base.output_files import write_atomically
    from .._base.units import leading_rows
    from ..formats import reading
    from ..report import validation_tables as validation_report
    from ..serving.recordings import read_recording
    from ..serving.schedulers.base import with_options
    from ..serving.validation import validate

    if (html == "-" and per_request == "-") or (as_json and "-" in (html, per_request)):
        raise UsageError("only one of --json, --html - and --per-request - can write to stdout.")
    if html:
        from ..report import html_page, interactive

        interactive.script()  # fails early if plotly is not installed
        html_page.check_output(html)
    write_figure = figure_writer(png, svg, quiet)
    source = _cost_source(model_config, gpu_name, gpus, costs_file)
    loaded = reading.read(trace, block_size=block_size) if trace else None
    recording = read_recording(log, format=recording_format, trace=loaded)
    costs, words, size = source(recording)
    scheduler = recording.scheduler(engine)
    with write_atomically(per_request) if per_request else nullcontext() as stream:
        done = validate(
            recording, costs, scheduler=with_options(scheduler, scheduler_options) if scheduler_options else scheduler,
            capacity=capacity or size, warm_up=leading_rows(warm_up, recording.trace.timestamp), seed=seed,
        )  # fmt: skip
        if stream:
            validation_report.write_per_request(done, stream)
    written = [per_request] if per_request not in (None, "-") else []
    if html:
        from ..report import validation_page

        written += validation_page.write_page(html, done, title=f"Simulated against measured: {_name_of(log)}", costs=words)
    if as_json:
        print_json(done.to_dict())
    elif "-" not in (html, per_request):  # stdout has the page or the CSV
        print_tables(validation_report.tables(done, words))
    if not quiet:
        print_lines(("warning", one) for one in validation_report.warnings(done))
        print_lines(("wrote", name) for name in written)
    write_figure(done)


def _name_of(log):
    """The last part of the name of a file or folder."""
    from pathlib import Path

    from .._base.tables import printable

    return printable(Path(log).resolve().name)


def _cost_source(model_config, gpu_name, gpus, costs_file):
    """A function from a recording to its costs, where they come from in words, and the blocks of the KV cache or None.

    Wrong options are refused before the recording is read.
    """
    from ..serving.calibration.costs import read_costs, step_cost
    from ..serving.hardware import Roofline, gpu
    from ..serving.models import model_shape

    if bool(gpu_name) == bool(costs_file):
        raise click.UsageError("Give --costs, or --model and --gpu." if not gpu_name else "--costs and --gpu cannot be combined. Use one of them.")
    if not model_config and (gpu_name or gpus):
        raise click.UsageError(f"{'--gpu' if gpu_name else '--gpus'} needs --model.")
    shape = model_shape(model_config) if model_config else None
    device = gpu(gpu_name) if gpu_name else None
    fitted = read_costs(costs_file) if costs_file else None

    def source(recording):
        number = gpus or recording.settings.tensor_parallel
        if fitted is not None:
            words = f"{costs_file}, fitted to {fitted.model} on {fitted.gpus} x {fitted.gpu}"
            if shape is None:
                return fitted, words, None
            return fitted.for_model(shape, gpus=number), f"{words}, for {shape.name}", None
        roofline = Roofline(shape, device, number)
        blocks = roofline.kv_capacity_tokens // recording.trace.block_size
        size = None if recording.settings.blocks else max(blocks, 1)
        return step_cost(roofline), f"the roofline of {shape.name} on {number} x {device.name}, nothing fitted", size

    return source
