"""Each command as a function of its name, with its options as keywords: `kvtrace.curve("trace.jsonl", sample="10%")`.

A value is written as on the command line, or as a number, a list, a mapping, a path or a Trace. The command's own types
parse it, its own function runs, and what it would print is returned. `tools/command_stubs.py` writes the signatures for
type checkers.
"""

from __future__ import annotations

import inspect
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import click

from .._base.errors import KvtraceError, UsageError, nearest
from . import SECTIONS, commands
from .help import RecordOption
from .output import Outcome, silent

NAMES = [name for members in SECTIONS.values() for name in members if name != "completion"]
ONLY_PRINTED = {  # options without a parameter: they choose what is printed, and the result of the function has all of it
    "json", "csv", "quiet", "verbose", "png", "svg",  # a result has to_dict, to_csv, to_pandas and plot
    "over-time", "by-session",  # a result has over_time and by_session, with the times that you name then
    "interval",  # the pace of a display
    "fail",  # an exit status
}  # fmt: skip
FIRST = {  # command -> the options that may go without their names, after the files
    "anonymize": ("output",), "convert": ("output",), "record": ("output",), "release": ("output",),
    "join": ("output",), "report": ("output",), "texts": ("output",), "synthesize": ("output",), "sweep": ("output",), "plan": ("model",),
    "curve": ("capacity",), "simulate": ("capacity", "policy"), "explain": ("capacity", "policy"),
    "tune": ("capacity", "policy"),
}  # fmt: skip
FIRST_FILES = {"inputs", "traces", "mixed"}  # arguments that take several files
TRACES = {"trace", "a", "b", "other"}  # parameters that take a Trace
FILES_ALONE: dict[str, set[str]] = {  # these commands read their traces as files -> more parameters that take a Trace
    "check": set(), "audit": {"against"}, "convert": set(), "release": {"against"}, "sweep": {"traces"},
    "synthesize": {"mixed"},
}  # fmt: skip
RETURN_TRACES = {"anonymize", "convert", "release", "join", "synthesize"}  # where no output is named
ANYTHING = {"policies", "policy", "model_config", "gpu", "gpu_name"}  # may be a class, a mapping or a value of ours


def name_of(param: click.Parameter) -> str:
    """The parameter of an option: its name with underscores; vLLM's, where there is a shorter one.

    >>> [name_of(param) for param in commands.commands["plan"].params][:4]
    ['trace', 'model', 'gpu', 'gpus']
    """
    options = [option.removeprefix("--").replace("-", "_") for option in param.opts if option.startswith("--")]
    is_record = isinstance(param, RecordOption) and param.name in options  # whose first name may be a short one
    name = param.name if is_record or not options else options[0]
    return f"{name}_" if name == "for" else str(name)


def parameters_of(command: click.Command) -> list[tuple[str, click.Parameter]]:
    """The parameters of a command's function, in order: files, what may follow without a name, and the other options."""
    params = [param for param in command.params if not _words(param) & ONLY_PRINTED]
    first = FIRST.get(str(command.name), ())
    places = {"": -1, **{name: place for place, name in enumerate(first)}}
    rows = [(name_of(param), param) for param in params]
    return sorted(rows, key=lambda row: places.get("" if isinstance(row[1], click.Argument) else row[0], len(first)))


def signature_of(command: click.Command) -> inspect.Signature:
    """The signature of a command's function: the default of an option is that of the command line."""
    rows = []
    for name, param in parameters_of(command):
        is_first = isinstance(param, click.Argument) or name in FIRST.get(str(command.name), ())
        needed = param.required and not (name == "output" and command.name in RETURN_TRACES)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if is_first else inspect.Parameter.KEYWORD_ONLY
        rows.append(inspect.Parameter(name, kind, default=inspect.Parameter.empty if needed else default_of(param)))
    rows.sort(key=lambda row: (row.kind, row.kind == row.POSITIONAL_OR_KEYWORD and row.default is not row.empty))
    return inspect.Signature(rows)


def default_of(param: click.Parameter) -> Any:
    """The default of a parameter: that of the option, where it has one of its own."""
    if getattr(param, "is_flag", False):
        return False if param.default is not None else None
    default = param.to_info_dict().get("default")
    return None if default == () or callable(default) else default


def function_of(name: str) -> Callable[..., Any]:
    """The function of a command.

    >>> from kvtrace.trace.building import toy
    >>> function_of("simulate")(toy("0 1", "0 1"), capacity=2).hits.hit_blocks
    2
    """
    command = commands.commands[name]
    signature = signature_of(command)

    def function(*arguments: Any, **options: Any) -> Any:
        _require_names(name, signature, options)
        return _run(command, signature.bind(*arguments, **options).arguments)

    function.__name__ = function.__qualname__ = name
    function.__module__ = "kvtrace"
    function.__doc__ = _help_of(command)
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


# -- a call ------------------------------------------------------------------------------------------------------


def _run(command: click.Command, given: Mapping[str, Any]) -> Any:
    """The result of a command with these values; what is wrong with them is a UsageError in the words of Python."""
    name, callback = str(command.name), command.callback
    assert callback is not None
    with _in_python_words(command), silent(), ExitStack() as stack:
        values = dict(command.make_context(name, [], resilient_parsing=True).params)  # the defaults
        for word, param in parameters_of(command):
            if word in given:
                _require_path(name, word, given[word])
                values[str(param.name)] = _value(param, given[word])
        values |= {"quiet": True} if "quiet" in values else {}
        if name in FILES_ALONE:
            values = {key: _as_files(value, stack) for key, value in values.items()}
        temporary = None
        if name in RETURN_TRACES and values["output"] is None and not (values.get("check") or values.get("save_model")):
            temporary = values["output"] = os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), "trace.jsonl")
        outcome = callback(**values)
        if temporary is not None:
            from ..formats import reading

            return reading.read(temporary)
    result = outcome.result if isinstance(outcome, Outcome) else outcome
    return result.runs[0] if name == "simulate" and _is_one(given) and len(result.runs) == 1 else result


def _is_one(given: Mapping[str, Any]) -> bool:
    """Whether `simulate` got one capacity, and one value at most of what may have several."""
    values = [given[name] for name in ("capacity", "policy", "engine", "router") if given.get(name) is not None]
    lists = [value for value in values if isinstance(value, (list, tuple)) or (isinstance(value, str) and "," in value)]
    return "capacity" in given and given["capacity"] != "auto" and not lists


def _require_path(command: str, name: str, value: Any) -> None:
    """UsageError for a Trace where the command reads something else, or files beside it."""
    from ..trace.trace import Trace

    several = value if isinstance(value, (list, tuple)) else [value]
    if any(isinstance(item, Trace) for item in several) and name not in TRACES | FILES_ALONE.get(command, set()):
        raise UsageError(f"{name} must be a path, not a Trace.")


def _value(param: click.Parameter, value: Any) -> Any:
    """The value of a parameter as the command takes it: parsed by the parameter's own type."""
    if getattr(param, "is_flag", False):
        if value is not None and not isinstance(value, bool):
            raise UsageError(f"{name_of(param)} must be True or False.")
        return value
    if value is None and isinstance(param, click.Argument) and param.required:
        raise UsageError(f"{name_of(param)} is None, not a path.")
    if value is None or value is False:
        return None
    if value is True:
        flag = getattr(param, "flag_value", None)
        if not isinstance(flag, str):
            raise UsageError(f"{name_of(param)} needs a value.")
        value = flag
    if getattr(param, "multiple", False) or param.nargs == -1:
        several = [f"{key}={item}" for key, item in value.items()] if isinstance(value, Mapping) else value
        several = several if isinstance(several, (list, tuple)) else [several]
        return tuple(_text(item) for item in several)
    text = _text(value, keep=param.name in ANYTHING)
    return param.type(text, param) if isinstance(text, str) else text


def _text(value: Any, *, keep: bool = False) -> Any:
    """A value as one writes it on the command line; a Trace, and what `keep` allows, as it is."""
    from ..trace.trace import Trace

    if isinstance(value, Mapping) and not keep:
        return ",".join(f"{key}={_text(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple, range)) and all(isinstance(item, (str, int, float)) for item in value):
        return ",".join(map(_text, value))
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, timedelta):
        return f"{value / timedelta(milliseconds=1):.15g}ms"
    if isinstance(value, (str, Trace)):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        if keep:
            return value
        kinds = "a text, a number, a list of them, a mapping, a path, a timedelta or a Trace"
        raise UsageError(f"{type(value).__name__} is not a value of an option. Give {kinds}.")
    return str(value)


def _as_files(value: Any, stack: ExitStack) -> Any:
    """A value, or several, with each Trace as the path of a file that holds it."""
    from ..formats.writing import write
    from ..trace.trace import Trace

    if isinstance(value, tuple):
        return tuple(_as_files(item, stack) for item in value)
    if not isinstance(value, Trace):
        return value
    path = os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), "trace.jsonl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the file was not audited: it is not published
        write(value, path, extra=True)
    return path


@contextmanager
def _in_python_words(command: click.Command) -> Iterator[None]:
    """Errors name parameters, not options."""
    try:
        yield
    except click.ClickException as error:
        raise UsageError(_python_words(command, error.format_message())) from None
    except KvtraceError as error:
        if error.args == (str(error),):  # not of a row, whose message is made of its place
            error.args = (_python_words(command, str(error)),)
        raise


def _python_words(command: click.Command, text: str) -> str:
    """A text with the names of parameters in place of those of options.

    >>> _python_words(commands.commands["plan"], "--gpus needs --model-config.")
    'gpus needs model.'
    """
    names = {option: name for name, param in parameters_of(command) for option in param.opts}
    return re.sub(r"(?<![\w-])--?[a-z][a-z-]*", lambda match: names.get(match[0], match[0]), text)


def _require_names(name: str, signature: inspect.Signature, options: Mapping[str, Any]) -> None:
    for option in options.keys() - signature.parameters.keys():
        near = nearest(option, signature.parameters)
        hint = f" Did you mean {near[0]}?" if near else f" Choose from {', '.join(signature.parameters)}."
        raise TypeError(f"kvtrace.{name} has no option {option!r}.{hint}")


def _help_of(command: click.Command) -> str:
    """The help of a command as a docstring."""
    text = inspect.cleandoc(command.help or "")
    lines = [text, "", "Args:"]
    for name, param in parameters_of(command):
        about = getattr(param, "help", None) or f"{(param.metavar or name).strip('[].')}: a path, or a Trace where the command reads one."
        if "{rows}" in about:
            about = about.replace("{rows}", ", ".join(param.rows()))  # type: ignore[attr-defined]
        lines.append(f"    {name}: {about}")
    if command.name == "simulate":
        lines += ["", "Returns:", "    A Simulation of one capacity, policy, engine and router; Simulations of several."]
    if command.name in RETURN_TRACES:
        lines += ["", "Returns:", "    The trace; with output the names of the files, and what is known of them."]
    return _python_words(command, "\n".join(lines))


def _words(param: click.Parameter) -> set[str]:
    return {option.removeprefix("--") for option in param.opts if option.startswith("--")}
