"""The report page in a real browser: it is silent, asks for nothing, and every plot has marks, light and dark."""

import numpy as np
import pytest

import kvtrace
from kvtrace.report.html_page import page
from kvtrace.report.validation_tables import page as validation_page
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace
from tests.docs import ROOT
from tests.report.browser import chromium

pytest.importorskip("plotly")
pytestmark = pytest.mark.skipif(chromium.executable() is None, reason="no Chromium on this machine")

MARKS = """Object.fromEntries([...document.querySelectorAll(".plot")].map((plot) => [plot.id, plot.querySelectorAll(
    ".scatterlayer .lines path, .scatterlayer .points path, .barlayer .point path, .heatmaplayer image").length]))"""
DRAWN = """new Promise((done) => {
    const look = () => document.documentElement.dataset.drawn ? done() : setTimeout(look, 50);
    look();
})"""
SAVED = """new Promise((done) => { URL.createObjectURL = (blob) => { blob.text().then(done); return "data:,"; };
    document.querySelector('[data-plot="policies-1"][data-save="csv"]').click(); })"""
OVERFLOW = "document.documentElement.scrollWidth - window.innerWidth"


def conversations(sessions=40, turns=5, seed=7):
    """Sessions whose prompts grow by a few blocks each turn, all with one first block."""
    rng, rows, fresh = np.random.default_rng(seed), [], 1
    for session in range(sessions):
        start, prompt = rng.uniform(0, 600_000), [0]
        for turn in range(turns):
            added = int(rng.integers(1, 6))
            prompt = prompt + list(range(fresh, fresh + added))
            fresh += added
            rows.append((start + turn * 20_000, session, prompt))
    rows.sort(key=lambda row: row[0])
    ids = [prompt for _, _, prompt in rows]
    blocks = np.array([len(prompt) for prompt in ids])
    columns = Columns(
        [time for time, _, _ in rows], blocks * 16, rng.integers(1, 400, len(rows)),
        np.concatenate(ids), np.concatenate([[0], np.cumsum(blocks)]), session=[session for _, session, _ in rows],
    )  # fmt: skip
    return Trace.from_columns(columns, block_size=16)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium.tab(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture
def tab(browser):
    browser.events.clear()
    browser.resize(1320, 1000)
    browser.prefer("light")
    return browser


@pytest.fixture(scope="module")
def planned():
    """A page with a plan, whose target adds a fourth quantile, and whose times are nearly equal."""
    trace = conversations()
    plan = kvtrace.plan(trace, "llama-3.1-8b", gpu="h100", quantile=0.95, router="round-robin,kv-aware")
    return page(trace, kv_bytes_per_token=131_072, plan=plan)


def show(tab, folder, html):
    path = folder / "report.html"
    path.write_text(html, encoding="utf-8")
    tab.open(path)
    tab.evaluate(DRAWN)
    return path


def test_the_page_is_silent_asks_for_nothing_and_draws_every_plot(tab, tmp_path):
    path = show(tab, tmp_path, page(conversations(), conversations(seed=8), names=("a", "b"), kv_bytes_per_token=70272))
    marks = tab.evaluate(MARKS)
    assert len(marks) == 9 + 29 and min(marks.values()) > 0, marks
    assert tab.complaints() == []
    assert [url for url in tab.requests() if not url.startswith("data:")] == [path.as_uri()]


def test_it_is_as_dark_as_the_reader_likes_and_the_switch_turns_it(tab, tmp_path):
    tab.prefer("dark")
    show(tab, tmp_path, page(conversations()))
    colour = "getComputedStyle(document.querySelector('.plot .main-svg')).backgroundColor"
    theme = "document.documentElement.dataset.theme"
    assert (tab.evaluate(theme), tab.evaluate(colour)) == ("dark", "rgb(26, 32, 40)")
    tab.evaluate("document.getElementById('theme').click()")
    assert (tab.evaluate(theme), tab.evaluate(colour)) == ("light", "rgb(255, 255, 255)")
    assert min(tab.evaluate(MARKS).values()) > 0
    assert tab.complaints() == []


@pytest.mark.parametrize("width", [390, 900, 1600])
def test_nothing_sticks_out_of_the_window(tab, tmp_path, width):
    tab.resize(width, 900)
    show(tab, tmp_path, page(conversations(), title="x" * 300))
    assert tab.evaluate(OVERFLOW) <= 0


TITLES_OUT = """[...document.querySelectorAll(".xtitle, .ytitle")].filter((title) => {
    const inner = title.getBoundingClientRect(), outer = title.closest(".plot").getBoundingClientRect();
    return inner.left < outer.left || inner.right > outer.right || inner.top < outer.top || inner.bottom > outer.bottom;
}).map((title) => title.textContent)"""


@pytest.mark.parametrize("width", [390, 1280])
def test_titles_of_axes_are_whole(tab, tmp_path, width):
    tab.resize(width, 900)
    show(tab, tmp_path, page(conversations(), kv_bytes_per_token=131_072))
    assert tab.evaluate(TITLES_OUT) == []


def test_the_navigation_shows_that_it_goes_on(tab, tmp_path):
    tab.resize(900, 900)
    show(tab, tmp_path, page(conversations()))
    hint = "getComputedStyle(document.querySelector('nav'), '::after').visibility"
    assert tab.evaluate(hint) == "visible"
    tab.evaluate("""new Promise((done) => { const nav = document.querySelector("nav");
        nav.scrollLeft = nav.scrollWidth; setTimeout(done, 300); })""")
    assert tab.evaluate(hint) == "hidden"


LEGENDS_CUT = """[...document.querySelectorAll(".plot")].filter((plot) => {
    const bar = plot.querySelector(".legend .scrollbar"), box = plot.querySelector(".legend .bg");
    const right = box && box.getBoundingClientRect().right + 1;
    return bar && (bar.getAttribute("height") > 0 || [...plot.querySelectorAll(".legendtext")].some((text) =>
        text.getBoundingClientRect().right > right));
}).map((plot) => plot.id)"""
LINES_OUT = """[...document.querySelectorAll(".plot")].filter((plot) => {
    const axes = plot._fullLayout._size, top = plot.getBoundingClientRect().top + axes.t;
    return [...plot.querySelectorAll(".scatterlayer .lines path")].some((line) => {
        const seen = line.getBoundingClientRect();
        return seen.top < top - 3 || seen.bottom > top + axes.h + 3;
    });
}).map((plot) => plot.id)"""
TICKS = """Object.fromEntries([...document.querySelectorAll(".plot")].map((plot) => [plot.id,
    ["x", "y"].map((axis) => plot.querySelectorAll(`.${axis}tick text`).length)]))"""
TICKS_TOUCH = """[...document.querySelectorAll(".plot")].filter((plot) => {
    const boxes = [...plot.querySelectorAll(".xtick text")].map((tick) => tick.getBoundingClientRect());
    boxes.sort((a, b) => a.left - b.left);
    return boxes.some((box, i) => i && box.left < boxes[i - 1].right);
}).map((plot) => plot.id)"""


@pytest.mark.parametrize("width", [390, 1280])
def test_lines_lie_inside_axes_that_have_ticks_and_legends_are_whole(tab, tmp_path, planned, width):
    tab.resize(width, 900)
    show(tab, tmp_path, planned)
    assert tab.evaluate(LINES_OUT) == []
    assert tab.evaluate(LEGENDS_CUT) == []
    assert tab.evaluate(TICKS_TOUCH) == []
    assert min(min(counts) for counts in tab.evaluate(TICKS).values()) >= 2
    assert tab.complaints() == []


def test_four_plots_of_a_section_stand_beside_each_other(tab, tmp_path, planned):
    tab.resize(1280, 900)
    show(tab, tmp_path, planned)
    boxes = "[...document.querySelectorAll('#plan-instances figure')].map((box) => box.getBoundingClientRect())"
    lefts = f"{boxes}.map((box) => Math.round(box.left))"
    assert len(tab.evaluate(lefts)) == 4 and len(set(tab.evaluate(lefts))) == 2


def test_a_narrow_window_has_whole_titles_of_tables_and_notes_as_wide_as_the_page(tab, tmp_path, planned):
    tab.resize(390, 900)
    show(tab, tmp_path, planned)
    cut = "[...document.querySelectorAll('h3')].filter((title) => title.scrollWidth > title.clientWidth).length"
    assert tab.evaluate(cut) == 0
    notes = "[...document.querySelectorAll('td.wraps:last-child:not(:empty)')]"
    assert min(tab.evaluate(f"{notes}.map((note) => note.getBoundingClientRect().width)")) > 280


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(tab, tmp_path, planned, scheme):
    tab.prefer(scheme)
    show(tab, tmp_path, planned)
    assert tab.evaluate(CONTRAST) >= 4.5


CONTRAST = """(() => {
    const light = (text) => text.match(/[0-9.]+/g).slice(0, 3).map((part) => part / 255)
        .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
        .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
    const ground = (node) => { for (; node; node = node.parentElement) {
        const colour = getComputedStyle(node).backgroundColor;
        if (!/, 0\\)$/.test(colour)) return colour;
    } };
    const opacity = (node) => node ? Number(getComputedStyle(node).opacity) * opacity(node.parentElement) : 1;
    const names = "h1, h2, h3, p, dt, dd, li, td, th, figcaption span, button, nav a, .plot text";
    const texts = document.querySelectorAll(names);
    return Math.min(...[...texts].filter((node) => node.textContent.trim() && !node.hidden).map((node) => {
        const style = getComputedStyle(node), plot = node.closest(".plot");
        const a = light(plot ? style.fill : style.color);
        const b = light(ground(plot ? plot.closest("figure") : node));
        return opacity(node) * (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    }));
})()"""


def test_names_are_text_and_never_markup(tab, tmp_path):
    evil = "</script><img src=x onerror=window.caught=1>"
    show(tab, tmp_path, page(conversations(), conversations(), names=(evil, "<b>b</b>")))
    assert tab.evaluate("window.caught === undefined && document.querySelectorAll('img').length") == 0
    assert tab.evaluate("document.querySelector('h1').textContent").startswith(evil)
    assert evil in tab.evaluate("[...document.querySelectorAll('.legendtext')].map((text) => text.textContent)")
    assert tab.complaints() == []


def test_a_request_would_be_refused_and_noticed(tab, tmp_path):
    html = page(conversations()).replace("<main>", '<main><img src="https://example.org/a.png">')
    show(tab, tmp_path, html)
    assert tab.complaints()


def test_the_csv_of_a_plot_has_its_values_with_names_and_units(tab, tmp_path):
    show(tab, tmp_path, page(conversations(), policies=("lru",)))
    lines = tab.evaluate(SAVED).splitlines()
    assert lines[0] == "series,capacity (blocks),block hit rate"
    assert {line.split(",")[0] for line in lines[1:]} == {"lru", "belady"}


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_a_plot_becomes_a_picture_without_network(tab, tmp_path, kind):
    path = show(tab, tmp_path, page(conversations(), policies=("lru",)))
    start = tab.evaluate(f"Plotly.toImage('policies-1', {{format: '{kind}', width: 400, height: 300}})")
    assert start.startswith("data:image/svg+xml" if kind == "svg" else "data:image/png;base64,")
    assert tab.complaints() == []
    assert {url for url in tab.requests() if not url.startswith(("data:", "blob:"))} == {path.as_uri()}


def test_paper_is_light_and_as_wide_as_three_plots(tab, tmp_path):
    tab.prefer("dark")
    show(tab, tmp_path, page(conversations()))
    tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert tab.evaluate("document.documentElement.dataset.theme") == "light"
    assert tab.evaluate("document.querySelector('#requests-1 .main-svg').clientWidth") == 310
    assert tab.evaluate(LEGENDS_CUT) == []
    tab.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
    assert tab.complaints() == []


def test_the_pointer_shows_large_numbers_as_people_write_them(tab, tmp_path):
    show(tab, tmp_path, page(conversations()))
    tab.evaluate("Plotly.Fx.hover('sessions-2', [{curveNumber: 0, pointNumber: 4}])")
    text = tab.evaluate("document.querySelector('#sessions-2 .hoverlayer').textContent")
    assert text.startswith("turn: 5mean prompt: ") and text.endswith(" tokens") and "e+" not in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_of_a_validation_is_silent_fits_and_draws_every_plot(tab, tmp_path, scheme, width):
    recording = kvtrace.serving.read_recording(ROOT / "examples/recording")
    tab.resize(width, 1000)
    tab.prefer(scheme)
    path = show(
        tab,
        tmp_path,
        validation_page(kvtrace.serving.validate(recording, kvtrace.serving.StepCost(6e-5, overhead_s=0.01))),
    )
    marks = tab.evaluate(MARKS)
    assert len(marks) == 12 and min(marks.values()) > 0, marks
    assert tab.evaluate(OVERFLOW) <= 0 and tab.evaluate("document.documentElement.dataset.theme") == scheme
    assert tab.complaints() == []
    assert [url for url in tab.requests() if not url.startswith("data:")] == [path.as_uri()]
