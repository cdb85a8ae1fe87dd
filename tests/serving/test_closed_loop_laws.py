"""Laws of the closed loop, on random session forests and on recorded sessions."""

import os
from pathlib import Path

import numpy as np
import pytest

import kvtrace
from kvtrace._base.errors import InputError, UsageError
from kvtrace.cache.simulation import Setting
from kvtrace.serving.lanes import ClosedLoop
from kvtrace.serving.schedulers.simple import RecordedScheduler
from kvtrace.serving.simulation import BatchLimits, StepCost, closed_loop, open_loop
from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.dependencies import Dependencies
from kvtrace.trace.session_trees import session_trees
from kvtrace.trace.trace import Trace
from tests.serving.session_forests import lists_of, random_forest

SESSIONS = Path(os.environ.get("KVTRACE_SHARED", "no-such-folder")) / "data/agents/claude-code"
COST = StepCost(token_s=1 / 128, step_s=1 / 16, read_s=1 / 8192, overhead_s=1 / 256)  # sums of such are exact
VLLM = {"setting": Setting(60, engine="vllm"), "limits": BatchLimits(30, 5)}
FORESTS = [trace for trace in map(random_forest, range(40)) if len(trace.dependencies.row)]


def recorded(trace, **loop):
    """The trace in a closed loop with its recorded service times."""
    return closed_loop(trace, StepCost(0.0), setting=Setting(1), scheduler=RecordedScheduler(), loop=ClosedLoop(**loop))


def changed(trace, **columns):
    return Trace.from_columns(replace_columns(trace, **columns), block_size=trace.block_size, tail=trace.tail)


def waits_in(done, trace):
    """(request, request that it waited for, trigger, delay) in places of a run, for each dependency that was played."""
    place = {(play, row): number for number, (play, row) in enumerate(zip(done.play.tolist(), done.row.tolist()))}  # noqa: B905
    for number, (play, row) in enumerate(zip(done.play.tolist(), done.row.tolist(), strict=True)):
        for before, trigger, delay in lists_of(trace)[row]:
            if play >= 0 and (play, before) in place:
                yield number, place[play, before], trigger, delay


def assert_recorded_times(done, trace):
    """Each request ended at its recorded time and service time after the start of its session."""
    begin = np.full(int(session_trees(trace).max()) + 1, np.inf)
    np.minimum.at(begin, session_trees(trace), trace.timestamp)
    after_start = (trace.timestamp - begin[session_trees(trace)] + np.nan_to_num(trace.service_ms))[done.row] / 1000
    assert np.allclose(done.ended_s - done.plays.begin_s[done.play], after_start, rtol=0, atol=1e-6)


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("trace", FORESTS)
def test_recorded_service_times_give_the_recorded_ends(trace, lanes):
    done = recorded(trace, lanes=min(lanes, int(session_trees(trace).max()) + 1))
    assert len(done.row) == len(trace)
    assert_recorded_times(done, trace)


@pytest.mark.parametrize("trace", FORESTS)
def test_without_service_and_think_times_the_order_in_a_session_is_the_recorded_one(trace):
    instant = changed(trace, service_ms=np.zeros(len(trace)))
    done = recorded(instant, lanes=int(session_trees(trace).max()) + 1, think_scale=0.0)
    assert (done.arrival_s == 0).all()
    for tree in range(len(done.plays)):
        assert (np.diff(done.row[done.play == tree]) > 0).all()


@pytest.mark.parametrize("engine", ["reference", "vllm", "sglang", "dynamo"])
def test_an_infinitely_fast_engine_keeps_the_order_of_turns(engine):
    turns = [[(row - 2, "completion", "sequence", 500.0)] if row > 1 else [] for row in range(12)]  # two sessions
    prompts = [" ".join(str(2 * block + row % 2) for block in range(row // 2 + 1)) for row in range(12)]
    trace = changed(toy(*prompts), dependencies=Dependencies.of(turns), session=np.arange(12) % 2)
    loop = ClosedLoop(lanes=2, think_scale=0.0)
    done = closed_loop(trace, StepCost(0.0), setting=Setting(99, engine=engine), loop=loop)
    assert done.row.tolist() == list(range(12)) and (done.ended_s == 0).all()


@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("trace", FORESTS[::3])
def test_lanes_are_conserved(trace, lanes):
    lanes = min(lanes, int(session_trees(trace).max()) + 1)
    plays = closed_loop(trace, COST, loop=ClosedLoop(lanes=lanes), **VLLM).plays
    assert len(plays) == int(session_trees(trace).max()) + 1
    for moment in np.unique([*plays.begin_s, *plays.end_s])[:-1]:
        running = int(((plays.begin_s <= moment) & (plays.end_s > moment)).sum())
        left = int((plays.begin_s > moment).sum())
        assert running == lanes if left else running <= lanes


@pytest.mark.parametrize("loop", [{}, {"duration_s": 40.0, "think_scale": 2.0}, {"start": "inside", "seed": 5}])
@pytest.mark.parametrize("trace", FORESTS[1::3])
def test_no_request_arrives_before_what_it_waits_for(trace, loop):
    done = closed_loop(trace, COST, loop=ClosedLoop(**loop), instances=2, **VLLM)
    for later, earlier, trigger, delay in waits_in(done, trace):
        moment = done.arrival_s[earlier] if trigger == "dispatch" else done.ended_s[earlier]
        assert done.arrival_s[later] >= moment + delay * loop.get("think_scale", 1.0) - 1e-9


@pytest.mark.parametrize("engine", ["reference", "vllm", "sglang", "dynamo"])
@pytest.mark.parametrize("instances", [1, 3])
@pytest.mark.parametrize("trace", FORESTS[2::6])
def test_delays_from_fixed_arrivals_are_the_open_loop(trace, engine, instances):
    after_first = [[(0, "dispatch", "sequence", float(at))] if row else [] for row, at in enumerate(trace.timestamp)]
    one_tree = changed(trace, dependencies=Dependencies.of(after_first))
    how = {"setting": Setting(70, engine=engine), "instances": instances, "router": "lmetric"}
    done, opened = closed_loop(one_tree, COST, loop=ClosedLoop(), **how), open_loop(one_tree, COST, **how)
    assert np.array_equal(done.arrival_s, opened.trace.timestamp / 1000) and np.array_equal(
        done.row, np.arange(len(trace))
    )
    for name in ("started_s", "first_s", "ended_s", "hit_blocks", "instance"):
        assert np.array_equal(getattr(done, name), getattr(opened, name), equal_nan=True)


def test_the_same_seed_gives_the_same_run_and_another_one_another():
    trace = FORESTS[3]
    loop = {"lanes": 2, "start": "inside", "duration_s": 30.0}
    one, again, other = (closed_loop(trace, COST, loop=ClosedLoop(**loop, seed=seed), **VLLM) for seed in (1, 1, 2))
    assert np.array_equal(one.arrival_s, again.arrival_s) and np.array_equal(one.ended_s, again.ended_s)
    assert not np.array_equal(one.arrival_s, other.arrival_s)


@pytest.mark.parametrize("trace", FORESTS[::4])
def test_a_faster_engine_finishes_at_least_as_many_sessions(trace):
    done = [
        closed_loop(trace, StepCost(token_s=seconds, step_s=4 * seconds), setting=Setting(300, engine="vllm"),
                         loop=ClosedLoop(lanes=1, duration_s=60.0))
        for seconds in (1 / 8, 1 / 64, 1 / 512)
    ]  # fmt: skip
    counts = [one.sessions_completed for one in done]
    assert counts == sorted(counts)


def test_a_session_that_is_played_again_never_hits_its_earlier_play():
    trace = changed(toy("0 1", "0 1 2", gap_ms=1000.0), dependencies=Dependencies.of(
        [[], [(0, "completion", "sequence", 1000.0)]]
    ))  # fmt: skip
    done = closed_loop(trace, COST, setting=Setting(99), loop=ClosedLoop(duration_s=10.0))
    assert len(done.plays) > 3
    assert done.hit_blocks.tolist() == [0 if row == 0 else 2 for row in done.row]


def test_what_waits_for_a_rejected_request_goes_on():
    waits = Dependencies.of([[], [(0, "completion", "sequence", 2000.0)]])
    trace = changed(toy("0 1 2 3 4 5", "6"), dependencies=waits)
    done = closed_loop(trace, StepCost(1.0), setting=Setting(3), loop=ClosedLoop())
    assert done.arrival_s.tolist() == [0.0, 2.0] and done.rejected == 1


def test_each_agent_that_is_active_has_a_primer():
    # main agent: rows 0, 1, 4; a subagent: rows 2, 3; cut at half of 4 s, with one request of each agent before it
    waits = Dependencies.of([[], [(0, "completion", "sequence", 0.0)], [(1, "completion", "spawn", 0.0)],
                             [(2, "completion", "sequence", 0.0)], [(3, "completion", "join", 500.0)]])  # fmt: skip
    trace = toy("0", "0 1", "2", "2 3", "0 1 4", gap_ms=1000.0)
    trace = changed(trace, dependencies=waits, timestamp=[0.0, 1000.0, 1500.0, 3000.0, 4000.0],
                    output_length=np.full(5, 7), extra={"agent": np.array([0, 0, 1, 1, 0])})  # fmt: skip
    loop = ClosedLoop(start="inside", start_range=(0.5, 0.5))
    done = closed_loop(trace, StepCost(1 / 8), setting=Setting(99), loop=loop)
    assert done.row.tolist() == [1, 2, 3, 4] and done.play.tolist() == [-1, -1, 0, 0]
    assert done.trace.output_length.tolist() == [1, 1, 7, 7]
    primed = done.ended_s[:2].max()
    assert done.plays.begin_s.tolist() == [primed] and done.arrival_s[2] == primed + 1  # t* is 2 s, row 3 at 3 s
    assert done.arrival_s[3] == done.ended_s[2] + 0.5
    assert done.warm_up == 2 and done.hit_blocks[2:].tolist() == [1, 2]


def test_only_the_window_counts():
    chain = [[(row - 1, "completion", "sequence", 1000.0)] if row else [] for row in range(6)]
    trace = changed(toy("0", "1", "2", "3", "4", "5", gap_ms=2000.0), dependencies=Dependencies.of(chain),
                    service_ms=np.full(6, 1000.0))  # fmt: skip
    done = recorded(trace, warm_up=2, duration_s=3.5)  # they arrive at 0, 2, 4, ...; the second one opens the window
    assert done.arrival_s.tolist() == [0, 2, 4] and done.window == (2.0, 5.5) and done.counted == slice(2, None)
    values = done.to_dict()
    assert (values["requests"], values["served"], values["loop"]["plays"]) == (1, 1, 1)
    assert values["requests_per_s"] == 1 / 3.5 and values["loop"]["progress"] == 3 / 6


@pytest.mark.parametrize(("how", "message"), [
    ({"setting": Setting(9, "workload:10m")}, "reads recorded arrivals"),
    ({"setting": Setting(9, "belady")}, "upper bound"),
    ({"setting": Setting(9), "scheduler": RecordedScheduler()}, "no recorded service times"),
])  # fmt: skip
def test_what_a_closed_loop_does_not_support_is_refused(how, message):
    trace = changed(toy("0", "1"), dependencies=Dependencies.of([[], [(0, "completion", "sequence", 0.0)]]))
    with pytest.raises(UsageError, match=message):
        closed_loop(trace, StepCost(1.0), loop=ClosedLoop(), **how)


@pytest.mark.parametrize("options", [
    {"lanes": 0}, {"warm_up": -1}, {"start": "middle"}, {"start_range": (0.5, 0.2)}, {"think_scale": -1.0},
    {"duration_s": 0.0}, {"idle_cap_s": float("nan")}, {"tree_idle_cap_s": float("inf")},
])  # fmt: skip
def test_options_that_are_not_valid_are_refused(options):
    with pytest.raises(UsageError):
        ClosedLoop(**options)


@pytest.mark.skipif(not SESSIONS.is_dir(), reason="no sessions of agents in KVTRACE_SHARED")
@pytest.mark.parametrize("lanes", [1, 158])
def test_real_sessions_end_at_their_recorded_times(lanes):
    try:
        trace = kvtrace.read(SESSIONS)
    except InputError:
        pytest.skip("no reader of Weka sessions")
    assert_recorded_times(recorded(trace, lanes=lanes), trace)
