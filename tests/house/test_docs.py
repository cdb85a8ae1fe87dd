"""The examples in docstrings, README and docs run, and print what they say."""

import doctest
import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kvtrace
from tests import docs

MODULES = sorted(
    module.name for module in pkgutil.walk_packages(kvtrace.__path__, "kvtrace.") if module.name != "kvtrace.__main__"
)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name):
    module = importlib.import_module(name)
    results = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert results.failed == 0


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder as a reader of the docs has it: the project's examples, and kvtrace on the path."""
    shutil.copytree(docs.ROOT / "examples", tmp_path / "examples")
    shutil.copytree(docs.ROOT / "tests/data", tmp_path / "tests/data")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, call in (
        ("kvtrace", "kvtrace.cli import main; main()"),
        ("datagen", "kvtrace.cli.datagen import main; main()"),
    ):
        script = bin_folder / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "from {call}" "$@"\n')
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(kvtrace.__file__).parent.parent))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", docs.PAGES, ids=lambda page: page.name)
def test_every_command_and_python_block_runs(page, workplace):
    for command in filter(docs.is_ours, docs.commands(page)):
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
    for line, code in docs.blocks(page, "python"):
        if ">>>" in code:
            test = doctest.DocTestParser().get_doctest(code, {}, page.name, str(page), line)
            assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0
        else:
            exec(compile(code, f"{page.name}:{line}", "exec"), {})


def test_help_texts_are_as_the_commands_print_them():
    page = docs.ROOT / "docs/cli/cli.md"
    text = page.read_text(encoding="utf-8")
    assert docs.with_help(text) == text, "run `make docs`"


@pytest.mark.parametrize("page", docs.PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
