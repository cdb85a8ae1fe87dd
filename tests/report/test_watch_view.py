"""What kvtrace watch shows of a snapshot: every figure is there, nothing is cut, and the sentences follow from it."""

import re

import pytest
from rich.console import Console, Group

from kvtrace.report.watch_view import LiveView, RequestRates, advice, line, screen
from tests.capture.snapshots import COUNTS, snapshot


def shown(width, values=None, counts=COUNTS, pace=None):
    """The lines of the screen."""
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        rates = pace or RequestRates()
        console.print(Group(*screen(values or snapshot(), counts, ["otlp", "follow"], rates, width=width)))
    return [text.rstrip() for text in captured.get().splitlines()]


def cells(lines, name):
    """The cells of the row of that name."""
    return next(re.split(r"\s{2,}", text.strip()) for text in lines if text.startswith(name))


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_terminal_shows_every_column_and_nothing_is_cut(width):
    lines = shown(width)
    assert max(map(len, lines)) <= width and not [text for text in lines if "…" in text or "Not shown" in text]
    assert cells(lines, "2x") == ["2x", "2,000", "3.9", "45.0 %", cells(lines, "2x")[4], "44.0 %", "47.0 %"]
    assert cells(lines, "possible")[1] == "55.0 %" and cells(lines, "delivered")[1] == "25.0 %"
    assert cells(lines, "evicted")[1:3] == ["24,000", "37.5 %"]


def test_large_figures_leave_out_the_bars_only():
    values = snapshot()
    for point in values["window"]["curve"]:
        point["capacity_blocks"], point["capacity_gib"] = 10**12, 1e9
    lines = shown(80, values)
    assert max(map(len, lines)) <= 80 and not any("Not shown" in text for text in lines)
    assert cells(lines, "2x")[2:] == ["1,000,000,000.0", "45.0 %", "44.0 %", "47.0 %"]
    assert "1,000,000,000,000" in cells(lines, "2x")


def test_a_bar_is_as_long_as_its_rate():
    rows = {name: cells(shown(120), name) for name in ("0.5x", "4x")}
    lengths = {name: sum(1 for one in row[4] if one == "█") for name, row in rows.items()}
    assert lengths == {"0.5x": 7, "4x": 14}  # 25 % and 50 % of 28 columns


def test_without_a_model_without_a_capacity_and_without_cached_tokens():
    lines = shown(80, snapshot(model=False, capacity=False, delivered=False))
    text = "\n".join(lines)
    assert "GiB" not in text and "delivered" not in text and "evicted" not in text and "today's" not in text
    assert "by shares of the working set" in text


def test_before_any_hit_is_known():
    text = "\n".join(shown(80, snapshot(known=False, delivered=False), counts={}))
    assert (
        "not known yet" not in text.partition("Working set")[0]
        and cells(shown(80, snapshot(known=False)), "possible")[1] == "-"
    )


def test_the_sentences_name_what_to_buy():
    assert list(advice(snapshot())) == [
        "Working set: 5,000 blocks (9.8 GiB).",
        "90 % of the possible token hits need 3,000 blocks (5.9 GiB), 3 times today's capacity.",
        "Twice today's capacity would add 10.0 points to the token hit rate.",
        "Capacities up to 90 blocks are exact; larger ones are estimated from 1 % of the blocks.",
    ]


def test_the_pace_is_that_between_two_snapshots_and_an_equal_one_keeps_it():
    pace, later = RequestRates(), snapshot()
    later["now_s"] += 5
    later["since_start"]["requests"] += 61
    later["since_start"]["prompt_tokens"] += 226_000
    for values in (snapshot(), later, later):
        pace.update(values)
    assert (pace.requests, pace.tokens) == (12.2, 45_200)
    assert (
        shown(80, later, pace=pace)[1] == "12.2 requests/s, 45.2k tokens/s, 8 dropped, 5 rejected, 2 malformed, 3 lost"
    )


def test_the_pace_begins_anew_with_the_gauge():
    pace, again = RequestRates(), snapshot(started_s=7201.0)
    again["now_s"] += 5
    again["since_start"]["requests"] = 1.0
    for values in (snapshot(), again):
        pace.update(values)
    assert pace.requests is None


def test_a_line_for_a_log():
    assert line(snapshot(), COUNTS, RequestRates(), "12:00:05") == (
        "12:00:05 400 requests in 1 h; 8 dropped, 5 rejected, 2 malformed, 3 lost; token hit rate: 0.5x 25.0 %, "
        "1x 35.0 %, 2x 45.0 %, 4x 50.0 %, possible 55.0 %, delivered 25.0 %; working set 5,000 blocks (9.8 GiB); "
        "90 % of possible: 3,000 blocks (5.9 GiB)"
    )


def live(height):
    """What the live view writes for two snapshots."""
    console = Console(width=80, height=height, force_terminal=True, color_system=None)
    with console.capture() as captured, LiveView(console, ["otlp"]) as view:
        view.update(snapshot(), COUNTS)
        view.update(snapshot(), COUNTS | {"dropped": 9})
    return captured.get()


def test_the_live_view_replaces_what_it_showed():
    text = live(40)
    assert "8 dropped" in text and "9 dropped" in text and "\x1b[1A" in text  # the cursor goes up


def test_the_live_view_fits_a_terminal_of_24_lines():
    assert "larger ones are estimated" in live(24) and "..." not in live(24)


def test_the_screen_ends_with_the_reasons_of_rejected_requests():
    assert shown(100)[-1] == "5 rejected: a field path of a log: is not text"
