"""Tables on terminals of any width: fewer columns, never cut ones; a pipe gets everything."""

import io

import pytest
from rich.console import Console

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


def test_headings_take_two_lines_before_a_column_is_left_out():
    lines = printed(hits(), 46).splitlines()
    assert (
        lines[2].split() == ["policy", "capacity", "blocks", "hit", "rate", "belady"] and "Not shown" not in lines[-1]
    )


def test_the_column_of_the_highest_rank_is_left_out_first_and_named():
    text = printed(hits(), 36)
    assert "101,978" not in text and "0.3535" in text
    assert "Not shown: hit blocks. To see all" in text.replace("\n", " ")


def test_a_legend_explains_only_the_columns_that_are_shown():
    assert "what the best possible" in printed(hits(), 46) and "best possible" not in printed(hits(), 26)


@pytest.mark.parametrize("width", range(16, 80))
def test_a_key_column_is_never_cut(width):
    (row,) = [line for line in printed(hits(), width).splitlines() if line.startswith("lru")]
    assert row.split()[:2] == ["lru", "20,208"] and "…" not in row


def test_at_the_width_of_a_table_nothing_wraps():
    table = hits()
    table.caption = "A long remark on the table. " * 5
    assert len(printed(table, table.width()).splitlines()) == 5
