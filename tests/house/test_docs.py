"""The examples in docstrings, README and docs run, and print what they say."""

import doctest
import importlib
import pkgutil
import re

import pytest

from tests import docs, shell, tutorials
from tests.house.rooms import ROOMS
from tests.serving.quick_fits import quick_fits
from tools.docs_site import files

MOST_PAGES, MOST_WORDS = 45, 60_000  # of docs; a new page replaces an old one
CODE = re.compile(r"^```.*?^```$", re.M | re.S)
SOME = [page for page in docs.PAGES if page not in tutorials.PAGES and docs.has_code(page)]


@pytest.mark.parametrize("room", ROOMS)
def test_docstring_examples_run(room):
    package = importlib.import_module(f"kvtrace.{room}")
    names = [module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    modules = map(importlib.import_module, [package.__name__, *names])
    results = {module.__name__: doctest.testmod(module, optionflags=flags) for module in modules}
    assert [name for name, result in results.items() if result.failed] == []
    assert sum(result.attempted for result in results.values())


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder as a reader of the docs has it: the project's examples, and kvtrace on the path."""
    for name, value in tutorials.make_workplace(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", SOME, ids=lambda page: page.name)
def test_every_command_and_python_block_runs(page, workplace):
    for command in filter(docs.is_ours, docs.commands(page)):
        with quick_fits():
            status, printed = shell.called(command)
        assert status == 0, f"{command}\n{printed}"
    for line, code in docs.blocks(page, "python"):
        if ">>>" in code:
            test = doctest.DocTestParser().get_doctest(code, {}, page.name, str(page), line)
            assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0
        else:
            exec(compile(code, f"{page.name}:{line}", "exec"), {})


@pytest.mark.parametrize("page", tutorials.PAGES, ids=lambda page: page.name)
def test_every_command_of_a_tutorial_runs_and_prints_what_the_page_shows(page, tmp_path):
    text = page.read_text(encoding="utf-8")
    is_public = tutorials.put_trace(text, tmp_path)
    shown = tutorials.with_outputs(text, tmp_path)
    assert shown == text or not is_public, "run `make docs`"


def test_links_between_pages_lead_somewhere():
    links = [
        (page, *target.partition("#")[::2])
        for page in docs.PAGES
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", CODE.sub("", page.read_text(encoding="utf-8")))
    ]
    assert [(page.name, path) for page, path, _ in links if not (page.parent / path).exists()] == []
    targets = [(page.parent / path if path else page, anchor) for page, path, anchor in links if anchor]
    assert [(page.name, anchor) for page, anchor in targets if anchor not in anchors(page)] == []
    assert links and targets


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them; a second heading of the same words gets none here."""
    headings = re.findall(r"^#+ (.*)$", CODE.sub("", page.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_docs_stay_within_what_a_reader_takes():
    pages = (docs.ROOT / "docs").rglob("*.md")
    words = {page: len(files.without_files(page.read_text(encoding="utf-8")).split()) for page in pages}
    longest = sorted(words, key=words.get, reverse=True)[:10]
    shown = ", ".join(f"{page.relative_to(docs.ROOT)} {words[page]:,}" for page in longest)
    fits = len(words) <= MOST_PAGES and sum(words.values()) <= MOST_WORDS
    assert fits, f"{len(words)} pages, {sum(words.values()):,} words: shorten or replace a page. The longest: {shown}"


def test_the_design_says_in_one_line_what_each_file_is():
    text = files.PAGE.read_text(encoding="utf-8")
    assert files.with_files(text) == text, "run `make docs`"
    lines = files.listed().splitlines()
    assert [line for line in lines if line.startswith("* ") and not 3 < len(line.split()) < 30] == []


def test_each_door_of_the_first_page_leads_to_commands_with_their_outputs():
    """Click a door's link: the page has the commands. No page between them."""
    text = (docs.ROOT / "docs/index.md").read_text(encoding="utf-8")
    doors = dict(re.findall(r"^## (I [^\n]*)\n(.*?)(?=^## )", text, re.M | re.S))
    assert [*doors] == ["I run a service", "I have a trace", "I build an engine"]
    targets = [target for door in doors.values() for target in re.findall(r"^\| .*\]\(([^)#]+).*\) \|$", door, re.M)]
    assert len(targets) > 8 and {docs.ROOT / "docs" / target for target in targets} <= {*tutorials.PAGES}
