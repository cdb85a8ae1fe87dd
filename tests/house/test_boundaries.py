"""Who may import whom, and what each file may do: each rule lists the files that break it."""

import ast
import importlib
import re
import subprocess
import sys

import pytest

import kvtrace
from kvtrace.cli.functions import NAMES
from tests.house.rooms import ALONE, ROOMS, Source, files_of_the_package, is_ours, room_of

FILES = files_of_the_package()
FEW = {
    name: file
    for name, file in FILES.items()
    if name.endswith("__init__") or name in ("cache/core/pool", "_native/maths")
}
SIDE_BY_SIDE = {
    ("cache", "ingest"),
    ("ingest", "serving"),
    ("synthesis", "privacy"),
    ("text", "analysis"),
    ("serving", "capture"),
    ("report", "capture"),
}
SEE_TEXT = {"ingest", "text", "capture"}  # the privacy wall: these three and the commands import what lies behind it
HEAVY = {"tokenizers", "fastokens", "pyarrow", "plotly", "ray", "torch", "transformers", "pandas", "polars",
         "huggingface_hub", "scipy", "opentelemetry", "google", "litellm", "aiohttp", "multidict",
         "yarl", "uvicorn", "uvloop", "brotli"}  # fmt: skip
COMPILED = ("_native", "cache/core", "cache/live", "cache/policies", "cache/structures", "serving/core")
FILE = re.compile(r"(?<![\w/.-])((?:\w+/)*)(\w+)\.py\b")  # as comments and docstrings name one
ELSEWHERE = {"block_pool", "single_type_kv_cache_manager", "radix_cache", "evict_policy",  # vLLM's, SGLang's
             "spend_tracking_utils", "ucm_connector", "auto_trace_analysis",  # of LiteLLM, UCM and LMCache
             "NAME", "mine", "x"}  # fmt: skip
RULES = {}


def rule(function):
    """A function that takes the files, and yields a sentence for each offence."""
    RULES[function.__name__] = function
    return function


@rule
def a_file_stands_in_a_room(files):
    for file in files.values():
        if file.name not in ALONE and (file.room not in ROOMS or file.name == file.room):
            yield f"{file.name} stands in no room"


@rule
def a_room_says_what_it_is_for(files):
    for room in ROOMS:
        if f"{room}/__init__" not in files or not ast.get_docstring(files[f"{room}/__init__"].tree):
            yield f"{room}/__init__ has no docstring"


@rule
def a_room_imports_from_the_rooms_below_it(files):
    for file in files.values():
        for other in {room_of(module) for module in file.modules(files)} & {*ROOMS} - {file.room}:
            if file.room in ROOMS and ROOMS.index(other) > ROOMS.index(file.room):
                yield f"{file.name} imports from {other}/, which stands above {file.room}/"
            if (other, file.room) in SIDE_BY_SIDE:
                yield f"{file.name} imports from {other}/, which stands beside {file.room}/"


@rule
def only_some_rooms_see_text(files):
    for file in files.values():
        behind = {module for module in file.imports if is_ours(module) and room_of(module) in SEE_TEXT}
        if behind and file.room not in SEE_TEXT | {"cli"} and file.name not in ALONE:
            yield f"{file.name} imports {sorted(behind)}, which see text"


@rule
def no_imports_run_in_a_circle(files):
    graph = {name: file.modules(files) - {name} for name, file in files.items()}
    while free := [name for name, needed in graph.items() if not needed & graph.keys()]:
        for name in free:
            del graph[name]
    for name, needed in graph.items():
        yield f"{name} and {sorted(needed & graph.keys())} import each other, or what does"


@rule
def a_file_that_is_named_exists(files):
    names = {name.split("/")[-1] for name in FILES} | ELSEWHERE
    for file in files.values():
        for folder, name in dict.fromkeys(FILE.findall(file.text)):
            here = {f"{folder}{name}", f"{file.name.rpartition('/')[0]}/{folder}{name}"}
            if not here & FILES.keys() and (name not in names if not folder else room_of(folder) in ROOMS):
                yield f"{file.name} names {folder}{name}.py, which does not exist"


@rule
def no_public_name_is_a_module_too(files):
    rows = ("cli/", "report/plots/", "_native/")  # a row's file has the row's name, a kernel's that of its caller
    for name in files:
        room, *inner = name.split("/")
        for taken in {*name.split("/")[-2:]} & (set(kvtrace.__all__) - {*ROOMS, *NAMES}):
            if not name.startswith(rows):
                yield f"{name} is a module, and kvtrace.{taken} another thing"
        if inner and room in ROOMS and inner[0] in getattr(importlib.import_module(f"kvtrace.{room}"), "__all__", ()):
            yield f"{name} is a module, and kvtrace.{room}.{inner[0]} another thing"


@rule
def the_trace_imports_numpy_and_nothing_else(files):
    for file in files.values():
        outside = {module.split(".")[0] for module in file.imports} - sys.stdlib_module_names - {"numpy", "kvtrace"}
        if file.room == "trace" and outside:
            yield f"{file.name} imports {sorted(outside)}"


@rule
def heavy_libraries_are_imported_where_they_are_needed(files):
    for file in files.values():
        if heavy := {module.split(".")[0] for module in file.imports_at_once} & HEAVY:
            yield f"{file.name} imports {sorted(heavy)} outside a function"


@rule
def only_the_command_line_prints_reads_argv_or_exits(files):
    for file in files.values():
        wrong = file.calls & {"print", "exit", "quit", "sys.exit", "click.echo"} | file.attributes & {"sys.argv"}
        if wrong and file.room not in {"cli", "__main__"}:
            yield f"{file.name} uses {sorted(wrong)}"


@rule
def only_some_folders_hold_compiled_code(files):
    for file in files.values():
        if "cython" in file.imports and file.name.rpartition("/")[0] not in COMPILED:
            yield f"{file.name} is compiled"


@rule
def a_policy_imports_its_base_class_and_the_shared_structures(files):
    allowed = ("kvtrace.cache.policies", "kvtrace.cache.structures", "kvtrace._base")
    for file in files.values():
        wrong = {module for module in file.imports if is_ours(module) and not module.startswith(allowed)}
        policy = file.name.startswith(("cache/policies/", "cache/structures/")) and not file.name.endswith("__init__")
        if wrong and policy:
            yield f"{file.name} imports {sorted(wrong)}"


@pytest.mark.parametrize("name", RULES)
def test_every_file_keeps_the_rule(name):
    assert [*RULES[name](FILES)] == []


@pytest.mark.parametrize(
    ("name", "file", "text", "offence"),
    [
        ("a_file_stands_in_a_room", "attic/x", "", "attic/x stands in no room"),
        ("a_file_stands_in_a_room", "cache", "", "cache stands in no room"),
        ("a_room_says_what_it_is_for", "cache/__init__", "import numpy", "cache/__init__ has no docstring"),
        ("a_room_imports_from_the_rooms_below_it", "trace/x", "def f():\n    from ..cache.core import pool",
         "trace/x imports from cache/, which stands above trace/"),
        ("a_room_imports_from_the_rooms_below_it", "serving/x", "from kvtrace.ingest import logs",
         "serving/x imports from ingest/, which stands beside serving/"),
        ("only_some_rooms_see_text", "cache/x", "from .. import text",
         "cache/x imports ['kvtrace.text'], which see text"),
        ("no_imports_run_in_a_circle", "trace/x", "from . import x", None),
        ("a_file_that_is_named_exists", "trace/y", "# see gone.py", "trace/y names gone.py, which does not exist"),
        ("a_file_that_is_named_exists", "trace/y", "# trace/no.py", "trace/y names trace/no.py, which does not exist"),
        ("a_file_that_is_named_exists", "trace/y", "# hits.py, cache/core/pool.py, vllm/v1/pool.py", None),
        ("no_public_name_is_a_module_too", "trace/read", "", "trace/read is a module, and kvtrace.read another thing"),
        ("no_public_name_is_a_module_too", "read/x", "", "read/x is a module, and kvtrace.read another thing"),
        ("no_public_name_is_a_module_too", "cli/read", "", None),
        ("the_trace_imports_numpy_and_nothing_else", "trace/x", "import orjson", "trace/x imports ['orjson']"),
        ("heavy_libraries_are_imported_where_they_are_needed", "formats/x", "class A:\n    import pandas.core",
         "formats/x imports ['pandas'] outside a function"),
        ("heavy_libraries_are_imported_where_they_are_needed", "formats/x", "def f():\n    import pandas", None),
        ("only_the_command_line_prints_reads_argv_or_exits", "trace/x", "print(1)", "trace/x uses ['print']"),
        ("only_the_command_line_prints_reads_argv_or_exits", "trace/x", "a = sys.argv", "trace/x uses ['sys.argv']"),
        ("only_the_command_line_prints_reads_argv_or_exits", "cli/x", "print(1)", None),
        ("only_some_folders_hold_compiled_code", "cache/x", "import cython", "cache/x is compiled"),
        ("a_policy_imports_its_base_class_and_the_shared_structures", "cache/policies/x",
         "from cython.cimports.kvtrace._native import maths",
         "cache/policies/x imports ['kvtrace._native', 'kvtrace._native.maths']"),
    ],
)  # fmt: skip
def test_a_file_that_breaks_the_rule_is_listed(name, file, text, offence):
    offences = [*RULES[name](FEW | {file: Source(file, text)})]
    assert offences == ([offence] if offence else [])


def test_files_of_a_circle_are_listed_and_what_imports_them():
    lines = {"a": "from . import b", "b": "from .c import f", "c": "import kvtrace.trace.a", "d": "from . import a"}
    files = {f"trace/{name}": Source(f"trace/{name}", line) for name, line in (lines | {"e": ""}).items()}
    listed = [sentence.split()[0] for sentence in RULES["no_imports_run_in_a_circle"](files)]
    assert listed == ["trace/a", "trace/b", "trace/c", "trace/d"]


def loaded_by(code):
    """Top-level modules that a fresh interpreter holds after running the code."""
    report = f"{code}\nimport sys; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    return set(done.stdout.split("\n")[-2].split())


def test_importing_kvtrace_loads_no_heavy_library():
    assert not loaded_by("import kvtrace; kvtrace.Trace; kvtrace.read") & (HEAVY | {"jinja2", "rich", "click"})


def test_help_does_not_even_load_numpy():
    code = "from kvtrace.cli import run; run(['--help'])"
    assert not loaded_by(code) & (HEAVY | {"numpy", "jinja2", "rich", "orjson"})
