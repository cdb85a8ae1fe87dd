"""The rooms of the package: who may import whom, and what each file may do. docs/design.md draws them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import kvtrace

PACKAGE = Path(kvtrace.__file__).parent
FILES = {path.relative_to(PACKAGE).with_suffix("").as_posix(): path for path in PACKAGE.rglob("*.py")}

# from the basement up: a room imports from rooms that stand before it, and from nowhere else
ROOMS = ("_base", "_native", "trace", "formats", "text", "analysis", "synthesis", "privacy", "cache", "ingest",
         "serving", "report", "capture", "cli")  # fmt: skip
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
ALONE = {"__init__", "__main__"}


def imports(path, *, inside_functions=True):
    """(absolute name) of each import in a file, kvtrace's own as `kvtrace.x.y`; those for types count, too."""
    here = ("kvtrace", *path.relative_to(PACKAGE).parent.parts)
    tree = ast.parse(path.read_text())
    deferred = {node for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for node in ast.walk(f)}
    for node in ast.walk(tree):
        if node in deferred and not inside_functions:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            module = ".".join((*base, *(node.module or "").split("."))).strip(".").removeprefix("cython.cimports.")
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def room_of(name):
    """The room of a file or of an imported name: `kvtrace.cache.core.pool` is of `cache`."""
    return name.removeprefix("kvtrace.").replace("/", ".").split(".")[0]


def modules_of(path):
    """The files of ours that a file imports: of `from . import x` the file x, where there is one."""
    names = [name.removeprefix("kvtrace.").replace(".", "/") for name in imports(path) if name.startswith("kvtrace.")]
    parents = {name.rpartition("/")[0] for name in names if name in FILES or f"{name}/__init__" in FILES}
    for name in names:
        if name in FILES:
            yield name
        elif f"{name}/__init__" in FILES and name not in parents:
            yield f"{name}/__init__"


def test_every_module_has_a_room_and_every_room_says_what_it_is_for():
    assert {name for name in FILES if "/" not in name} == ALONE
    assert {room_of(name) for name in FILES} - ALONE == set(ROOMS)
    for room in ROOMS:
        assert ast.get_docstring(ast.parse(FILES[f"{room}/__init__"].read_text())), room


@pytest.mark.parametrize("name", sorted(set(FILES) - ALONE))
def test_a_room_imports_from_the_rooms_below_it(name):
    room = room_of(name)
    for other in {room_of(module) for module in modules_of(FILES[name])} - {room, *ALONE}:
        assert ROOMS.index(other) < ROOMS.index(room), f"{name} imports from {other}/, which stands above {room}/"
        assert (other, room) not in SIDE_BY_SIDE, f"{name} imports from {other}/, which stands beside {room}/"


@pytest.mark.parametrize("name", sorted(set(FILES) - ALONE))
def test_the_privacy_wall(name):
    if room_of(name) not in SEE_TEXT | {"cli"}:
        behind = {module for module in imports(FILES[name]) if room_of(module) in SEE_TEXT}
        assert not {module for module in behind if module.startswith("kvtrace.")}


def test_no_imports_run_in_a_circle():
    graph = {name: set(modules_of(path)) - {name} for name, path in FILES.items()}
    while free := [name for name, needed in graph.items() if not needed & graph.keys()]:
        for name in free:
            del graph[name]
    circle = {name: needed & graph.keys() for name, needed in graph.items()}
    assert not circle, f"these import each other, or what does: {circle}"


def test_no_public_name_is_a_module_too():
    rows = ("cli/", "report/plots/", "_native/")  # a row's file has the row's name, a kernel's that of its caller
    names = [name for name in FILES if not name.startswith(rows)]
    modules = {Path(name).name for name in names} | {Path(name).parent.name for name in names}
    assert not modules & set(kvtrace.__all__)


def test_the_trace_imports_numpy_and_nothing_else():
    for name in (name for name in FILES if name.startswith("trace/")):
        outside = {module.split(".")[0] for module in imports(FILES[name])} - sys.stdlib_module_names
        assert outside <= {"numpy", "kvtrace"}, name


@pytest.mark.parametrize("name", sorted(FILES))
def test_heavy_libraries_are_imported_where_they_are_needed(name):
    assert not {module.split(".")[0] for module in imports(FILES[name], inside_functions=False)} & HEAVY


@pytest.mark.parametrize("name", sorted(name for name in FILES if room_of(name) not in {"cli", "__main__"}))
def test_only_the_command_line_prints_reads_argv_or_exits(name):
    tree = ast.parse(FILES[name].read_text())
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    named = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not called & {"print", "exit", "quit", "sys.exit", "click.echo"} and "sys.argv" not in named


COMPILED = ("_native", "cache/core", "cache/live", "cache/policies", "cache/structures", "serving/core")


@pytest.mark.parametrize("name", sorted(FILES))
def test_only_some_folders_hold_compiled_code(name):
    if "cython" in set(imports(FILES[name])):
        assert name.rpartition("/")[0] in COMPILED


@pytest.mark.parametrize("name", sorted(name for name in FILES if name.startswith(("cache/policies/", "cache/struct"))))
def test_a_policy_imports_its_base_class_and_the_shared_structures(name):
    if not name.endswith("__init__"):
        ours = {module for module in imports(FILES[name]) if module.startswith("kvtrace")}
        assert all(
            module.startswith(("kvtrace.cache.policies", "kvtrace.cache.structures", "kvtrace._base"))
            for module in ours
        )


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
