"""`kvtrace models`: the models that --model knows by name."""

from __future__ import annotations

import click

from .completion import Name, models
from .help import Command
from .options import json_option
from .output import print_json, print_tables


@click.command("models", cls=Command, types={"name": Name(models)}, examples=(
    "kvtrace models",
    "kvtrace models qwen3",
    "kvtrace models gpt-oss-120b",
    "kvtrace models gemma-3 --json",
))
@click.argument("name", metavar="[NAME]", required=False)
@json_option("serving/models.md")
def models_command(name, as_json):
    """List the models that --model knows by name.

    NAME shows one model with its sources, or lists the models whose names contain it.
    """
    from ..serving.models.listing import list_models

    result = list_models(name)
    if as_json:
        print_json(result.to_dict())
    else:
        print_tables(result.details() if len(result) == 1 else [result.table()])
