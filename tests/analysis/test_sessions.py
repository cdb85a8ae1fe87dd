"""What sessions of agents are like: two sessions worked out by hand, twins, laws, and real Claude Code sessions."""

import gzip
from itertools import pairwise

import numpy as np
import orjson
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvtrace._native import forest
from kvtrace.analysis.session_statistics import session_statistics, session_values
from kvtrace.analysis.sessions import agents, own_session_blocks, recorded_turns, session_hits
from kvtrace.analysis.summary import analyze
from kvtrace.analysis.summary_tables import session_tables
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns, replace_columns
from kvtrace.trace.dependencies import Dependencies
from kvtrace.trace.hits import unlimited_hits
from kvtrace.trace.trace import Trace
from tests.analysis.session_cases import AGENT, two_sessions
from tests.reference import tour as slow
from tests.strategies import traces


def values_of(trace):
    return session_values(trace, recorded_turns(trace))


def statistics_of(trace):
    return session_statistics(trace, unlimited_hits(trace))


# -- by hand -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", [True, False])  # a column, or what follows from the dependencies
def test_two_sessions_of_agents(agent):
    found = values_of(two_sessions(agent))
    assert (found.turns.tolist(), found.duration_ms.tolist()) == ([6, 2], [80, 95])
    assert (found.compactions.tolist(), found.context_drops.tolist()) == ([1, 0], [2, 0])
    assert (found.growth.tolist(), found.turn_gap_ms.tolist()) == ([2, 1, -5, 1], [20, 30, 20, 95])
    assert (found.think_rows.tolist(), found.think_ms.tolist()) == ([2, 5, 6, 7], [10, 8, 10, 90])
    assert found.service_ms.tolist() == [10, 5, 5, 10, 10, 10, 10]
    #  calls of session 0 fill 0-10, 20-25, 30-42, 50-60 and 70-80; an end of session 1 is not known
    assert found.tool_share.tolist() == [(80 - 10 - 5 - 12 - 10 - 10) / 80]
    assert found.subagents.subagents.tolist() == [2, 0]
    assert (found.subagents.width.tolist(), found.subagents.calls.tolist()) == ([2], [1, 1])


def test_hits_of_a_session_and_of_others_by_hand():
    found = statistics_of(two_sessions()).hits
    assert (found.same_session.hit_blocks, found.across_sessions.hit_blocks) == (16, 3)
    assert (found.same_session.blocks, found.across_sessions.requests) == (30, 8)
    #  a session that knows three of five hit blocks
    trace = toy("0 1 2", "0 1 2 3 4", "0 1 2 3 4")
    split = session_hits(trace, unlimited_hits(trace), np.array([0, 1, 0]))
    assert (split.same_session.hit_blocks, split.across_sessions.hit_blocks) == (3, 3 + 2)


def test_without_service_times_think_times_are_those_of_the_dependencies():
    found = values_of(two_sessions(service_ms=None))
    assert (found.think_ms.tolist(), found.service_ms, found.tool_share) == ([10, 8, 10, 90], None, None)
    assert found.duration_ms.tolist() == [70, 95]


def test_without_dependencies_think_times_follow_from_service_times():
    #  row 5 arrives 25 ms after row 2 ended; that it waits for the subagents is not known
    found = values_of(two_sessions(dependencies=None))
    assert found.think_ms.tolist() == [10, 25, 10, 90] and found.subagents.calls.tolist() == [1, 1]
    #  a turn that arrives before the end of the one before has no think time
    early = values_of(two_sessions(dependencies=None, service_ms=np.array([30.0] + [1.0] * 7)))
    assert early.think_ms.tolist() == [29, 19, 94]


def test_of_sessions_alone_gaps_are_known_and_nothing_is_made_up():
    trace = two_sessions(agent=False, dependencies=None, service_ms=None)
    found = statistics_of(trace)
    assert found.turn_gap_ms.count == 6 and found.hits.same_session.hit_blocks == 16
    unknown = ("think_ms", "service_ms", "tool_share", "tool_answers", "subagents")
    assert [getattr(found, name) for name in unknown] == [None] * 5
    assert all(found.to_dict()[name] is None for name in unknown)
    shown = "\n".join(str(table.rows) for table in session_tables(found))
    assert "Time to next turn" in shown and not any(word in shown for word in ("Think", "Service", "ubagents", "tools"))


def test_a_trace_without_sessions_has_no_tables_of_sessions():
    titles = [table.title for table in analyze(toy("0 1", "0 1 2")).tables()]
    assert not {"Sessions", "Per session", "Per turn"} & {*titles}
    assert {"Sessions", "Per session", "Per turn"} <= {table.title for table in analyze(two_sessions()).tables()}


@pytest.mark.parametrize(
    "extra",
    [{"input_types": [["text"], ["text"], ["text", "tool_result"], None, [], ["tool_result"], ["text"], ["text"]]},
     {"input_types": ["text", "", "tool_result", None, "", "text,tool_result", "text", "text"]},
     {"stop": ["tool_use", "end_turn", "tool_use", "tool_use", None, "end_turn", "end_turn", "tool_use"]}],
)  # fmt: skip
def test_calls_that_answer_tools(extra):
    name, values = next(iter(extra.items()))
    column = np.empty(8, dtype=object)
    column[:] = values
    found = statistics_of(two_sessions(extra={"agent": np.array(AGENT), name: column})).tool_answers
    assert (found.requests, found.share) == (2, 0.25)  # rows 2 and 5
    assert (found.think_ms.mean, found.other_think_ms.mean) == (9, 50)


@pytest.mark.parametrize(
    ("intervals", "width"),
    [([(0, 5), (5, 9)], 1),  # one ends when the other starts
     ([(0, 5), (4, 9), (8, 12)], 2), ([(0, 20), (1, 2), (3, 4), (3, 5)], 3),
     ([(3, 3)], 1), ([(3, 3), (3, 3)], 2)],
)  # fmt: skip
def test_the_subagents_that_run_at_once(intervals, width):
    start, end = np.array(sorted(intervals)).T
    trace = toy(*map(str, range(len(start))))
    columns = replace_columns(
        trace, timestamp=start.astype(float), service_ms=(end - start).astype(float),
        session=np.zeros(len(start), dtype=np.int64), extra={"agent": np.arange(1, len(start) + 1)},
    )  # fmt: skip
    found = values_of(Trace.from_columns(columns, block_size=1)).subagents
    assert found.width.tolist() == [width] and found.calls.tolist() == [1] * len(start)


def test_agents_follow_from_dependencies():
    #  a subagent of a subagent is an agent of its own; a second session counts from 1 again
    waits = [[], [(0, "completion", "spawn", 0.0)], [], [(1, "completion", "spawn", 0.0)],
             [(1, "completion", "sequence", 0.0)], [(3, "completion", "sequence", 0.0)],
             [(2, "dispatch", "spawn", 0.0)],
             [(0, "completion", "sequence", 0.0), (4, "completion", "join", 0.0)]]  # fmt: skip
    columns = replace_columns(
        toy(*"01234567"), session=np.array([0, 0, 1, 0, 0, 0, 1, 0]), dependencies=Dependencies.of(waits)
    )
    trace = Trace.from_columns(columns, block_size=1)
    assert agents(trace).tolist() == [0, 1, 0, 2, 1, 2, 1, 0]
    assert recorded_turns(trace).parent.tolist() == [-1, -1, -1, -1, 1, 3, -1, 0]
    names = np.array(["main", "search"] * 4, dtype=object)  # another program's column
    assert agents(Trace.from_columns(replace_columns(trace, extra={"agent": names}), block_size=1)).tolist() == [
        0, 1, 0, 2, 1, 2, 1, 0]  # fmt: skip


# -- twins and laws ----------------------------------------------------------------------------------------------------


@given(traces(), st.randoms(use_true_random=False))
def test_own_blocks_are_those_of_sets(trace, rng):
    session = np.array([rng.randrange(-1, 3) for _ in range(len(trace))], dtype=np.int64)
    seen, expected = {}, []
    for row, number in enumerate(session.tolist()):
        known, prompt = seen.setdefault(number, set()), trace.prompt(row).tolist()
        leading = next((at for at, block in enumerate(prompt) if block not in known), len(prompt))
        expected.append(leading if number >= 0 else 0)
        known |= {*prompt}
    assert own_session_blocks(trace, session).tolist() == expected


@given(st.lists(st.integers(0, 7), max_size=30), st.randoms(use_true_random=False))
def test_the_compiled_tour_equals_its_twin(steps, rng):
    parent = [max(-1, block - 1 - step) for block, step in enumerate(steps)]
    assert forest.preorder(np.array(parent)).tolist() == slow.preorder(parent)
    tips = [rng.randrange(-1, len(parent)) for _ in range(20)]
    group, paths = [rng.randrange(-1, 3) for _ in tips], []
    for tip in tips:
        path = []
        while tip >= 0:
            path.insert(0, tip)
            tip = parent[tip]
        paths.append(path)
    depth = np.array([len(path) for path in paths])
    found = forest.shared_with_earlier(np.array(parent), np.array(tips), depth, np.array(group))
    assert found.tolist() == slow.shared_with_earlier(paths, group)


@pytest.mark.parametrize(
    ("parent", "tip", "depth", "message"),
    [([0], [0], [1], "come after its parent"), ([-2], [0], [1], "come after its parent"),
     ([-1], [1], [1], "not a block"), ([-1], [0, 0], [1], "different lengths")],
)  # fmt: skip
def test_the_tour_refuses_what_is_no_forest(parent, tip, depth, message):
    with pytest.raises(ValueError, match=message):
        forest.shared_with_earlier(np.array(parent), np.array(tip), np.array(depth), np.zeros(len(tip)))


@given(traces())
def test_hits_of_a_session_and_of_others_add_up(trace):
    assume(trace.session is not None and (trace.session >= 0).any() and len(trace.hash_ids))
    found = analyze(trace)
    same, across = found.sessions.hits.same_session, found.sessions.hits.across_sessions
    hits = found.basics.hits
    assert (same.hit_blocks + across.hit_blocks, same.hit_tokens + across.hit_tokens) == (
        hits.hit_blocks,
        hits.hit_tokens,
    )
    assert min(across.hit_blocks, across.hit_tokens) >= 0
    assert same.block_hit_rate + across.block_hit_rate == pytest.approx(hits.block_hit_rate)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 10)), min_size=1, max_size=8))
def test_the_share_outside_calls_is_that_of_each_millisecond(calls):
    calls.sort()
    trace = replace_columns(
        toy(*map(str, range(len(calls)))), timestamp=np.array([start for start, _ in calls], dtype=float),
        service_ms=np.array([length for _, length in calls], dtype=float), session=np.zeros(len(calls), dtype=np.int64),
    )  # fmt: skip
    first, last = calls[0][0], max(start + length for start, length in calls)
    idle = [at for at in range(first, last) if not any(start <= at < start + length for start, length in calls)]
    found = values_of(Trace.from_columns(trace, block_size=1)).tool_share
    assert (found is None) if last == first else found.tolist() == pytest.approx([len(idle) / (last - first)])


# -- real sessions -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def claude_code(shared):
    """The sessions of the folder as facts/agents.md counts them: requests by `t`, nested ones among them."""
    rows, session = [], []
    for number, path in enumerate(sorted((shared / "data/agents/claude-code").glob("*.json.gz"))):
        calls = [
            call
            for entry in orjson.loads(gzip.decompress(path.read_bytes()))["requests"]
            for call in (entry["requests"] if entry["type"] == "subagent" else [entry])
        ]
        rows += sorted(calls, key=lambda call: call["t"])
        session += [number] * len(calls)
    starts = np.array([0, *np.cumsum([len(row["hash_ids"]) for row in rows])])
    ids = np.concatenate(
        [np.array(row["hash_ids"], dtype=np.int64) + (own << 32) for row, own in zip(rows, session, strict=True)]
    )
    #  whole sessions one after the other, so that rows stay in the order of each session's `t`
    columns = Columns(
        np.arange(len(rows)), [row["in"] for row in rows], [row["out"] for row in rows], ids, starts, session=session
    )
    return Trace.from_columns(columns, block_size=64, tail="dropped")


def test_the_facts_about_claude_code(claude_code):
    found = analyze(claude_code).sessions
    assert (found.sessions, found.requests_in_sessions) == (158, 10697)
    same, across = found.hits.same_session, found.hits.across_sessions
    assert (same.hit_blocks, same.blocks, across.hit_blocks) == (19218868, 19951113, 0)
    assert (round(same.block_hit_rate, 7), round(same.token_hit_rate, 7)) == (0.9632980, 0.9630408)
    assert sum(values_of(claude_code).context_drops) == 63
    lengths = [claude_code.input_length[claude_code.session == number] for number in range(158)]
    assert sum(2 * b < a for one in lengths for a, b in pairwise(one.tolist())) == 63
