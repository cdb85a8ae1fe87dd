"""The learned order: cells worked out by hand, the Gittins index, the file, and what the order evicts."""

import json

import numpy as np
import pytest

import kvtrace
from kvtrace.cache import reuse_training
from kvtrace.cache.demand import block_demand
from kvtrace.cache.policies.learned import cells
from kvtrace.cache.reuse_training import indices, train
from kvtrace.cache.structures.reuse_table import Bounds, ReuseTable, default_table, read_table
from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.trace import Trace

# cells: tails 0 first turn, 1 later; shared 2 twice, 3 more often; private 4 first turn, new in it; 5 ... see `cell`
SMALL = Bounds(turns=(2,), uses=(3,), new_blocks=(2,), gaps_ms=(1500,))


def cell(turn, later, new, gap):
    return 4 + ((2 * turn + later) * 2 + new) * 3 + gap


def found(*paths, gap_ms=1000, lengths=None, **columns):
    """The cells of each request's blocks."""
    trace = toy(*paths, gap_ms=gap_ms)
    values = replace_columns(trace, **columns)
    if lengths:
        values = replace_columns(values, input_length=np.array(lengths))
    trace = Trace.from_columns(values, block_size=trace.block_size)
    return [part.tolist() for part in np.split(cells(block_demand(trace), SMALL), trace.offsets[1:-1])]


def test_a_request_that_extends_another_one_continues_it():
    first, second = found("0 1", "0 1 2 3")
    assert first == [cell(0, 0, 1, 0)] * 2  # two new blocks, no turn before
    assert second == [cell(1, 0, 1, 1)] * 2 + [cell(1, 1, 1, 1)] * 2  # 2 and 3 are new in a later turn; 1 s later


def test_a_long_pause_is_another_cell():
    assert found("0 1", "0 1 2", gap_ms=2000)[1][-1] == cell(1, 1, 0, 2)


def test_a_request_with_the_root_of_another_one_starts_a_session_and_shares_the_root():
    _, second, third = found("0 1", "0 2", "0 3")
    assert second == [2, cell(0, 0, 0, 0)]  # used twice
    assert third == [3, cell(0, 0, 0, 0)]


def test_the_same_prompt_again_is_no_continuation():
    assert found("0 1", "0 1")[1] == [2, 2]


def test_stated_turns_replace_inferred_ones():
    assert found("0 1", "0 1 2", extra={"turn": np.array([1, 1])})[1] == [2, 2, cell(0, 0, 0, 0)]
    assert found("0 1", "0 2", extra={"turn": np.array([1, 2])})[1] == [cell(1, 0, 0, 1), cell(1, 1, 0, 1)]


def test_a_partial_block_is_a_tail():
    trace = Trace([0.0, 1000.0], [7, 12], [1, 1], [0, 1, 0, 2, 3], [0, 2, 5], block_size=4)
    assert cells(block_demand(trace), SMALL).tolist()[:3] == [cell(0, 0, 1, 0), 0, cell(1, 0, 1, 1)]


def test_the_index_of_a_constant_hazard_is_its_rate():
    ages = np.array([1.0, 2.0, 3.0])
    index = indices(np.full((1, 4), 0.1), ages)
    assert index[0, 0] == pytest.approx(0.1 / 0.95)  # 0.1 hits for the 0.95 ms that a block is kept in a bucket of 1 ms
    assert (np.diff(index) <= 0).all()


def test_the_index_looks_ahead_to_a_reuse_that_is_sure():
    index = indices(np.array([[0.0, 0.0, 1.0, 0.0]]), np.array([1.0, 2.0, 3.0]))
    assert index[0].tolist() == pytest.approx([1 / 2.5, 1 / 2.5, 1 / 2.5, 0.0])  # it rises with age; made to fall


def test_uses_without_a_next_use_are_censored_at_the_end():
    uses = reuse_training.observed(block_demand(toy("0", "1", "0", gap_ms=1000)), SMALL, 0, 3)
    assert uses.time_ms.tolist() == [2000, 1000, 0] and uses.is_reused.tolist() == [True, False, False]


def test_training_does_not_see_what_comes_after():
    one = toy("0 1", "2", "0 1 3", "4", "0 1 3 5", gap_ms=1000)
    other = toy("0 1", "2", "0 1 3", "4", "6", gap_ms=1000)
    assert train(one, stop=4) == train(other, stop=4)


def test_it_keeps_what_the_table_values():
    """Blocks of second turns are kept, and those of first turns go."""
    trace = toy("0", "0 1", "2", "3", "4", "0 1 5", gap_ms=1000)
    table = ReuseTable(SMALL, (1e9,), tuple(int(one >= 16) for one in range(SMALL.cells)), ((0, 0), (9, 9)))
    assert cell(1, 0, 0, 0) == 16  # from here on the turn is a later one
    hits = {name: hits_of(trace, 3, name, table) for name in ("lru", "reuse-density")}
    assert hits == {"lru": 1, "reuse-density": 3}


def hits_of(trace, capacity, policy, table):
    from kvtrace.cache.core.pool import Pool
    from kvtrace.cache.policies import make
    from kvtrace.cache.policies.base import Context
    from kvtrace.cache.policies.learned import ReuseDensity

    demand = block_demand(trace)
    context = Context(demand.blocks, capacity, trace, demand)
    pool = Pool(context, demand, make("lru", context) if policy == "lru" else ReuseDensity(context, table))
    pool.advance(len(trace))
    pool.close()
    return int(pool.hits.sum())


def test_a_table_survives_its_file(tmp_path):
    default_table().write(tmp_path / "table.json")
    assert read_table(tmp_path / "table.json") == default_table()
    assert (tmp_path / "table.json").stat().st_size < 8_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kvtrace_reuse_density": 2}, "not a table"), ({"levels": "?"}, "not a table"), ({"ages_ms": [2, 1]}, "rise"),
        ({"class_of_cell": [0]}, "684"), ({"class_of_cell": [99] * 684}, "classes 0 to"), ({"levels": [[1]]}, "class"),
        ({"turns": [True]}, "not a table"),
    ],
)  # fmt: skip
def test_a_damaged_table_is_named(change, message, tmp_path):
    path = tmp_path / "table.json"
    path.write_text(json.dumps(default_table().to_dict() | change))
    with pytest.raises(kvtrace.InputError, match=message):
        kvtrace.cache.simulate(toy("0"), 1, f"reuse-density:{path}")


def test_a_missing_table_is_named(tmp_path):
    with pytest.raises(kvtrace.InputError, match="No such file"):
        kvtrace.cache.simulate(toy("0"), 1, f"reuse-density:{tmp_path}/none.json")


def test_the_table_that_is_shipped_is_that_of_the_first_half_of_the_conversation_trace(shared):
    trace = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")
    assert train(trace, stop=len(trace) // 2) == default_table()
