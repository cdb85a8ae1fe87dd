"""The table of docs/cache/policies.md on flat and leaf-first pools is what the simulation gives."""

import re

import pytest

import kvtrace
from kvtrace.cache.simulation import simulate
from kvtrace.trace.building import toy
from tests.conftest import ROOT

PAGE = (ROOT / "docs/cache/policies.md").read_text()
HEAD = re.search(r"^\| policy \| .*leaf-first.*$", PAGE, re.M)[0]
CAPACITIES = [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) flat", HEAD)]
ROWS = re.findall(r"^\| `(\w+)` \|((?: [\d,]+ \|){6})$", PAGE, re.M)


def hits(trace, policy, capacity):
    """Hit blocks in a flat and in a leaf-first pool."""
    pools = ("flat", "leaf-first")
    return [simulate(trace, capacity, policy, pool=pool).hits.hit_blocks for pool in pools]


def test_the_page_has_the_table():
    assert CAPACITIES == [1000, 10_000, 32_768] and {name for name, _ in ROWS} == {"fifo", "sieve", "s3fifo", "2q"}


@pytest.mark.parametrize("name", [name for name, _ in ROWS])
def test_each_row_is_what_the_simulation_gives(name, shared):
    trace = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")
    written = [int(cell.strip().replace(",", "")) for cell in dict(ROWS)[name].split("|")[:-1]]
    assert written == [number for capacity in CAPACITIES for number in hits(trace, name, capacity)]


def test_a_leaf_first_pool_keeps_the_root_that_a_flat_pool_evicts():
    flat, leaf_first = hits(toy("0 1", "2", "0 1"), "fifo", 2)
    assert (flat, leaf_first) == (0, 1)  # flat: 0 went, and 1 cannot hit without it; leaf-first: 1 went


def test_a_leaf_first_pool_does_not_suit_s3fifo_always():
    #  the shortest such trace of some sixty thousand: leaf-first keeps 0, which nobody wants again, and evicts 3
    assert hits(toy("0 1", "3", "0 1", "7", "3"), "s3fifo", 3) == [3, 2]
