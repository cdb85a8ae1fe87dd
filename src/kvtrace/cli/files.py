"""The files that commands read and write, by the names of their parameters; each command passes through `keep_inputs`.

Before a command starts, it refuses an output that is one of its inputs or another of its outputs, and an output whose
name states another content than it will hold.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import click

TRACES = ("trace", "traces", "mixed", "other", "a", "b", "against", "input_file")  # inputs with a sidecar and a data card
INPUTS = (*TRACES, "inputs", "follow", "users", "tokenizer", "chat_template", "words", "model_config", "gpu", "gpu_name", "log", "costs_file", "service_time", "rates")
RESULTS = ("output", "output_file")  # outputs with files beside them
OUTPUTS = {  # parameter -> the Content that it always has, and what that is; None if the command decides
    "output": None,
    "output_file": None,
    "png": None,
    "svg": None,
    "key_file": None,
    "work_dir": None,
    "rejects": ("JSON_LINES", "the list of bad rows"),
    "per_request": ("CSV", "the table of requests"),
    "save_model": ("JSON", "a model"),
    "card_file": ("MARKDOWN", "a data card"),
    "html": ("HTML", "a page"),
    "costs_output": ("JSON", "costs"),
}


def keep_inputs(command: click.Command) -> click.Command:
    """The same command, which checks its files before it starts."""
    run: Callable[..., Any] | None = command.callback
    assert run is not None

    @functools.wraps(run)
    def checked(**values: Any) -> Any:
        require_files(command, values)
        return run(**values)

    command.callback = checked
    return command


def require_files(command: click.Command, values: dict[str, Any]) -> None:
    """UsageError if an output of a command line is an input, another output, or has a name of another content.

    Args:
        command: The command.
        values: The value of each parameter.

    Raises:
        UsageError: As above; the message names both options.

    >>> from kvtrace.cli import commands
    >>> require_files(commands.commands["texts"], {"trace": "docs/../README.md", "output": "README.md"})
    Traceback (most recent call last):
    kvtrace._base.errors.UsageError: -o README.md is the same file as TRACE docs/../README.md and would overwrite it. \
Choose another name for -o.
    """
    if not any(values.get(name) for name in OUTPUTS):
        return
    from .._base.files import Content, require_distinct, require_name

    options: dict[Any, str] = {parameter.name: option_of(parameter) for parameter in command.params}
    require_distinct(_inputs(options, values), _outputs(command.name, options, values))
    for name, content in OUTPUTS.items():
        if content and values.get(name):
            require_name(values[name], Content[content[0]], content[1], option=options[name])


def option_of(parameter: click.Parameter) -> str:
    """The name of a parameter in messages.

    >>> from kvtrace.cli import commands
    >>> [option_of(parameter) for parameter in commands.commands["report"].params][:4]
    ['TRACE', 'TRACE2', '-o', '--png']
    """
    if isinstance(parameter, click.Option):
        return parameter.opts[0]
    return (parameter.metavar or parameter.name or "").strip("[].")


def _inputs(options: dict[Any, str], values: dict[str, Any]) -> Iterator[Any]:
    from .._base.files import NamedFile

    for name in INPUTS:
        for path in _paths(values.get(name), of_logs=name == "inputs", with_shares=name == "mixed"):
            is_trace = name in TRACES
            if name == "log":  # a recording may be a folder
                yield from (NamedFile(options[name], one, "file") for one in _files_inside(path))
            yield NamedFile(options[name], path, is_whole=is_trace and _is_dataset(path))
            if is_trace and path != "-":
                for part, beside in _beside(path).items():
                    if beside != values.get("card_file"):  # the card of a trace is written beside it
                        yield NamedFile(options[name], beside, part)


def _files_inside(path: str) -> list[str]:
    """The files of a folder; none if the path is not one."""
    from pathlib import Path

    return sorted(str(one) for one in Path(path).iterdir() if one.is_file()) if Path(path).is_dir() else []


def _outputs(command: str | None, options: dict[Any, str], values: dict[str, Any]) -> Iterator[Any]:
    from .._base.files import NamedFile

    for name in OUTPUTS:
        for path in _paths(values.get(name)):
            is_result = name in RESULTS
            yield NamedFile(options[name], path, is_whole=name == "work_dir" or (is_result and _is_dataset(path)))
            if is_result and path != "-":
                for part, beside in (_beside(path) | _checkpoint(command, path)).items():
                    yield NamedFile(options[name], beside, part)


def _paths(value: Any, *, of_logs: bool = False, with_shares: bool = False) -> list[str]:
    """The paths in the value of a parameter; for logs, those of their folders and globs."""
    if not value:
        return []
    if isinstance(value, str):
        return [value]
    if of_logs:
        from .._base.errors import KvtraceError
        from ..ingest.logs import sources

        with suppress(KvtraceError):  # the command will report it
            return [source.path for source in sources.find(value)]
    if with_shares:
        from .._base.files import share_of

        return [share_of(path)[0] for path in value]
    return list(value)


def _is_dataset(path: str) -> bool:
    """Whether a path is a data set, or has the name of one."""
    from ..formats import dataset

    return dataset.is_dataset(path) or dataset.has_dataset_name(path)


def _beside(path: str) -> dict[str, str]:
    """The files beside a trace; a data set has its own inside."""
    from ..formats import sidecar, writing

    return {} if _is_dataset(path) else {"sidecar": sidecar.sidecar_path(path), "data card": writing.card_path(path)}


def _checkpoint(command: str | None, path: str) -> dict[str, str]:
    """The file beside a result from which its command resumes."""
    if command == "anonymize":
        from ..ingest import checkpoint

        return {"checkpoint": checkpoint.path_beside(path)}
    if command == "sweep":
        from ..cache.sweeps import running as cells

        return {"list of cells": cells.path_beside(path)}
    return {}
