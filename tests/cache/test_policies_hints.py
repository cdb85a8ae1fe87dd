"""What each hint of an agent platform does, drawn by hand: what it evicts where LRU evicts something else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace._base.errors import InputError, UsageError
from kvtrace.cache.core.pool import Pool
from kvtrace.cache.demand import block_demand
from kvtrace.cache.policies import POLICIES, make
from kvtrace.cache.policies.base import Context
from kvtrace.cache.simulation import simulate
from kvtrace.cache.tiered import simulate_tiers
from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.trace import Trace
from tests.cache.test_policies_more import agents

HINTS = [row.example or name for name, row in POLICIES.items() if row.sessions]


def sessions(*requests, at=None, **extra):
    """A trace of requests written "session: blocks", with their times in ms."""
    pairs = [request.split(":") for request in requests]
    trace = toy(*(blocks for _, blocks in pairs))
    time = trace.timestamp if at is None else np.array(at, dtype=float)
    columns = replace_columns(
        trace, timestamp=time, session=np.array([int(session) for session, _ in pairs]),
        extra={name: np.array(values, dtype=object) for name, values in extra.items()},
    )  # fmt: skip
    return Trace.from_columns(columns, block_size=1)


def hits(trace, capacity, *policies):
    return [simulate(trace, capacity, policy).hit_blocks.tolist() for policy in policies]


def test_session_end_frees_what_lru_keeps():
    # session 1 is over after its request; session 0 comes again. Room for 4 of the 6 blocks
    trace = sessions("0: 0 1", "1: 2 3", "2: 4 5", "0: 0 1")
    assert hits(trace, 4, "lru", "session-end") == [[0, 0, 0, 0], [0, 0, 0, 2]]


def test_session_end_keeps_what_another_session_holds():
    # 0 and 1 are session 0's too; session 1 ends after its request. 5 takes the place of 2, which only session 1 had
    trace = sessions("0: 0 1", "1: 0 1 2", "3: 5", "0: 0 1", "3: 5")
    assert hits(trace, 3, "session-end") == [[0, 2, 0, 2, 1]]


def test_session_end_waits_for_the_last_request():
    # two at once: session 0's last request is running when 9 needs room, so LRU's victim 5 goes and not 0
    trace = sessions("1: 5", "0: 0", "0: 2", "2: 9", "1: 5")
    for schedule, hit in (("serial", 1), ("concurrency:2", 0)):
        assert simulate(trace, 3, "session-end", schedule=schedule).hit_blocks.tolist() == [0, 0, 0, 0, hit]


def test_superseded_states_go_first():
    # session 0 compacts 0 1 2 to 0 3: 1 and 2 are superseded, though younger than session 1's 4
    trace = sessions("1: 4", "0: 0 1 2", "0: 0 3", "2: 5 6", "1: 4", "0: 0 3")
    assert hits(trace, 5, "lru", "superseded") == [[0, 0, 1, 0, 0, 2], [0, 0, 1, 0, 1, 2]]


def test_a_superseded_state_that_is_used_again_is_current():
    trace = sessions("0: 0 1", "0: 2", "0: 0 1", "1: 3", "0: 0 1")
    assert hits(trace, 3, "superseded") == [[0, 0, 2, 0, 2]]


def test_a_subagent_has_a_context_of_its_own():
    # its request 2 does not supersede the main agent's 0, so 3 takes the place of LRU's victim 5
    requests = "1: 5", "0: 0", "0: 2", "2: 3", "0: 0"
    assert hits(sessions(*requests), 3, "superseded") == [[0, 0, 0, 0, 0]]
    assert hits(sessions(*requests, agent=[0, 0, 1, 0, 0]), 3, "superseded") == [[0, 0, 0, 0, 1]]


def test_a_tool_keeps_blocks_and_a_person_does_not():
    # session 0 waits for a tool, session 1 for a person; 1 is younger and goes first
    stop = ["tool_use", "end_turn", "tool_use", "tool_use", "tool_use"]
    trace = sessions("0: 0", "1: 1", "2: 2", "0: 0", "1: 1", stop=stop)
    assert hits(trace, 2, "lru", "tool-ttl") == [[0, 0, 0, 0, 0], [0, 0, 0, 1, 0]]


def test_a_tool_keeps_blocks_up_to_its_deadline():
    # session 0's tool takes 10 ms, then the next one runs from 10. Session 1's person thinks from 12, and 2 needs room
    stop = ["tool_use", "tool_use", "end_turn", "tool_use", "tool_use"]
    for now, hit in ((20, 1), (21, 0)):  # the deadline is 20; after it nobody is kept, and 0 is the least recent block
        trace = sessions("0: 0", "0: 0", "1: 1", "2: 2", "0: 0", at=[0, 10, 12, now, 30], stop=stop)
        assert hits(trace, 2, "tool-ttl:P90") == [[0, 1, 0, 0, hit]]


def test_without_the_column_stop_every_pause_is_a_tool():
    trace = sessions("0: 0", "0: 0", "1: 1", "2: 2", "0: 0", at=[0, 10, 12, 20, 30])
    assert hits(trace, 2, "tool-ttl", "lru") == [[0, 1, 0, 0, 0]] * 2


def test_retain_keeps_long_sessions_and_main_agents():
    long = sessions("0: 0", "0: 0", "1: 1", "2: 2", "0: 0")
    assert hits(long, 2, "lru", "retain") == [[0, 1, 0, 0, 0], [0, 1, 0, 0, 1]]
    roles = sessions("0: 0", "1: 1", "2: 2", "0: 0", agent=[0, 1, 0, 0])
    assert hits(roles, 2, "lru", "retain") == [[0, 0, 0, 0], [0, 0, 0, 1]]


def test_the_column_priority_overrides_retain():
    trace = sessions("0: 0", "1: 1", "2: 2", "0: 0", priority=[90, 10, None, 90])
    assert hits(trace, 2, "retain") == [[0, 0, 0, 1]]
    trace = sessions("0: 0", "1: 1", "2: 2", "0: 0", priority=[10, 90, None, 90])
    assert hits(trace, 2, "retain") == [[0, 0, 0, 0]]


def test_retained_blocks_go_first_after_the_duration():
    trace = sessions("0: 0", "1: 1", "2: 2", "0: 0", priority=[90, 10, 50, 90], at=[0, 10, 20, 30])
    assert hits(trace, 2, "retain:20ms", "retain:19ms") == [[0, 0, 0, 1], [0, 0, 0, 0]]


def test_the_oracle_evicts_the_session_that_resumes_last():
    # when 2 comes, session 0 resumes at 4 and session 1 at 5: 1 goes. Then 0 and 2 compete, and 2 never resumes
    trace = sessions("0: 0", "1: 1", "2: 2", "3: 3", "0: 0", "1: 1")
    assert hits(trace, 2, "lru", "oracle-session", "belady") == [[0] * 6, [0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 1, 1]]


def test_agent_hints_put_dead_blocks_before_those_of_idle_agents():
    # superseded 1; then session 1, whose person thinks; session 0's current context stays
    stop = ["tool_use", "tool_use", "end_turn", "tool_use", "tool_use", "tool_use"]
    trace = sessions("0: 0 1", "0: 0 2", "1: 3", "2: 4", "3: 5", "0: 0 2", stop=stop)
    assert hits(trace, 4, "agent-hints")[0] == [0, 1, 0, 0, 0, 2]


@given(agents(), st.data())
def test_without_news_a_hint_policy_is_lru(trace, data):
    """One request per session and agent, none of them ended: no policy learns anything."""
    capacity = int(trace.prompt_blocks.max(initial=1)) + data.draw(st.integers(0, 4))
    columns = replace_columns(trace, session=np.where(np.arange(len(trace)) == len(trace) - 1, 0, -1), extra={})
    trace = Trace.from_columns(columns, block_size=trace.block_size)
    lru = simulate(trace, capacity, "lru").hit_blocks.tolist()
    for policy in ("session-end", "superseded", "tool-ttl", "retain", "agent-hints"):
        assert simulate(trace, capacity, policy).hit_blocks.tolist() == lru


@pytest.mark.parametrize("policy", HINTS)
@given(agents(), st.integers(1, 4), st.integers(1, 6))
def test_tiers_hold_what_is_counted(policy, trace, first, second):
    capacity = int(trace.prompt_blocks.max(initial=1)) + first
    found = simulate_tiers(trace, {"hbm": capacity, "dram": second}, policy)  # the engine checks itself at the end
    assert (found.tier_hits.sum(axis=0) == found.hit_blocks).all()


@pytest.mark.parametrize("policy", HINTS)
@given(agents())
def test_the_end_of_all_requests_leaves_nothing_pinned(policy, trace):
    demand = block_demand(trace)
    context = Context(demand.blocks, int(demand.max_blocks.max(initial=1)), trace, demand)
    pool = Pool(context, demand, make(policy, context))
    pool.schedule("concurrency", 3)
    pool.advance(len(trace))
    pool.close()


@pytest.mark.parametrize("policy", HINTS)
def test_a_trace_without_sessions_is_refused_in_one_line(policy):
    with pytest.raises(InputError, match="needs a trace with sessions") as error:
        simulate(toy("0 1", "2"), 2, policy)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("spec", ["tool-ttl:90", "tool-ttl:P0", "tool-ttl:P101", "tool-ttl:Px", "agent-hints:P"])
def test_a_quantile_is_written_with_p(spec):
    name = spec.partition(":")[0]
    with pytest.raises(UsageError, match=f"Try {name}:P90"):
        simulate(sessions("0: 0"), 1, spec)
