"""Each command as a function of its name, with its options as keywords: `kvtrace.curve("trace.jsonl", sample="10%")`.

A value is written as on the command line, or as a number, a list, a mapping, a path or a Trace. The command's own types
parse it, its own function runs, and what it would print is returned. `tools/command_stubs.py` writes the signatures for
type checkers.
"""

from __future__ import annotations

import inspect
import keyword
import os
import re
import tempfile
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from typing import Any

import click

from .._base.errors import InputError, KvtraceError, UsageError, nearest
from . import SECTIONS, commands
from .completion import FileName
from .help import RecordOption
from .output import Outcome, silent

NAMES = [name for members in SECTIONS.values() for name in members if name != "completion"]
ONLY_PRINTED = {  # options without a parameter: they choose what is printed, and the result of the function has all of it
    "json", "csv", "quiet", "verbose",  # a result has to_dict and to_pandas
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
RESULTS = {  # command -> its result
    "start": "report.answer.Answer", "lint": "ingest.linting.findings.LintReport",
    "anonymize": "privacy.publishing.Published", "convert": "formats.converting.Converted",
    "record": "capture.recorder.RecorderCounts", "release": "privacy.publishing.Published",
    "join": "privacy.publishing.Published", "audit": "privacy.checks.finding.Audit",
    "analyze": "analysis.summary.Summary", "curve": "analysis.curves.HitCurve", "compare": "analysis.comparison.Comparison",
    "simulate": "serving.run.Simulations", "explain": "serving.misses.explanation.Explanation",
    "sweep": "cache.sweeps.table.SweepTable", "tune": "cache.tuning.Tuned", "plan": "serving.planning.plan_result.Plan",
    "calibrate": "serving.calibration.calibration.Calibration", "validate": "serving.validation.Validation",
    "models": "serving.models.listing.ModelList", "synthesize": "synthesis.sampling.Synthesized",
    "texts": "text.prompts.writing.WriteSummary",
}  # fmt: skip
WITHOUT_TABLE = {"RecorderCounts", "Synthesized", "WriteSummary"}
OTHER_RESULTS = {
    "check": "The violations; none of a valid trace.", "report": "The names of the files.",
    "watch": "The last figures, as the JSON of the command.",
}  # fmt: skip
ALSO = {  # command -> another result, and when
    "calibrate": "with from_ a kvtrace.serving.KernelFit",
    "simulate": "of one capacity, policy, engine and router a kvtrace.cache.Simulation",
    "analyze": "with basic a kvtrace.analysis.Basics", "curve": "with instances a kvtrace.serving.PoolCurve", "models": "with gpu a kvtrace.serving.KvRoom",
}  # fmt: skip
ONLY_OF_A_SHELL = re.compile(r"(?<![\w-])-v\b|hits is printed|first line is|terminal shows")  # sentences of a help
RETURN_TRACES = {"anonymize", "convert", "release", "join", "synthesize"}  # where no output is named
IN_MEMORY = "kvtrace-of-python-"  # begins the name of the folder of a Trace that a command reads as a file
SEVERAL = (list, tuple, range)
ANYTHING = {"policies", "policy", "model_config", "gpu", "gpu_name", "name"}  # may be a class, a mapping or a value of ours


def name_of(param: click.Parameter) -> str:
    """The parameter of an option: its name with underscores; vLLM's, where there is a shorter one.

    >>> [name_of(param) for param in commands.commands["plan"].params][:4]
    ['trace', 'model', 'gpu', 'gpus']
    """
    options = [option.removeprefix("--").replace("-", "_") for option in param.opts if option.startswith("--")]
    is_record = isinstance(param, RecordOption) and param.name in options  # whose first name may be a short one
    name = param.name if is_record or not options else options[0]
    return f"{name}_" if keyword.iskeyword(str(name)) else str(name)


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
        try:
            given = signature.bind(*arguments, **options).arguments
        except TypeError as error:
            raise TypeError(f"kvtrace.{name}: {error}.") from None
        return _run(command, given)

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
            if word not in given or (given[word] is None and isinstance(param, click.Option) and not param.required):
                continue  # the default
            _require_path(name, word, given[word])
            values[str(param.name)] = _value(param, given[word])
        values |= {"quiet": True} if "quiet" in values else {}
        if name in FILES_ALONE:
            values = {key: _as_files(value, stack) for key, value in values.items()}
        temporary = None
        if name in RETURN_TRACES and values["output"] is None and not values.get("save_model"):
            temporary = values["output"] = os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), "trace.jsonl")
        outcome = callback(**values)
        if temporary is not None:
            from ..formats import reading

            drawn = reading.read(temporary)
            return replace(outcome.result, files=[], trace=drawn) if values.get("check") else drawn
    result = outcome.result if isinstance(outcome, Outcome) else outcome
    return result.runs[0] if name == "simulate" and _is_one(given) and len(result.runs) == 1 else result


def _is_one(given: Mapping[str, Any]) -> bool:
    """Whether `simulate` got one capacity, and one value at most of what may have several."""
    values = [_plain(given[name]) for name in ("capacity", "policy", "engine", "router") if name in given]
    lists = [value for value in values if isinstance(value, SEVERAL) or (isinstance(value, str) and "," in value)]
    return not lists and given.get("capacity") not in (None, "auto")


def _require_path(command: str, name: str, value: Any) -> None:
    """UsageError for a Trace where the command reads something else, or files beside it."""
    from ..trace.trace import Trace

    several = value if isinstance(value, SEVERAL) else [value]
    if any(isinstance(item, Trace) and not len(item) for item in several):
        raise InputError("the trace has no requests.")
    if any(isinstance(item, Trace) for item in several) and name not in TRACES | FILES_ALONE.get(command, set()):
        raise UsageError(f"{name} must be a path, not a Trace.")


def _value(param: click.Parameter, value: Any) -> Any:
    """The value of a parameter as the command takes it: parsed by the parameter's own type."""
    from ..trace.trace import Trace

    value = _plain(value)
    if getattr(param, "is_flag", False):
        if value is not None and not isinstance(value, bool):
            raise UsageError(f"{name_of(param)} must be True or False.")
        return value
    if value is None and param.required:
        raise UsageError(f"{name_of(param)} is None, not a path.")
    if isinstance(param, click.Argument) and param.nargs == 1 and not isinstance(value, (str, os.PathLike, Mapping, Trace)):
        raise UsageError(f"{name_of(param)} must be one path or a Trace, not a {type(value).__name__}.")
    if value is None or value is False:
        return None
    if value is True:
        flag = getattr(param, "flag_value", None)
        if not isinstance(flag, str):
            raise UsageError(f"{name_of(param)} needs a value.")
        value = flag
    if getattr(param, "multiple", False) or param.nargs == -1:
        several = [f"{key}={item}" for key, item in value.items()] if isinstance(value, Mapping) else value
        several = several if isinstance(several, SEVERAL) else [several]
        return tuple(_at_home(param, _text(item)) for item in several)
    text = _at_home(param, _text(value, keep=param.name in ANYTHING))
    return param.type(text, param) if isinstance(text, str) else text


def _at_home(param: click.Parameter, value: Any) -> Any:
    """A path with the user's folder in place of its `~`, as a shell writes it."""
    takes_files = isinstance(param.type, FileName) or getattr(param.type, "files", False)
    return os.path.expanduser(value) if takes_files and isinstance(value, str) else value


def _text(value: Any, *, keep: bool = False) -> Any:
    """A value as one writes it on the command line; a Trace, and what `keep` allows, as it is."""
    from ..trace.trace import Trace

    value = _plain(value)
    if isinstance(value, Mapping) and not keep:
        return ",".join(f"{key}={_text(item)}" for key, item in value.items())
    if isinstance(value, SEVERAL) and all(isinstance(_plain(item), (str, int, float)) for item in value):
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


def _plain(value: Any) -> Any:
    """A number, an array or a column of NumPy, pandas or Polars as Python's numbers and lists; others as they are."""
    plain = getattr(value, "tolist", None) or getattr(value, "to_list", None)
    return plain() if callable(plain) and not isinstance(value, type) else value


def _as_files(value: Any, stack: ExitStack) -> Any:
    """A value, or several, with each Trace as the path of a file that holds it."""
    from ..formats.writing import write
    from ..trace.trace import Trace

    if isinstance(value, tuple):
        return tuple(_as_files(item, stack) for item in value)
    if not isinstance(value, Trace):
        return value
    path = os.path.join(stack.enter_context(tempfile.TemporaryDirectory(prefix=IN_MEMORY)), "trace.jsonl")
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
            text = re.sub(rf"\S*{IN_MEMORY}[^/\s]*/trace\.jsonl(\.meta\.json)?", "the trace", str(error))
            error.args = (_python_words(command, text),)
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
    """The help of a command as a docstring: without what is only printed, in the words of Python."""
    help_text = _python_words(command, inspect.cleandoc(command.help or ""))
    about = [re.split(r"(?<=\.)\s+", part) for part in help_text.split("\n\n")]
    parts = [" ".join(text for text in part if not ONLY_OF_A_SHELL.search(text)) for part in about]
    lines = ["\n\n".join(textwrap.fill(part, 116, break_on_hyphens=False) for part in parts if part), "", "Args:"]
    for name, param in parameters_of(command):
        help_text = getattr(param, "help", None) or _argument(str(command.name), param)
        if "{rows}" in help_text:
            help_text = help_text.replace("{rows}", ", ".join(param.rows()))  # type: ignore[attr-defined]
        lines.append(f"    {name}: {help_text}")
    text = _python_words(command, "\n".join([*lines, "", "Returns:", f"    {_returned(command)}"]))
    text = re.sub(r"(?<![\w-])--([a-z][a-z-]*)", lambda match: match[1].replace("-", "_"), text)  # of other commands
    return re.sub(r"\b([Pp])rint(s|ed)?\b", lambda match: f"{chr(ord(match[1]) + 2)}eturn{match[2] or ''}", text)


def _argument(command: str, param: click.Parameter) -> str:
    """What an argument takes, which has no help."""
    if param.name == "name":
        return "A model, or a part of the names of several."
    takes_trace = param.name in TRACES | FILES_ALONE.get(command, set())
    one = "A path, or a Trace" if takes_trace else "A file, a folder or a glob" if param.nargs == -1 else "A path"
    return f"{one}; or a list of them." if param.nargs == -1 else f"{one}."


def _returned(command: click.Command) -> str:
    """What the function of a command returns."""
    name = str(command.name)
    if name not in RESULTS:
        return OTHER_RESULTS[name]
    room, kind = RESULTS[name].split(".")[0], RESULTS[name].split(".")[-1]
    place = f"kvtrace.{room}.{kind}" if kind in import_module(f"kvtrace.{room}").__all__ else kind
    figure = ", plot()" if any("svg" in _words(param) for param in command.params) else ""
    methods = "" if kind in WITHOUT_TABLE else f", with to_dict(), to_pandas(){figure}"
    result = f"{'An' if kind[0] in 'AE' else 'A'} {place}{methods}."
    if name in ALSO:
        return f"{result[:-1]}; {ALSO[name]}."
    return f"The trace; with output {result[0].lower()}{result[1:]}" if name in RETURN_TRACES else result


def _words(param: click.Parameter) -> set[str]:
    return {option.removeprefix("--") for option in param.opts if option.startswith("--")}
