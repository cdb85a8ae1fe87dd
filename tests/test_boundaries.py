"""Who may import whom: text stops at anonymize.py, trace.py needs NumPy only, and start-up stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import kvtrace

PACKAGE = Path(kvtrace.__file__).parent
FILES = {path.relative_to(PACKAGE).with_suffix("").as_posix(): path for path in PACKAGE.rglob("*.py")}

# they see content, or the key
TEXT_SIDE = {"logs", "tokenizers", "tokenizer_files", "preload", "agreement", "templates", "rendering", "messages",
             "blocks", "encode", "keys", "packing", "spool", "tally", "encode_parts"}  # fmt: skip
MAY_SEE_TEXT = {"anonymize", "anonymize_parts", "cli"} | TEXT_SIDE  # cli hands a user's choice of them to the pipeline
HEAVY = {"tokenizers", "fastokens", "pyarrow", "plotly", "ray", "torch", "transformers", "pandas", "polars",
         "huggingface_hub"}  # fmt: skip


def _for_types(tree):
    """The nodes under `if TYPE_CHECKING:`: never run."""
    blocks = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    return {node for block in blocks for node in ast.walk(block)}


def imports(path, *, inside_functions=True):
    """(absolute name) of each import in a file, kvtrace's own as `kvtrace.x.y`."""
    here = ("kvtrace", *path.relative_to(PACKAGE).parent.parts)
    tree = ast.parse(path.read_text())
    deferred = {node for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for node in ast.walk(f)}
    skipped = _for_types(tree)
    for node in ast.walk(tree):
        if node in skipped or (node in deferred and not inside_functions):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            module = ".".join((*base, *(node.module or "").split("."))).strip(".")
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def own(names):
    """The parts of kvtrace among imported names: `kvtrace.logs.times` is `logs`."""
    return {name.split(".")[1] for name in names if name.startswith("kvtrace.")}


@pytest.mark.parametrize("name", sorted(FILES))
def test_nothing_that_takes_a_trace_sees_text(name):
    if name.split("/")[0] not in MAY_SEE_TEXT | {"__init__"}:
        may = {"tokenizers"} if name.startswith("replay/") else set()  # ids to made-up text
        assert not own(imports(FILES[name])) & TEXT_SIDE - may


def test_the_trace_imports_numpy_and_nothing_else():
    outside = {name.split(".")[0] for name in imports(FILES["trace"])} - sys.stdlib_module_names
    assert outside == {"numpy", "kvtrace"}
    assert own(imports(FILES["trace"])) - {"InputError", "UsageError"} <= {"errors", "_kernels", "frames"}
    assert "frames" not in own(imports(FILES["trace"], inside_functions=False))


@pytest.mark.parametrize("name", sorted(FILES))
def test_heavy_libraries_are_imported_where_they_are_needed(name):
    assert not {module.split(".")[0] for module in imports(FILES[name], inside_functions=False)} & HEAVY


@pytest.mark.parametrize(
    "name", sorted(name for name in FILES if name.split("/")[0] not in {"cli", "datagen", "__main__"})
)
def test_only_the_command_line_prints_reads_argv_or_exits(name):
    tree = ast.parse(FILES[name].read_text())
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    named = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not called & {"print", "exit", "quit", "sys.exit", "click.echo"} and "sys.argv" not in named


COMPILED = ("_kernels/", "cache/core/", "cache/policies/", "cache/manager")


@pytest.mark.parametrize("name", sorted(FILES))
def test_what_is_compiled_is_kernels_policies_and_the_cache_core(name):
    is_compiled = FILES[name].with_suffix(".pxd").exists()
    assert is_compiled == (name.startswith(COMPILED) and not name.endswith("__init__"))
    assert is_compiled or "cython" not in set(imports(FILES[name]))


@pytest.mark.parametrize("name", sorted(name for name in FILES if name.startswith("cache/policies/")))
def test_a_policy_imports_its_base_and_the_orders_beside_it(name):
    if not name.endswith("__init__"):
        ours = {module.removeprefix("cython.cimports.") for module in imports(FILES[name]) if "kvtrace" in module}
        assert all(module.startswith(("kvtrace.cache.policies", "kvtrace.errors")) for module in ours)


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
