"""`kvtrace calibrate`: the costs of an engine's steps, fitted to what it was measured to do, or to kernel tables."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import click

from . import completion
from .deployment_options import DEPLOYMENT, command_of, deployment_of, gpu_options
from .help import Command
from .options import QUIET, RowsOption, json_option
from .output import Outcome, console, print_json, print_lines, print_tables
from .recording_options import SCHEDULER, TRACE_OF_LOG, contradictions, recorded_deployment, recording_of, scheduler_of

GPU = "GPU that served it: {rows}, or a JSON file."
GPUS = "GPUs of the engine.  [default: from LOG, else 1]"


@click.command("calibrate", cls=Command, groups={"--from": "Input", "--trace": "Input", "--engine": "Instances and time", "--seed": "Selection", "--holdout": "Selection", "--format": "Input", "--block-size": "Input"}, types={"--format": completion.Name(completion.recordings)}, examples=(
    "kvtrace calibrate recording --model llama-3.1-8b --gpu h100 -o costs.json",
    "kvtrace calibrate recording --model llama-3.1-8b --gpu h100 --holdout 30% --scheduler max_num_seqs=64 --json",
    "kvtrace calibrate --from aiconfigurator --model qwen3-32b --gpu h200 --tp 2 -o costs.json",
))
@click.argument("log", metavar="[LOG]", required=False)
@click.option("--from", "kernels", type=click.Choice(["aiconfigurator"]), metavar="P", help="Fit to kernel tables in place of LOG: aiconfigurator, those of the package aiconfigurator-core.")
@click.option("--recording-format", "--format", "recording_format", default="auto", metavar="F", cls=RowsOption, rows=completion.recordings, help="Format of LOG: {rows}.")
@TRACE_OF_LOG
@click.option("--model", "--model-config", "model_config", required=True, metavar="M", help="Model that was served: a name that kvtrace models lists, or its config.json.")
@gpu_options(gpu=GPU, gpus=GPUS, required=True)
@DEPLOYMENT
@click.option("--engine", type=click.Choice(["vllm", "sglang"]), metavar="E", help="Engine that was measured: vllm, sglang.  [default: from LOG]")
@SCHEDULER
@click.option("--holdout", default=0.5, type=float, metavar="SHARE", help="Share of the requests, the last ones, that the fit does not see. 0 fits all requests.")
@click.option("--seed", default=0, type=click.IntRange(0), metavar="N", help="Seed of the starting points and of the bootstrap.")
@click.option("-o", "--output", "costs_output", metavar="FILE", help="Write the costs to this file, for --costs of other commands.")
@json_option("serving/calibrate.md")
@QUIET
def calibrate_command(log, kernels, holdout, seed, costs_output, as_json, quiet, **options):
    """Fit the time of a step to a recording, or to kernel tables.

    LOG is what an engine or a benchmark measured. The last requests are held out, and the errors of their simulated times
    are shown. With --from, steps take what the tables of a package say. The costs then replace --gpu in kvtrace simulate,
    plan, report and validate.
    """
    from .._base.output_files import write_atomically
    from ..report import validation_tables as calibration_report
    from ..report.progress import CALIBRATE, Work
    from ..serving.calibration.calibration import calibrate
    from ..serving.calibration.fitting import scipy_optimize
    from ..serving.hardware import gpu
    from ..serving.models import model_shape

    if (log is None) == (kernels is None):
        raise click.UsageError("Give LOG or --from, not both." if log else "Give LOG, or --from aiconfigurator.")
    scipy_optimize()  # fails early if SciPy is not installed
    model_shape(options["model_config"]), gpu(options["gpu"])  # fails early if one of them is not valid
    if kernels:
        return _from_kernels(holdout, seed, costs_output, as_json, quiet, options)
    with write_atomically(costs_output) if costs_output else nullcontext() as stream, Work(console(), "calibrate", CALIBRATE, quiet) as work:
        recording = recording_of(log, options)
        calibration = calibrate(
            recording, recorded_deployment(recording, options), holdout=holdout, seed=seed,
            scheduler=scheduler_of(recording, options), on_part=work.step,
        )  # fmt: skip
        if stream:
            stream.write(calibration.costs.to_json())
    if as_json:
        print_json(calibration.to_dict())
    else:
        print_tables(calibration_report.calibration_tables(calibration))
    if not quiet:
        sentences = [*recording.settings.not_simulated, *contradictions(recording, options)]
        print_lines(("warning", warning) for warning in sentences)
        print_lines(("warning", warning) for warning in calibration_report.calibration_warnings(calibration))
        print_lines([("wrote", costs_output)] if costs_output not in (None, "-") else [])
    return Outcome(calibration)



def _from_kernels(holdout: float, seed: int, costs_output: str | None, as_json: bool, quiet: bool, options: dict[str, Any]) -> Outcome:
    """Fit the costs of the options' deployment to kernel tables."""
    from .._base.output_files import write_atomically
    from ..report import validation_tables as calibration_report
    from ..serving.calibration.kernels import calibrate_from_kernels
    from ..serving.deployment import Deployment
    from ..serving.hardware.room import step_limits
    from ..serving.schedulers import scheduler_of as usual_scheduler
    from ..serving.schedulers.base import with_options as with_changes

    if options["trace"] or options["recording_format"] != "auto" or (holdout, seed) != (0.5, 0):
        raise click.UsageError("--trace, --format, --holdout and --seed need LOG.")
    served, changes = command_of(options), options["scheduler"]
    base = Deployment(options["model_config"], options["engine"] or "vllm")
    deployment = deployment_of(dict(options), base)
    if changes := changes or (served.scheduler if served else None):
        limits = with_changes(usual_scheduler(deployment.engine, step_limits(deployment)), changes).limits
        deployment = replace(deployment, max_num_batched_tokens=limits.step_tokens, max_num_seqs=limits.requests)
    with write_atomically(costs_output) if costs_output else nullcontext() as stream:
        fit = calibrate_from_kernels(deployment)
        if stream:
            stream.write(fit.costs.to_json())
    if as_json:
        print_json(fit.to_dict())
    else:
        print_tables(calibration_report.kernel_tables(fit))
    if not quiet:
        print_lines(("warning", warning) for warning in [calibration_report.NOT_MEASURED, *deployment.not_in_times, *deployment.warnings])
        print_lines([("wrote", costs_output)] if costs_output not in (None, "-") else [])
    return Outcome(fit)
