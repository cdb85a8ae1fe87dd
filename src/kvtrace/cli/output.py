"""The output of commands, results on stdout, progress and summaries on stderr; and the files that they read and write.

Each command passes through `keep_inputs`. Before it starts, it refuses an output that is one of its inputs or another of
its outputs, and an output whose name states another content than it will hold. Files go by the names of parameters.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple, TextIO, cast

import click

NAME_WIDTH = 12  # of the names of a summary
FORCED = ("FORCE_COLOR", "TTY_COMPATIBLE")  # variables with which rich takes a pipe for a terminal
PASTED = ("use", "wrote", "audit", "next")  # lines of commands and files, which a line break would damage


_silent: ContextVar[bool] = ContextVar("_silent", default=False)


class Outcome(NamedTuple):
    """What a command returns: the result, for the function of its name in Python, and the exit status."""

    result: Any
    status: int = 0


@contextmanager
def silent() -> Iterator[None]:
    """Print nothing meanwhile: a command is called as a function."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def is_silent() -> bool:
    """Whether a command is called as a function."""
    return _silent.get()


def echo(text: str | bytes, *, nl: bool = True) -> None:
    """Print on stdout, unless a command is called as a function."""
    if not is_silent():
        click.echo(text, nl=nl)


class _Stderr:
    """Stderr, which may be on a full disk or closed by its reader: no command, and no thread of a service, ends then."""

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError, AttributeError):  # None: it is closed
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError, AttributeError):  # None: it is closed
            sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


class Pipe:
    """Stderr as a console where it is not a terminal. It wraps no line, and does not load rich, a tenth of a short run."""

    is_terminal = False

    def print(self, line: str = "", **_style: Any) -> None:
        """Print a line as it is."""
        if not is_silent():
            _Stderr().write(f"{line}\n")


def console() -> Any:
    """The console for progress and summaries: stderr, so that a trace can go to stdout."""
    if not (sys.stderr is not None and sys.stderr.isatty()) and not any(map(os.environ.get, FORCED)):
        return Pipe()
    from rich.console import Console

    return Console(file=cast(TextIO, _Stderr()), stderr=True, soft_wrap=True, quiet=is_silent())


def print_lines(lines: Iterable[tuple[str, object]]) -> None:
    """Print a summary on stderr: each line has a name and a value."""
    screen = console()
    for name, value in lines:
        print_line(screen, f"{name:<{NAME_WIDTH}}{value}")


def print_line(screen: Any, line: str) -> None:
    """Print a name and a value; on a terminal a long value wraps below itself, unless it is one to paste."""
    import textwrap

    if screen.is_terminal and line.split(" ")[0] not in PASTED:
        indent = " " * NAME_WIDTH
        line = textwrap.fill(line, screen.width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    screen.print(line, highlight=False, markup=False)


def print_table(screen: Any, table: Any) -> None:
    """Print a table of a summary; in a pipe its lines have no blanks at their end."""
    if screen.is_terminal:
        screen.print(table)
        return
    from rich.console import Console

    page = Console(width=160, color_system=None)  # a pipe has no width to wrap at
    with page.capture() as captured:
        page.print(table)
    for line in captured.get().splitlines():
        screen.print(line.rstrip())


def print_rows(screen: Any, rows: Iterable[tuple[str, str, str]]) -> None:
    """Print the rows of a summary: a name, a number, and a note, which wraps below itself on a terminal."""
    import textwrap

    rows = list(rows)
    names, numbers = (max(len(row[column]) for row in rows) for column in (0, 1))
    indent = names + numbers + 4
    for name, number, note in rows:
        lines = textwrap.wrap(note, max(screen.width - indent, 20)) if screen.is_terminal else [note]
        below = f"\n{'':<{indent}}".join(lines)
        screen.print(f"{name:<{names}}  {number:>{numbers}}  {below}".rstrip(), highlight=False, markup=False)


def rejected(reasons: Mapping[str, int]) -> Iterator[str]:
    """The lines of a summary with the most frequent reasons for which requests were rejected."""
    for reason, count in sorted(reasons.items(), key=lambda row: -row[1])[:5]:
        yield f"rejected    {count:,}: {reason}"


def print_json(values: object) -> None:
    """Print one JSON object on stdout."""
    import orjson

    echo(orjson.dumps(values, option=orjson.OPT_INDENT_2))


def print_result(
    values: Any, remarks: Mapping[str, str], *, as_json: bool, as_csv: str | None, notes: Iterable[str] = ()
) -> bool:
    """Print a result as JSON or CSV, with its remarks: a key of JSON, lines on stderr beside CSV.

    Args:
        values: The JSON object.
        remarks: Name -> sentence.
        as_json: Print JSON.
        as_csv: The text of the CSV, if that is printed.
        notes: More sentences beside CSV; the JSON object has them.

    Returns:
        Whether something was printed.
    """
    if as_json:
        print_json(values | ({"remarks": dict(remarks)} if remarks else {}))
    elif as_csv is not None:
        echo(as_csv, nl=False)
        print_lines(("note", sentence) for sentence in [*remarks.values(), *notes])
    return as_json or as_csv is not None


def print_json_line(values: object) -> None:
    """Print one JSON object on a line of stdout."""
    import orjson

    echo(orjson.dumps(values))


def print_tables(tables: Iterable[Any]) -> None:
    """Print tables on stdout, separated by empty lines: in colour on a terminal, plain in a pipe.

    A terminal, and a pipe with COLUMNS, get the columns that fit; a pipe without COLUMNS gets all of them.
    """
    from rich.console import Console

    from .._base.tables import TextTable

    if is_silent():
        return
    tables = list(tables)
    console = Console(soft_wrap=True)
    if _line_width(console) is None:
        widths = [table.width() for table in tables if isinstance(table, TextTable)]
        console.width = max([240, *widths])
    with console.capture() as captured:
        for number, table in enumerate(tables):
            console.print(*([""] if number else []), table, sep="\n")
    click.echo("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()), nl=False)


def print_notes(notes: Iterable[str]) -> None:
    """Print sentences on stdout, one a line; where a line has a width they wrap between words, below their first letter."""
    import textwrap

    from rich.console import Console

    if is_silent():
        return
    width = _line_width(Console())
    for note in notes:
        if width is not None:
            indent = note[: len(note) - len(note.lstrip())]
            note = textwrap.fill(note, width, subsequent_indent=indent, break_on_hyphens=False)
        click.echo(note)


def _line_width(console: Any) -> int | None:
    """The width of a line: of the terminal, or COLUMNS in a pipe; None in a pipe without COLUMNS, which cuts nothing."""
    has_width = console.is_terminal or (os.environ.get("COLUMNS", "").isdecimal() and int(os.environ["COLUMNS"]) > 0)
    return console.width if has_width else None


TRACES = ("trace", "traces", "mixed", "other", "a", "b", "against", "input_file")  # inputs with a sidecar and a data card
INPUTS = (*TRACES, "inputs", "follow", "users", "tokenizer", "chat_template", "words", "model_config", "gpu", "gpu_name", "log", "costs_file", "table_file", "service_time", "rates", "fleet")
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
    "save_table": ("JSON", "a table of reuse-density"),
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
        require_values(command, values)
        values |= _found(command, values)
        require_files(command, values)
        return run(**values)

    command.callback = checked
    return command


def require_values(command: click.Command, values: Mapping[str, Any]) -> None:
    """UsageError for an option whose value is empty, which would be as if it were not given.

    >>> from kvtrace.cli import commands
    >>> require_values(commands.commands["simulate"], {"tiers": ""})
    Traceback (most recent call last):
    kvtrace._base.errors.UsageError: --tiers is empty. Give a value, or leave it out.
    """
    from .._base.errors import UsageError

    for parameter in command.params:
        if isinstance(parameter, click.Option) and values.get(parameter.name or "") == "":
            raise UsageError(f"{parameter.opts[0]} is empty. Give a value, or leave it out.")


def _found(command: click.Command, values: Mapping[str, Any]) -> dict[str, Any]:
    """The traces of a command line in place of their globs and folders; UsageError for several where one is read."""
    options = {parameter.name: option_of(parameter) for parameter in command.params}
    result: dict[str, Any] = {}
    for name in (*TRACES, "log"):
        value = values.get(name)
        if name == "log" and value and os.path.isdir(value):  # a recording may be a folder
            continue
        if isinstance(value, (tuple, list)):
            result[name] = tuple(trace for path in value for trace in _traces_of(path, with_shares=name == "mixed"))
        elif value:
            result[name], *others = _traces_of(value)
            if others:
                from .._base.errors import UsageError

                raise UsageError(
                    f"{value} names {len(others) + 1:,} traces, and {options[name]} of {command.name} is one. Name one of "
                    f"them, or run kvtrace {command.name} for each; kvtrace sweep takes several."
                )
    return result


def _traces_of(path: Any, *, with_shares: bool = False) -> list[Any]:
    """The traces that a path names; a share of `PATH:SHARE` goes to each. A Trace is itself."""
    if not isinstance(path, str | os.PathLike) or path == "-" or os.path.isfile(path):
        return [path]
    path = os.fspath(path)
    from .._base.files import share_of
    from ..formats.reading import traces_at

    whole = share_of(path)[0] if with_shares else path
    return [trace + path[len(whole) :] for trace in traces_at(whole)]


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
                yield from (NamedFile(options[name], part, "file") for part in _files_inside(path))
            yield NamedFile(options[name], path, is_whole=is_trace and _is_dataset(path))
            if is_trace and path != "-":
                for part, beside in _beside(path).items():
                    if beside != values.get("card_file"):  # the card of a trace is written beside it
                        yield NamedFile(options[name], beside, part)


def _files_inside(path: str) -> list[str]:
    """The files of a folder; none if the path is not one."""
    from pathlib import Path

    return sorted(str(file) for file in Path(path).iterdir() if file.is_file()) if Path(path).is_dir() else []


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
    if isinstance(value, str):
        return [value] if value else []
    if not isinstance(value, (tuple, list)):
        return []  # a value that Python passed, such as a Trace
    if of_logs:
        from .._base.errors import KvtraceError
        from ..ingest.logs import sources

        with suppress(KvtraceError):  # the command will report it
            return [source.path for source in sources.find(value)]
    if with_shares:
        from .._base.files import share_of

        return [share_of(path)[0] for path in value]
    return [path for path in value if isinstance(path, str)]


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
