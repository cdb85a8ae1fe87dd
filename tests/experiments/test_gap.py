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
    hits = {one: kvtrace.cache.simulate(trace, 2, one).hits.hit_blocks for one in ("lru", bounds.DeadBlocks)}
    assert hits == {"lru": 0, bounds.DeadBlocks: 1}


def test_no_bound_exceeds_the_optimum():
    half = len(LOOPS) // 2
    optimum = kvtrace.cache.simulate(LOOPS, 3, "belady").hit_blocks[half:].sum()
    assert all(0 <= hits <= optimum for hits in bounds.bounds_of(LOOPS, 3).values())


def test_the_command_replaces_the_tables_of_the_page(tmp_path):
    data, page = tmp_path / "data", tmp_path / "gap.md"
    (data / "mooncake").mkdir(parents=True)
    kvtrace.write(LOOPS, data / load.CONVERSATIONS)
    page.write_text("".join(f"<!-- {name} -->\n<!-- end -->\n" for name in ("orders", "bounds", "conversation")))
    done = CliRunner().invoke(gap.main, [str(data), "--page", str(page)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "| conversation, 512 | 2 (40 %)" in page.read_text() and "| `lru` | both |" in page.read_text()
