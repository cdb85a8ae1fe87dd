"""What `make demo` prints: a newcomer sees it first, and pastes its last lines."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kvtrace
from tests.docs import ROOT

# `kvtrace`, which leaves the names of the modules that it loaded in a file
COMMAND = """import atexit, sys

def write_loaded():
    with open("loaded.txt", "a") as file:
        file.writelines(f"{name}\\n" for name in sys.modules if name.startswith("kvtrace."))

atexit.register(write_loaded)
from kvtrace.cli import main
sys.argv[0] = "kvtrace"
sys.exit(main())
"""


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A folder in which the demo has run, the environment that it ran in, and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    shutil.copytree(ROOT / "examples", folder / "examples")
    command = folder / ".venv/bin/kvtrace"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!{sys.executable}\n{COMMAND}")
    command.chmod(0o755)
    environment = os.environ | {"PYTHONPATH": str(Path(kvtrace.__file__).parent.parent)}
    done = subprocess.run(
        ["sh", "examples/demo.sh", ".venv/bin/kvtrace"], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    (folder / "loaded.txt").rename(folder / "loaded-by-the-demo.txt")
    return folder, environment | {"PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"}, done.stdout


def test_the_demo_ends_with_a_valid_trace_and_its_hit_rates(demo):
    folder, _, printed = demo
    assert "demo-output/trace.jsonl: OK: all invariants hold." in printed
    assert "block hit rate" in printed
    assert len((folder / "demo-output/trace.jsonl").read_text().splitlines()) == 96


def test_the_demo_needs_no_more_than_what_is_compiled_first(demo):
    loaded = {*(demo[0] / "loaded-by-the-demo.txt").read_text().split()}
    package = ROOT / "src/kvtrace"
    compiled = {path.parent.relative_to(package).as_posix() for path in package.rglob("*.pxd")}
    first = re.search(r"KVTRACE_ONLY=(\w+) ", (ROOT / "Makefile").read_text())[1]
    assert {folder for folder in compiled if "kvtrace." + folder.replace("/", ".") in loaded} == {first}


def test_the_readme_names_make_demo_and_make_test_first_and_ci_runs_them(demo):
    install = (ROOT / "README.md").read_text().partition("\n## Install\n")[2].partition("\n## ")[0]
    first = re.search(r"^```\w*\n(.*?)^```", install, re.M | re.S)[1]
    commands = [line.partition("#")[0].strip() for line in first.splitlines()]
    assert commands[0].startswith("git clone ") and commands[1:] == ["make demo", "make test"]
    stated = re.search(r"`make demo` takes .*? the demo's last line, `(.*?)`", install.replace("\n", " "))[1]
    assert stated == demo[2].splitlines()[-1].strip()
    assert "`make test` takes " in install.replace("\n", " ")
    ci = (ROOT / ".ci/run").read_text().splitlines()
    check = re.search(r"^check:(.*?)(##|$)", (ROOT / "Makefile").read_text(), re.M)[1].split()
    assert "make demo" in ci and "exec make check" in ci and "test" in check


def test_the_next_steps_of_the_demo_run(demo):
    folder, environment, printed = demo
    steps = [line.strip() for line in printed.partition("\nNext,")[2].splitlines() if line.startswith("  ")]
    own = [step for step in steps if step.startswith(("kvtrace", "cat")) and "YOUR_LOG" not in step]
    assert len(own) == 4
    for step in own:
        if importlib.util.find_spec("plotly") or not step.startswith("kvtrace report"):
            done = subprocess.run(["sh", "-c", step], cwd=folder, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, f"{step}\n{done.stderr}"


def test_the_demos_own_lines_fit_80_columns():
    for line in (ROOT / "examples/demo.sh").read_text().partition("step '1")[2].splitlines():
        assert len(line) <= 88, line  # with `step '` and the quote
