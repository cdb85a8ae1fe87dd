"""Completion in a shell: names of policies, engines, formats and so on, and files; `kvtrace completion` prints the script."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click


class FileName(click.ParamType):
    """A path, which the shell completes; the command checks it."""

    name = "file"

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        """Leave it to the shell."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


class Name(click.ParamType):
    """A name of a table, or several with commas between; the library checks them and names what it has.

    Args:
        names: Returns the names of the table. It is called to complete, and may import the table.
        many: Several names may be given.
        files: A file may be given in place of a name.
    """

    name = "name"

    def __init__(self, names: Callable[[], Iterable[str]], *, many: bool = False, files: bool = False) -> None:
        self.names, self.many, self.files = names, many, files

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        """The names that begin with the last word."""
        from click.shell_completion import CompletionItem

        before, comma, last = incomplete.rpartition(",") if self.many else ("", "", incomplete)
        items = [CompletionItem(f"{before}{comma}{name}") for name in self.names() if name.startswith(last)]
        return items or ([CompletionItem(incomplete, type="file")] if self.files else [])


def policies() -> list[str]:
    """Eviction policies; those with a required parameter have an example of it."""
    from ..cache.policies import POLICIES

    return [row.example if row.required else name for name, row in POLICIES.items()]


def engines() -> list[str]:
    """Engines whose prefix cache can be simulated."""
    from ..cache.engines import ENGINES

    return list(ENGINES)


def grouped_engines() -> list[str]:
    """Engines whose caches of windows and states are modelled."""
    from ..cache.engines import ENGINES

    return [name for name, row in ENGINES.items() if row.layouts]


def engine_values(option: str) -> Callable[[], list[str]]:
    """The values of an option that an engine declares."""

    def values() -> list[str]:
        from ..cache.engines import ENGINES

        return [value for row in ENGINES.values() for value in row.options.get(option, ())]

    return values


def routers() -> list[str]:
    """Routers of several instances."""
    from ..serving.routers import ROUTERS

    return list(ROUTERS)


def recordings() -> list[str]:
    """Formats of recordings; auto detects the format."""
    from ..serving.recordings import RECORDINGS

    return ["auto", *RECORDINGS]


def gpus() -> list[str]:
    """GPUs with a row of their own; a JSON file describes any other."""
    from ..serving.hardware import GPUS

    return list(GPUS)


def models() -> list[str]:
    """Models of the catalog; a config.json describes any other."""
    from ..serving.models import MODELS

    return list(MODELS)


def profiles() -> list[str]:
    """Release profiles."""
    from ..privacy.profiles import PROFILES

    return list(PROFILES)


def formats() -> list[str]:
    """Trace formats."""
    from ..formats.format_table import FORMATS

    return list(FORMATS)


def targets() -> list[str]:
    """Trace formats and clients."""
    from ..formats.targets import TARGETS

    return [*formats(), "weka", *TARGETS]


def prompt_forms() -> list[str]:
    """Formats of made-up prompts."""
    from ..text.prompts.bodies import FORMS

    return list(FORMS)


def log_formats() -> list[str]:
    """Log formats."""
    from ..ingest.logs import READERS

    return ["auto", *READERS]


def fixed(*names: str) -> Callable[[], tuple[str, ...]]:
    """Names that are not in a table."""
    return lambda: names


SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", metavar="[bash|zsh|fish]", type=click.Choice(SHELLS))
def completion_command(shell):
    """Print the completion script of a shell.

    Then the Tab key completes commands, options, files, and the names of policies, engines, formats and so on.
    """
    from click.shell_completion import get_completion_class

    root = click.get_current_context().find_root()
    name = root.info_name or "kvtrace"
    completion = get_completion_class(shell)
    assert completion is not None  # SHELLS are click's own
    variable = f"_{name.replace('-', '_').upper()}_COMPLETE"
    click.echo(completion(root.command, {}, name, variable).source())
