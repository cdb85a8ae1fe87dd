"""The docs site: its generated pages have every command, option and public name; the built site fetches nothing."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import kvtrace
from tests.docs import ROOT
from tests.report.browser import chromium
from tools.docs_site import api, commands, llms

ALL = commands.all_commands()
WRITTEN = [page for page in (ROOT / "docs").rglob("*.md")]


def test_every_public_name_is_on_one_page_of_the_api():
    pages = "\n".join(map(api.page, api.ROOMS))
    listed = re.findall(r"^::: (\S+)\n    options:\n      heading: kvtrace\.(\S+)$", pages, re.M)
    rooms = [room for room in api.ROOMS if room != "_base"]
    names = [f"{room}.{name}" for room in rooms for name in importlib.import_module(f"kvtrace.{room}").__all__]
    errors = [name for name in kvtrace.__all__ if name.endswith("Error")]
    assert sorted(name for _, name in listed) == sorted({*names, *errors} - {"capture.LiteLLMCallback"})
    assert [path for path, name in listed if path.rpartition(".")[2] != name.rpartition(".")[2]] == []


def test_every_room_with_public_names_has_a_page():
    assert {one.room for one in api.public_names()} == {*api.ROOMS}


def test_a_page_of_a_command_has_each_of_its_options_once():
    for name, command in ALL.items():
        terms = re.findall(r"^`(.*?)` \{: #", commands.page(name, command), re.M)
        params = command.get_params(commands.context_of(name, command))
        expected = [param for param in params if isinstance(param, click.Option) and not param.hidden]
        times = {
            max(param.opts, key=len): sum(max(param.opts, key=len) in re.findall(r"--?[\w-]+", term) for term in terms)
            for param in expected
        }
        assert {option: count for option, count in times.items() if count != 1} == {}, name
        assert len(terms) >= len(expected) > 0, name


def test_every_command_has_a_page_of_explanations():
    assert {*commands.PAGES} == {*ALL}


def test_the_reference_lists_every_command_with_its_function():
    text = commands.LIST_PAGE.read_text(encoding="utf-8")
    assert commands.with_list(text) == text, "run `make docs`"
    rows = re.findall(r"^\| \[`(\w+)`\]\(\S+\) \| (?:`(\w+)\(.*\)`|-) \| ", commands.listed(), re.M)
    assert {f"kvtrace {name}" for name, _ in rows} == {name for name in ALL if name.startswith("kvtrace ")}
    assert [name for name, function in rows if not function] == ["completion"]
    assert all(hasattr(kvtrace, function) and function == name for name, function in rows if function)


def test_the_page_of_a_command_has_examples_of_it():
    examples = {name: commands.examples_of(name, command) for name, command in ALL.items()}
    assert [name for name, some in examples.items() if not some or not all(name in one for one in some)] == []


def test_the_navigation_names_each_written_page_once():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = re.findall(r"([\w/-]+\.md)$", text[text.index("\nnav:") : text.index("\ntheme:")], re.M)
    assert sorted(named) == sorted(page.relative_to(ROOT / "docs").as_posix() for page in WRITTEN)


def test_llms_txt_has_every_command_and_page_once():
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    assert text == llms.text(llms.of_files), "run `make docs`"
    pages = re.findall(r"^- \[.+\]\((\S+)\): \S.*[^:]$", text, re.M)
    assert sorted(pages) == sorted(page.relative_to(ROOT).as_posix() for page in WRITTEN)
    assert [
        f"kvtrace {name}" for name in re.findall(r"^- `kvtrace (\w+)`(?:, `kvtrace\.\w+\(.*\)`)?: ", text, re.M)
    ] == [name for name in ALL if name.startswith("kvtrace ")]
    sections = re.findall(r"^## (.+)$", text, re.M)
    assert text.startswith("# kvtrace\n\n> ") and "```" not in text and len(sections) == len({*sections})


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; any warning of the builder is an error."""
    pytest.importorskip("material", reason="the site's packages are not installed")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)],
        cwd=ROOT, env={"PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.xdist_group("site")
def test_the_site_has_every_page_and_names_no_script_of_another_host(site):
    assert all((site / commands.path_of(name)).with_suffix(".html").exists() for name in ALL)
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert re.findall(r'(?:<script[^>]* src|<link[^>]* rel="stylesheet"[^>]* href)="https?:[^"]*"', text) == [], (
            page
        )


@pytest.mark.xdist_group("site")
def test_programs_find_each_written_page_in_llms_txt(site):
    text = (site / "llms.txt").read_text(encoding="utf-8")
    named = re.findall(r"^- \[.+\]\((\S+)\.html\): \S", text, re.M)
    assert sorted(named) == sorted(page.relative_to(ROOT / "docs").with_suffix("").as_posix() for page in WRITTEN)


@pytest.mark.xdist_group("site")
@pytest.mark.skipif(not chromium.executable(), reason="no Chromium")
def test_pages_load_without_the_network_search_and_fit_a_telephone(site, tmp_path):
    search = """(async () => {
        document.querySelector('label[for=__search]').click();
        const query = document.querySelector('[data-md-component=search-query]');
        query.focus(); query.value = 'k-sharing'; query.dispatchEvent(new Event('keyup'));
        for (let tries = 0; tries < 100; tries++) {
            await new Promise((done) => setTimeout(done, 100));
            if (document.querySelectorAll('.md-search-result__item').length) break;
        }
        return document.querySelectorAll('.md-search-result__item').length;
    })()"""
    with chromium.tab(tmp_path, 390, 844) as tab:
        for name in ("index", "tutorials/size-a-cache", "reference/commands/kvtrace-simulate", "reference/api/caches"):
            tab.events.clear()
            tab.open(Path(site, f"{name}.html"))
            assert tab.evaluate("document.documentElement.scrollWidth") == 390, name
            assert [url for url in tab.requests() if not url.startswith(("file:", "data:", "blob:"))] == []
            assert tab.complaints() == []
        assert tab.evaluate(search) > 3
