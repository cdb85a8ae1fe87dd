"""Options of a deployment, and the Deployment that they make up with a costs file, a recording or a server's command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import click

from .._base.errors import UsageError
from ..serving.deployment import TIME, Deployment
from ..serving.run_options import TimeSetup
from . import completion
from .help import RecordOption
from .options import given, record_options, with_options

if TYPE_CHECKING:
    from ..serving.calibration.costs import Costs
    from ..serving.serve_command import ServeCommand

LIMITS = ("max_num_batched_tokens", "max_num_seqs")
MORE = (  # options beside --gpu and the limits
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel",
    "decode_context_parallel_size", "prefill_context_parallel_size", "weights_dtype", "kv_cache_dtype", "speculative",
    "gpu_memory_utilization", "max_model_len", "engine_version",
)  # fmt: skip
SERVE = click.option("--serve", metavar="COMMAND", cls=RecordOption, group="Deployment", help="The command that starts the server, in place of these options. Example: 'vllm serve M -tp 8'.")


def gpu_options(*, gpu: str | None = None, gpus: str | None = None, required: bool = False) -> Any:
    """--gpu and --gpus; the arguments are their help, where it is a command's own."""
    about: dict[str, Any] = {"rows": completion.gpus, "required": required} | ({} if gpu is None else {"help": gpu})
    number = click.option("--gpus", type=click.IntRange(1), metavar="N", cls=RecordOption, group=TIME, help=gpus or "With --gpu or --costs: GPUs per instance, by tensor parallelism.  [default: 1; with --costs as many as were measured]")
    return with_options(record_options(Deployment, only=("gpu",), settings={"gpu": about}), number)


DEPLOYMENT = with_options(record_options(Deployment, only=MORE), SERVE)


def deployment_of(options: dict[str, Any], base: Deployment | None = None, *, source: str | None = None, **others: Any) -> Deployment:
    """The deployment of a command's options, which are taken from the options.

    Args:
        options: The options of the command.
        base: What is known of it otherwise: of a costs file, or of a recording.
        source: What states the base, if options may not contradict it.
        others: Fields that other options of the command state.

    Raises:
        UsageError: An option contradicts the base, the command of --serve or --gpus.
    """
    stated = {name: value for name, value in others.items() if value is not None} | given(Deployment, options)
    gpus, served = options.pop("gpus", None), command_of(options)
    base = base or Deployment()
    if served is not None:
        _require_agreement(served.stated, {name: getattr(base, name) for name in served.stated} if source else {}, source or "")
        _require_agreement(stated, served.stated, "--serve")
        base = replace(base, **served.stated)
    if source is not None:
        known = {part.name: getattr(base, part.name) for part in fields(base) if getattr(base, part.name) not in (part.default, None)}
        _require_agreement(stated, known, source)
    if gpus is not None and not stated.keys() & {"tensor_parallel_size"} and served is None and source is None:
        base = replace(base, tensor_parallel_size=1)
    deployment = replace(base, **stated)
    if source is not None and gpus not in (None, deployment.gpus_per_instance):
        raise UsageError(f"--gpus {gpus} contradicts {source}, which has {deployment.gpus_per_instance}. Leave it out.")
    return deployment.with_gpus(gpus)


def command_of(options: Mapping[str, Any]) -> ServeCommand | None:
    """What --serve states; None without it."""
    if options.get("serve") is None:
        return None
    from ..serving.serve_command import read_command

    return read_command(options["serve"])


def costs_of(time: TimeSetup, deployment: Deployment, costs: Costs | None) -> Costs | None:
    """The costs of --kernels, else those of --costs."""
    if time.kernels is None:
        return costs
    if costs is not None:
        raise UsageError("--costs and --kernels cannot be combined. Use one of them.")
    from ..serving.calibration.kernels import calibrate_from_kernels

    return calibrate_from_kernels(deployment).costs


def deployment_json(time: TimeSetup) -> dict[str, Any] | None:
    """The deployment of a result for its JSON; None without a model."""
    return None if time.deployment.model is None else time.deployment.to_dict()


def deployment_notes(time: TimeSetup) -> list[str]:
    """The deployment of a result in a sentence, if GPUs serve it, and what its times leave out."""
    deployment = time.deployment
    if deployment.model is None or deployment.gpu is None:
        return []
    fitted = [f"Steps take what was fitted to {time.costs.basis}."] if time.costs else []
    return [f"Deployment: {deployment}.", *fitted, *(f"{sentence[0].upper()}{sentence[1:]}." for sentence in deployment.not_in_times)]


def expected_errors(runs: Iterable[Any]) -> list[str]:
    """What to expect of simulated times that rest on no recording: a sentence for each engine and load."""
    errors = (getattr(run, "expected_error", None) for run in runs)
    return list(dict.fromkeys(error.text for error in errors if error is not None))


def _require_agreement(stated: Mapping[str, Any], known: Mapping[str, Any], source: str) -> None:
    """UsageError if an option states something else than what is known of the deployment."""
    for name, value in stated.items():
        if name in known and known[name] != value:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} {value} contradicts {source}, which has {known[name]}. Leave it out.")
