"""Dependencies from recorded times: they give the recorded starts, and each is the one that the rule names."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvtrace
from kvtrace import UsageError
from kvtrace.trace import Columns
from kvtrace.trace.dependencies import COMPLETION, DISPATCH, JOIN, SEQUENCE, SPAWN, TRIGGERS
from kvtrace.trace.session_trees import recorded_dependencies
from tests.reference import recorded as slow


def columns_of(requests):
    """Columns of (start, service, blocks, session, agent), and the agents."""
    start, service, prompts, session, agent = zip(*requests, strict=True)
    ids = [block for prompt in prompts for block in prompt]
    offsets = np.concatenate([[0], np.cumsum([len(prompt) for prompt in prompts])])
    lengths = np.diff(offsets)
    return Columns(start, lengths, lengths, ids, offsets, session=session, service_ms=service), np.array(agent)


def lists(waits):
    values = list(zip(waits.row, waits.trigger, waits.relation, waits.delay_ms, strict=True))
    return [values[waits.offsets[row] : waits.offsets[row + 1]] for row in range(len(waits))]


def arrivals(columns, waits):
    """The start of each request from its dependencies, NaN for those without."""
    end = columns.timestamp + np.nan_to_num(columns.service_ms)
    event = np.where(waits.trigger == COMPLETION, end[waits.row], columns.timestamp[waits.row]) + waits.delay_ms
    start = np.full(len(columns), -np.inf)
    np.maximum.at(start, waits.request, event)
    return np.where(np.isinf(start), np.nan, start)


@st.composite
def sessions(draw):
    """Requests of agents in time order, with prompts of one tree: a path of digits, one block for each prefix."""
    rows = draw(st.integers(1, 14))
    starts = sorted(draw(st.lists(st.integers(0, 12), min_size=rows, max_size=rows)))
    number: dict = {}
    requests = []
    for start in starts:
        path = draw(st.lists(st.integers(0, 1), max_size=5))
        prompt = [number.setdefault(tuple(path[: depth + 1]), len(number)) for depth in range(len(path))]
        service = draw(st.sampled_from([0.0, 1.0, 2.0, 5.0, float("nan")]))
        requests.append((float(start), service, prompt, draw(st.integers(-1, 1)), draw(st.integers(0, 2))))
    return requests


@given(sessions())
def test_each_dependency_is_the_one_of_the_rule(requests):
    columns, agent = columns_of(requests)
    waits = recorded_dependencies(columns, agent)
    start, service, prompts, session, agents = zip(*requests, strict=True)
    expected = slow.recorded_dependencies(start, service, prompts, session, agents)
    assert [sorted(one) for one in lists(waits)] == [sorted(one) for one in expected]


@given(sessions())
def test_recorded_times_give_the_recorded_starts(requests):
    columns, agent = columns_of(requests)
    waits = recorded_dependencies(columns, agent)
    start = arrivals(columns, waits)
    waiting = ~np.isnan(start)
    assert (start[waiting] == columns.timestamp[waiting]).all()
    assert (waits.row < waits.request).all()


@given(sessions(), st.randoms())
def test_the_order_of_rows_does_not_matter(requests, random):
    columns, agent = columns_of(requests)
    if len({start for start, *_ in requests}) < len(requests):
        return  # of two that start together, the first row comes first
    order = np.array(random.sample(range(len(requests)), len(requests)))
    shuffled = recorded_dependencies(columns.take(order), agent[order])
    back = np.argsort(order)
    assert [sorted((order[row], *rest) for row, *rest in lists(shuffled)[place]) for place in back] == [
        sorted(one) for one in lists(recorded_dependencies(columns, agent))
    ]


def test_blocks_hashed_without_their_prefix_are_compared_from_the_start():
    # row 2 has the blocks of row 1 but for the first: it shares a prefix with row 0 only
    columns, agent = columns_of([(0, 1, [5, 6], 0, 0), (2, 1, [9, 7, 8], 0, 0), (9, 1, [5, 7, 8], 0, 0)])
    assert recorded_dependencies(columns, agent).row.tolist() == [0, 0]


def test_a_subagent_is_spawned_and_joined():
    # main: 0-10, then 40; a subagent at 12-30 and 31-35
    columns, agent = columns_of([(0, 10, [0], 0, 0), (12, 18, [1], 0, 1), (31, 4, [1, 2], 0, 1), (40, 5, [0, 3], 0, 0)])
    assert lists(recorded_dependencies(columns, agent)) == [
        [],
        [(0, COMPLETION, SPAWN, 2.0)],
        [(1, COMPLETION, SEQUENCE, 1.0)],
        [(0, COMPLETION, SEQUENCE, 5.0), (2, COMPLETION, JOIN, 5.0)],
    ]


def test_a_request_during_the_previous_one_waits_for_its_dispatch():
    columns, agent = columns_of([(0, 10, [0], 0, 0), (4, 1, [0], 0, 0)])
    assert lists(recorded_dependencies(columns, agent))[1] == [(0, DISPATCH, SEQUENCE, 4.0)]


def test_requests_without_sessions_are_refused():
    with pytest.raises(UsageError, match="within sessions"):
        recorded_dependencies(kvtrace.toy("0 1"))


def test_the_recorded_sessions_reproduce_their_arrivals(shared):
    for name in ("claude-code", "claude-code-global"):
        folder = shared / "data/agents" / name
        if not folder.is_dir():
            pytest.skip("no sessions of agents in the shared data")
        trace = kvtrace.read(folder)
        waits = trace.dependencies
        start = arrivals(trace, waits)
        waiting = ~np.isnan(start)
        assert np.abs(start[waiting] - trace.timestamp[waiting]).max() <= 1e-6
        assert waiting.sum() == len(trace) - len(np.unique(trace.session))
        assert TRIGGERS[COMPLETION] == "completion"
