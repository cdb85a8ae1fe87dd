"""Write `cli/mirror.pyi`: the signature of each command as a function, for editors and type checkers (`make docs`).

Names, defaults and values are those of the commands' options; this file knows the types of texts, and of results.
"""

import inspect
from pathlib import Path
from typing import Any

import click

from kvtrace.cli import commands, completion, functions
from kvtrace.cli.completion import FileName, Name
from kvtrace.cli.help import AmountType

TARGET = Path(functions.__file__).with_name("mirror.pyi")
RESULTS = {name: tuple(place.rsplit(".", 1)) for name, place in functions.RESULTS.items()}
TYPES = {"check": "list[Violation]", "report": "list[str]", "watch": "dict[str, Any]"}  # other results
IMPORTS = [
    ("analysis.summary", "Basics"), ("cache.simulation", "Simulation"), ("formats.violations", "Violation"),
    ("serving.calibration.kernels", "KernelFit"), ("serving.hardware.gpus", "Gpu"),
    ("serving.hardware.room", "KvRoom"), ("serving.planning.pools", "PoolCurve"), ("trace.trace", "Trace"),
]  # fmt: skip
FILE = "str | Path"
TABLES = {  # the alias of a table, and its names
    "Engine": completion.engines, "GpuName": completion.gpus, "Router": completion.routers,
    "Profile": completion.profiles, "LogFormat": completion.log_formats, "RecordingFormat": completion.recordings,
    "TraceFormat": completion.formats, "Target": completion.targets, "PromptForm": completion.prompt_forms,
}  # fmt: skip
OPEN = {  # a parameter that takes more than names
    "gpu": "GpuName | Path | Gpu", "model": "str | Path | Mapping[str, Any]", "policy": "str | type",
    "service_time": FILE, "tokenizer": FILE, "ray_address": "str", "schedule": "str", "name": FILE,
    "round_input": "int | str", "round_output": "int | str", "scheduler": "str | Mapping[str, Any]",
    "tiers": "str | Mapping[str, int | str]", "map": "Mapping[str, str] | Sequence[str]",
    **dict.fromkeys(("ttl", "rates_period"), "str | timedelta"),
    **dict.fromkeys(("capacity", "memory", "queue", "warm_up", "time_step", "retention", "proxy"), "int | str"),
    **dict.fromkeys(("otlp", "metrics"), "bool | int | str"),
    **dict.fromkeys(("trace", "a", "b", "other"), "Trace | str | Path"),
}  # fmt: skip
AMOUNTS = {
    "milliseconds": "str | timedelta",
    "count": "int",
    "decimal": "float",
    "shares": "bool | str",
    "requests": "int | str",
}  # others: a text, too
LISTED = {"quantiles": "float", "fold": "int", "block_sizes": "int | str", "seed": "int",
          "capacity": "int | np.integer[Any] | str"}  # fmt: skip
NEEDED = object()  # a parameter without a default
WRITTEN, UNWRITTEN = {"output": (FILE, NEEDED)}, {"output": ("None", "None")}
OVERLOADS: dict[str, list[tuple[dict[str, Any], str]]] = {  # command -> what changes, and the result then
    "simulate": [
        ({
            "capacity": (LISTED["capacity"], NEEDED), "policy": ("str | type", "'lru'"),
            "engine": ("Engine | None", "None"), "router": ("Router | None", "None"),
        }, "Simulation"), ({}, "Simulations"),
    ],
    "calibrate": [
        ({"log": (FILE, NEEDED), "from_": ("None", "None")}, "Calibration"),
        ({"log": ("None", "None"), "from_": ("Literal['aiconfigurator']", NEEDED)}, "KernelFit"),
    ],
    "curve": [
        ({"instances": ("int", NEEDED), "first_tier": ("int | str", NEEDED)}, "PoolCurve"),
        ({"instances": ("None", "None"), "first_tier": ("None", "None"), "router": ("None", "None")}, "HitCurve"),
    ],
    "analyze": [({"basic": ("Literal[True]", NEEDED)}, "Basics"), ({"basic": ("Literal[False]", "False")}, "Summary")],
    "models": [
        ({"name": (f"{FILE} | Mapping[str, Any]", NEEDED), "gpu": ("GpuName | Path | Gpu", NEEDED)}, "KvRoom"),
        ({"gpu": ("None", "None")}, "ModelList"),
    ],
    "synthesize": [
        (UNWRITTEN | {"check": ("Literal[False]", "False"), "save_model": ("None", "None")}, "Trace"),
        (WRITTEN, "Synthesized"),
        (UNWRITTEN | {"check": ("Literal[True]", NEEDED)}, "Synthesized"),
        (UNWRITTEN | {"check": ("Literal[False]", "False"), "save_model": (FILE, NEEDED)}, "Synthesized"),
    ],
    **{
        name: [(UNWRITTEN, "Trace"), (WRITTEN, RESULTS[name][1])]
        for name in ("anonymize", "convert", "release", "join")
    },
}  # fmt: skip


def text() -> str:
    """The text of the stub."""
    aliases = [f"{alias} = Literal[{', '.join(map(repr, names()))}]" for alias, names in TABLES.items()]
    imports = sorted({*RESULTS.values(), *IMPORTS})
    lines = [
        '"""Written by `make docs`: each command as a function, as editors and type checkers see it."""', "",
        "from collections.abc import Iterable, Mapping, Sequence", "from datetime import timedelta",
        "from pathlib import Path", "from typing import Any, Literal, overload", "", "import numpy as np", "",
        *(f"from ..{module} import {name}" for module, name in imports), "", *aliases, "",
    ]  # fmt: skip
    for name in functions.NAMES:
        command = commands.commands[name]
        if name not in OVERLOADS:
            lines.append(_signature(command, {}, TYPES.get(name) or RESULTS.get(name, ("", "Any"))[1]))
        for changes, result in OVERLOADS.get(name, []):  # a list in the text of `simulate` is an exception to its types
            ignored = "  # type: ignore[overload-overlap]" if result == "Simulation" else ""
            lines += ["@overload", _signature(command, changes, result).replace("(\n", f"({ignored}\n", 1)]
    return "\n".join(lines) + "\n"


def write() -> None:
    """Write the stub beside its module."""
    TARGET.write_text(text(), encoding="utf-8")


def _signature(command: click.Command, changes: dict[str, Any], result: str) -> str:
    rows: list[str] = []
    keywords = False
    options = dict(functions.parameters_of(command))
    for name, parameter in functions.signature_of(command).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not keywords:
            rows, keywords = [*rows, "*"], True
        kind, default = _type(command, name, options[name]), parameter.default
        shown = NEEDED if default is inspect.Parameter.empty else repr(default)
        if isinstance(default, str) and ("," in default or default.isdecimal()):
            shown = "..."  # several, as the command line writes them
        kind = f"{kind} | None" if default is None else kind
        kind, shown = changes.get(name, (kind, shown))
        rows.append(f"{name}: {kind}" if shown is NEEDED else f"{name}: {kind} = {shown}")
    return f"def {command.name}(\n    {', '.join(rows)},\n) -> {result}: ..."


def _type(command: click.Command, name: str, param: click.Parameter) -> str:
    """What a parameter takes."""
    kind, several = param.type, ",..." in (param.metavar or "") or param.metavar == "LIST"
    if getattr(param, "is_flag", False):
        return "bool"
    if isinstance(kind, click.Choice):
        return f"Literal[{', '.join(map(repr, kind.choices))}]"
    if isinstance(kind, AmountType):
        parse = getattr(kind.parse, "func", kind.parse)
        return AMOUNTS.get(parse.__name__, "float | str")
    if command.name == "texts" and name == "model":
        return "str"
    if name in functions.FILES_ALONE.get(str(command.name), ()) and name not in functions.FIRST_FILES:
        return "Trace | str | Path"
    one = OPEN.get(name) or (_name(kind) if isinstance(kind, Name) else FILE if isinstance(kind, FileName) else "str")
    if several and not isinstance(kind, Name) and name in LISTED:
        return f"{LISTED[name]} | Iterable[{LISTED[name]}]"  # of NumPy and pandas, too
    if name in functions.FIRST_FILES:
        one = "Trace | str | Path" if name in functions.FILES_ALONE.get(str(command.name), ()) else FILE
        return f"{one} | Sequence[{one}]"
    if getattr(param, "multiple", False) and name != "map":
        return f"{one} | Sequence[{one}]"
    many = several or (isinstance(kind, Name) and kind.many)
    return f"{one} | Sequence[{one}]" if many and not _takes_one(command, name) else one


def _takes_one(command: click.Command, name: str) -> bool:
    """Whether a command takes one of the names of which others take several."""
    param = next(param for word, param in functions.parameters_of(command) if word == name)
    return "..." not in (param.metavar or "") and param.metavar != "LIST" and name in ("policy", "engine", "router")


def _name(kind: Name) -> str:
    alias = next((alias for alias, names in TABLES.items() if names is kind.names), None)
    return alias or f"Literal[{', '.join(map(repr, dict.fromkeys(kind.names())))}]"
