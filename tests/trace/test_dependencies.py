"""Dependencies of requests: kept by selections and concatenations, cut where a request is missing, checked."""

import random

import numpy as np
import pytest

from kvtrace._base.errors import InputError, UsageError
from kvtrace.trace.building import concat, toy
from kvtrace.trace.columns import Columns, replace_columns
from kvtrace.trace.dependencies import Dependencies, join_dependencies
from kvtrace.trace.trace import Trace
from tests.conftest import drawn


def lists_of(waits):
    """The dependencies of each request as a list of tuples."""
    fields = list(zip(*(values.tolist() for values in waits.arrays()[1:]), strict=True))
    return [fields[waits.offsets[r] : waits.offsets[r + 1]] for r in range(len(waits))]


def random_trace(rng, rows=30):
    """Requests that wait for up to three earlier ones, at random times."""
    waits = [
        [
            (rng.randrange(row), rng.choice(["dispatch", "completion"]), rng.choice(["sequence", "spawn", "join"]),
             float(rng.randrange(100)))
            for _ in range(rng.choice([0, 1, 1, 2, 3]) if row else 0)
        ]
        for row in range(rows)
    ]  # fmt: skip
    trace = toy(*(f"0 {number}" for number in range(1, rows + 1)))
    service = np.where(np.arange(rows) % 3 == 0, np.nan, np.arange(rows) * 1.5)
    columns = replace_columns(trace, dependencies=Dependencies.of(waits), service_ms=service)
    return Trace.from_columns(columns, block_size=1)


@pytest.mark.parametrize("seed", range(drawn(20)))
def test_a_selection_keeps_the_dependencies_among_its_rows(seed):
    rng = random.Random(seed)
    trace = random_trace(rng)
    rows = sorted(rng.sample(range(len(trace)), rng.randrange(len(trace))))
    part = trace[np.array(rows, dtype=np.int64)]
    place = {row: new for new, row in enumerate(rows)}
    whole = lists_of(trace.dependencies)
    kept = [[(place[one[0]], *one[1:]) for one in whole[row] if one[0] in place] for row in rows]
    assert lists_of(part.dependencies) == kept
    assert np.array_equal(part.service_ms, trace.service_ms[rows], equal_nan=True)


def test_rows_in_another_order_keep_their_dependencies():
    columns = Columns([5.0, 0.0], [1, 1], [1, 1], [0, 1], [0, 1, 2],
                      dependencies=Dependencies.of([[(1, "completion", "sequence", 3.0)], []]))  # fmt: skip
    trace = Trace.from_columns(columns, block_size=1)
    assert lists_of(trace.dependencies) == [[], [(0, 1, 0, 3.0)]]


def test_a_concatenation_keeps_all_dependencies():
    one, other = random_trace(random.Random(1)), random_trace(random.Random(2))
    both = concat([one, toy("0"), other])
    assert lists_of(both[: len(one)].dependencies) == lists_of(one.dependencies)
    assert lists_of(both.dependencies)[len(one)] == []
    assert lists_of(both[len(one) + 1 :].dependencies) == lists_of(other.dependencies)
    assert np.isnan(both.service_ms[len(one)])
    assert both != concat([one, toy("0"), one])


def test_pieces_of_rows_join_to_the_whole():
    waits = random_trace(random.Random(3)).dependencies
    parts = [waits.rows_of(0, 4), waits.rows_of(4, 4), waits.rows_of(4, 30)]
    assert join_dependencies([(len(part), part) for part in parts]) == waits


@pytest.mark.parametrize(
    ("waits", "message"),
    [([[(1, "completion", "sequence", 0.0)], []], "row 0: the request waits for itself or for a later row"),
     ([[(0, "completion", "sequence", 0.0)], []], "row 0: the request waits for itself or for a later row"),
     ([[], [(7, "completion", "sequence", 0.0)]], "row 1: the request waits for a row that does not exist"),
     ([[], [(0, "completion", "sequence", -1.0)]], "row 1: a delay is negative, not a number"),
     ([[], [(0, "completion", "sequence", np.nan)]], "row 1: a delay is negative, not a number"),
     ([[]], r"lists of dependencies \(1\) is not the number of requests \(2\)")],
)  # fmt: skip
def test_dependencies_that_cannot_hold_are_refused(waits, message):
    columns = replace_columns(toy("0", "1"), dependencies=Dependencies.of(waits))
    with pytest.raises(InputError, match=message):
        Trace.from_columns(columns, block_size=1)


@pytest.mark.parametrize(
    ("wait", "message"),
    [((0, "end", "sequence", 0.0), "'end' is not a trigger of a dependency. Try dispatch or completion."),
     ((0, "completion", "friend", 0.0), "'friend' is not a relation of a dependency. Try sequence, spawn")],
)  # fmt: skip
def test_triggers_and_relations_have_names(wait, message):
    with pytest.raises(UsageError, match=message):
        Dependencies.of([[], [wait]])


def test_a_negative_service_time_is_refused():
    with pytest.raises(InputError, match="row 1: the service time is negative"):
        Trace.from_columns(replace_columns(toy("0", "1"), service_ms=[np.nan, -2.0]), block_size=1)
