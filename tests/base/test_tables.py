"""Tables on terminals of any width: columns that do not fit stand below, and none is cut."""

import io

import pytest
from rich.console import Console

from kvtrace._base.results import column
from kvtrace._base.tables import TextTable


def hits():
    table = TextTable("Hits of a prefix cache, engine reference", remedy="use --csv")
    table.add_columns(["policy", "capacity"], rank=0)
    table.add_column("hit blocks", right=True, rank=3)
    table.add_columns(["block hit rate", "gap to belady"], right=True)
    table.legend["gap to belady"] = "what the best possible eviction order would add"
    table.add_row("lru", "20,208", "101,978", "0.3535", "0.0129")
    return table


def printed(table, width):
    stream = io.StringIO()
    Console(file=stream, width=width, force_terminal=False).print(table)
    return stream.getvalue()


def test_a_wide_terminal_has_one_line_of_headings():
    lines = printed(hits(), 80).splitlines()
    assert lines[1].split("  ") == ["policy", "capacity", "hit blocks", "block hit rate", "gap to belady"]


def test_headings_take_two_lines_before_a_column_stands_below():
    lines = printed(hits(), 46).splitlines()
    assert (
        lines[2].split() == ["policy", "capacity", "blocks", "hit", "rate", "belady"] and "Not shown" not in lines[-1]
    )


def test_the_column_of_the_highest_rank_stands_below_beside_the_columns_that_name_the_rows():
    rows = [line.split() for line in printed(hits(), 36).splitlines() if line.startswith("lru")]
    assert rows == [["lru", "20,208", "0.3535", "0.0129"], ["lru", "20,208", "101,978"]]


def test_a_column_that_does_not_even_fit_alone_is_named_without_its_legend():
    text = printed(hits(), 20)
    assert "Not shown: hit blocks" in " ".join(text.split()) and "best possible" not in text
    assert "what the best possible" in printed(hits(), 46)


@pytest.mark.parametrize("width", range(16, 80))
def test_a_key_column_is_never_cut(width):
    rows = [line for line in printed(hits(), width).splitlines() if line.startswith("lru")]
    assert rows and all(row.split()[:2] == ["lru", "20,208"] and "…" not in row for row in rows)
    figures = {"101,978", "0.3535", "0.0129"}
    assert width < 26 or figures <= {word for row in rows for word in row.split()}


def test_at_the_width_of_a_table_nothing_wraps():
    table = hits()
    table.caption = "A long remark on the table. " * 5
    assert len(printed(table, table.width()).splitlines()) == 5


def advised():
    table = TextTable("What would help")
    table.add_columns(["change", "tokens"], rank=0)
    table.add_column("basis", rank=3)
    table.add_column("what to change", dim=True, rank=2)
    table.add_row("more blocks", "216,576", "simulated", "Add 7,302 blocks to the cache.")
    return table


@pytest.mark.parametrize("width", [30, 40, 60, 200])
def test_advice_is_never_what_a_narrow_terminal_leaves_out(width):
    text = " ".join(printed(advised(), width).split())
    assert "Add 7,302 blocks to the cache." in text and "what to change." not in text


def test_advice_that_does_not_fit_stands_below_its_row():
    lines = [line.rstrip() for line in printed(advised(), 38).splitlines()]
    assert lines[:3] == ["What would help", "change       tokens   basis", "more blocks  216,576  simulated"]
    assert lines[3:] == [
        "  more blocks: Add 7,302 blocks to the",
        "  cache.",
    ]


def test_a_quantile_says_of_what_it_is_where_it_stands_below():
    quantiles = column("TTFT p50", ".1f", unit=" s", parts={("p50",): "TTFT p50", ("p90",): "p90", ("p99",): "p99"})
    columns = {"policy": column("policy", rank=0), "ttft": quantiles}
    table = TextTable("Times").add_results(columns, [{"policy": "lru", "ttft": {"p50": 1, "p90": 2, "p99": 3}}])
    lines = [printed(table, width).splitlines() for width in (60, 20, 14)]
    assert lines[0][1].split() == ["policy", "TTFT", "p50", "p90", "p99"]
    assert [line.split() for line in lines[1][1:]] == [
        ["TTFT"], ["policy", "p50", "p90"], ["lru", "1.0", "s", "2.0", "s"],
        ["TTFT"], ["policy", "p99"], ["lru", "3.0", "s"],
    ]  # fmt: skip
    assert [line.split() for line in lines[2] if "p" in line and "policy" in line] == [
        ["policy", "p50"], ["policy", "p90"], ["policy", "p99"],
    ]  # fmt: skip
    assert sum("TTFT" in line for line in lines[2]) == 3
