"""`kvtrace models`: the models that --model knows by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from ..serving.deployment import Deployment
from .completion import Name, models
from .deployment_options import DEPLOYMENT, LIMITS, MORE, deployment_of, gpu_options
from .help import Command
from .options import json_option, record_options
from .output import Outcome, print_json, print_lines, print_tables

GPU = "With NAME: print the memory left for KV on {rows}, or a JSON file."
ENGINE = "With --gpu: engine whose rules for memory count, vllm or sglang."


@click.command("models", cls=Command, types={"name": Name(models)}, examples=(
    "kvtrace models",
    "kvtrace models qwen3",
    "kvtrace models gpt-oss-120b",
    "kvtrace models deepseek-ai/DeepSeek-V3 --gpu h200 --gpus 8",
))
@click.argument("name", metavar="[NAME]", required=False)
@gpu_options(gpu=GPU)
@record_options(Deployment, only=("engine",), settings={"engine": {"help": ENGINE}})
@record_options(Deployment, only=LIMITS)
@DEPLOYMENT
@json_option("serving/models.md")
def models_command(name, as_json, **options):
    """List the models that --model knows by name.

    NAME shows one model with its sources, or lists the models whose names contain it. With --gpu it is one model, or a
    config.json, and the memory left for its KV is printed.
    """
    from ..serving.models.listing import list_models

    if options["gpu"]:
        return Outcome(_print_room(deployment_of(options, model=name), as_json))
    if stated := [name for name in (*MORE, *LIMITS, "gpus", "serve") if options[name] is not None]:
        raise click.UsageError(f"--{stated[0].replace('_', '-')} needs --gpu.")
    if isinstance(name, Mapping):
        raise click.UsageError("the fields of a model need --gpu.")
    result = list_models(name)
    if as_json:
        print_json(result.to_dict())
    else:
        print_tables(result.details() if len(result) == 1 else [result.table()])
    return Outcome(result)


def _print_room(deployment: Deployment, as_json: bool) -> Any:
    """Print the room for KV of a deployment, and return it."""
    from ..report.room_tables import room_table
    from ..serving.hardware.room import kv_room

    room = kv_room(deployment)
    if as_json:
        print_json({"deployment": deployment.to_dict(), "room": room.to_dict()})
    else:
        print_tables([room_table(room, deployment)])
    print_lines(("warning", warning) for warning in deployment.warnings)
    return room
