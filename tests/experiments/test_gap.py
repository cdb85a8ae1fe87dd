"""The experiment on the gap to the optimum: its traces, its bounds and its tables, on small inputs."""

import doctest

import pytest
from click.testing import CliRunner

import kvtrace
from experiments.gap import __main__ as gap
from experiments.gap import bounds, load, tuned
from kvtrace.trace.building import toy

LOOPS = toy(*["0 1", "2", "3", "0 1", "4", "0 1"] * 40, gap_ms=1000)


@pytest.mark.parametrize("module", [bounds, gap, load, tuned])
def test_its_examples_run(module):
    assert doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0


def test_an_oracle_of_dead_blocks_evicts_them_first():
    trace = toy("0", "1", "2", "0")  # 1 is never used again, and 0 is older
    hits = {one: kvtrace.simulate(trace, 2, one).hits.hit_blocks for one in ("lru", bounds.DeadBlocks)}
    assert hits == {"lru": 0, bounds.DeadBlocks: 1}


def test_no_bound_exceeds_the_optimum():
    half = len(LOOPS) // 2
    optimum = kvtrace.simulate(LOOPS, 3, "belady").hit_blocks[half:].sum()
    assert all(0 <= hits <= optimum for hits in bounds.bounds_of(LOOPS, 3).values())


def test_the_command_replaces_the_tables_of_the_pages(tmp_path):
    data, pages = tmp_path / "data", tmp_path / "docs"
    (data / "mooncake").mkdir(parents=True)
    pages.mkdir()
    kvtrace.write(LOOPS, data / load.CONVERSATIONS)
    (pages / "gap.md").write_text("<!-- orders -->\n<!-- end -->\n<!-- bounds -->\n<!-- end -->\n")
    (pages / "tune.md").write_text("<!-- conversation -->\n<!-- end -->\n")
    done = CliRunner().invoke(gap.main, [str(data), "--docs", str(pages)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "| conversation, 512 | 2 (40 %)" in (pages / "gap.md").read_text()
    assert "| `lru` | both |" in (pages / "tune.md").read_text()
