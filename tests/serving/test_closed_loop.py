"""The closed loop: its arrivals are those of the twin, and its requests are served as in the open loop."""

from dataclasses import replace
from importlib import import_module
from itertools import product
from pkgutil import iter_modules
from unittest import mock

import numpy as np
import pytest

from kvtrace._base.errors import UsageError
from kvtrace.cache.simulation import Setting
from kvtrace.serving import core
from kvtrace.serving.core import instance
from kvtrace.serving.core.instance import Requests
from kvtrace.serving.lanes import ClosedLoop
from kvtrace.serving.routers import OWN, ROUTERS
from kvtrace.serving.schedulers.simple import RecordedScheduler
from kvtrace.serving.simulation import BatchLimits, DynamoCost, StepCost, Tier, closed_loop, open_loop
from kvtrace.trace.building import toy
from kvtrace.trace.session_trees import session_trees
from tests.reference.closed_loop import Loop
from tests.reference.serving import entered
from tests.serving.session_forests import lists_of, random_forest

COST = StepCost(token_s=1 / 128, step_s=1 / 16, read_s=1 / 8192, overhead_s=1 / 256)  # sums of such are exact
FRONT = replace(COST, front_request_s=3 / 64, front_token_s=3 / 1024, front_delay_s=1 / 32)  # also of three instances
FREE = StepCost(token_s=0.0)
RECORDED = {"scheduler": RecordedScheduler(), "setting": Setting(1)}
ENGINES = {
    "reference": {"setting": Setting(60, mode="token"), "limits": BatchLimits(30, 5)},
    "slru": {"setting": Setting(60, "slru", mode="grow"), "limits": BatchLimits(30, 5)},
    "lfu-da": {"setting": Setting(60, "lfu-da"), "limits": BatchLimits(30, 3)},
    "tiers": {"setting": Setting(60), "limits": BatchLimits(30, 5), "tiers": [Tier("dram", 90, 1 / 1024)]},
    "vllm": {"setting": Setting(60, engine="vllm"), "limits": BatchLimits(30, 5)},
    "vllm, one tier": {"setting": Setting(60, engine="vllm"), "tiers": [Tier("dram", 90, 1 / 1024)]},
    "sglang": {"setting": Setting(90, engine="sglang")},
    "dynamo": {"setting": Setting(60, engine="dynamo"), "limits": BatchLimits(30, 5)},
    "recorded": RECORDED,
}
for module in iter_modules(core.__path__):  # before `opened` replaces a class that they import
    import_module(f"{core.__name__}.{module.name}")
LOOPS = [
    ClosedLoop(lanes=1), ClosedLoop(lanes=3, think_scale=0.5), ClosedLoop(lanes=2, idle_cap_s=0.25),
    ClosedLoop(lanes=3, tree_idle_cap_s=0.5), ClosedLoop(lanes=2, duration_s=30.0, warm_up=2, idle_cap_s=3.0),
    ClosedLoop(lanes=4, duration_s=20.0, tree_idle_cap_s=1.0), ClosedLoop(lanes=2, start="inside", seed=3),
    ClosedLoop(lanes=2, start="inside", start_range=(0, 1), duration_s=25.0, warm_up=1, tree_idle_cap_s=2.0),
]  # fmt: skip


def fitting(trace, loop):
    """The loop with at most as many lanes as trees, unless trees are played again."""
    return loop if loop.duration_s else replace(loop, lanes=min(loop.lanes, int(session_trees(trace).max()) + 1))


def moments(trace, loop, begins, ends):
    """The first plays cut inside: the offset of each row that stays, by the rule of docs/serving/serving.md."""
    share = np.random.default_rng(loop.seed).uniform(*loop.start_range, loop.lanes)
    return begins + share * (ends - begins)


def entered_s(done, cost):
    """When each request of a run reaches the engine; recorded times have that in them."""
    if not done.scheduler.has_front or isinstance(cost, DynamoCost):
        return done.arrival_s
    return np.array(entered(done.arrival_s.tolist(), done.trace.input_length.tolist(), cost, done.instances))


def twin_of(trace, loop, done, cost=COST):
    """The twin's run, with the ends that requests had in ours."""
    tree, recorded = session_trees(trace), trace.timestamp / 1000
    trees = [np.flatnonzero(tree == number).tolist() for number in range(int(tree.max()) + 1)]
    laps = 1 + max(0, int(done.play.max(initial=0)) // len(trees)) + (loop.duration_s is not None)
    offsets = [{row: (recorded[row] - recorded[rows[0]]) * loop.think_scale for row in rows} for rows in trees]
    plays, primers = [dict(one) for one in offsets * laps], []
    if loop.start == "inside":
        rows_of = [trees[lane % len(trees)] for lane in range(loop.lanes)]
        at = moments(trace, loop, *(np.array([recorded[rows[end]] for rows in rows_of]) for end in (0, -1)))
        for lane, rows in enumerate(rows_of):
            late = [row for row in rows if trace.timestamp[row] >= at[lane] * 1000]
            plays[lane] = {row: (recorded[row] - at[lane]) * loop.think_scale for row in late}
            if len(late) < len(rows):
                primers.append((lane, rows[len(rows) - len(late) - 1]))
    primers.sort(key=lambda one: (one[0] // len(trees), one[1]))  # as they arrive
    scaled = [[(row, kind, delay * loop.think_scale) for row, kind, delay in one] for one in lists_of(trace)]
    ended = np.where(np.isnan(done.ended_s), entered_s(done, cost), done.ended_s)
    lanes = iter([lane for lane, _ in primers])
    arrived = zip(done.row.tolist(), done.play.tolist(), strict=True)
    keys = [(next(lanes) if play < 0 else play, row) for row, play in arrived]
    ends = dict(zip(keys, ended.tolist(), strict=True))
    rank = {keys[place]: number for number, place in enumerate(done.completed.tolist())}
    caps = {"idle_cap": loop.idle_cap_s, "tree_cap": loop.tree_idle_cap_s, "duration": loop.duration_s}
    return Loop(
        plays, scaled, ends, rank, loop.lanes, primers, loop.warm_up, lap=len(trees),
        **{name: seconds for name, seconds in caps.items() if seconds is not None},
    ).run(), keys  # fmt: skip


def closed(trace, loop, cost=COST, **how):
    return closed_loop(trace, cost, loop=loop, **how)


@pytest.mark.parametrize("instances", [1, 3])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("number", range(len(LOOPS)))
def test_requests_arrive_as_the_twin_says(number, engine, instances):
    for seed in range(4):
        cost = FRONT if seed % 2 else COST
        trace = random_forest(100 * number + seed)
        if not len(trace.dependencies.row):
            continue
        loop = fitting(trace, LOOPS[number])
        done = closed(trace, loop, cost, instances=instances, router="least-loaded", **ENGINES[engine])
        twin, keys = twin_of(trace, loop, done, cost)
        assert [request for request, _ in twin.arrivals] == keys
        assert [at for _, at in twin.arrivals] == pytest.approx(done.arrival_s.tolist(), abs=1e-9)
        assert [twin.on[play] for play in range(len(twin.on))] == done.plays.lane.tolist()
        assert list(twin.begins.values()) == pytest.approx(done.plays.begin_s.tolist(), abs=1e-9)
        assert twin.window_from is None or (twin.window_from, twin.window) == (
            done.warm_up,
            pytest.approx(done.window[0]),
        )


@pytest.mark.parametrize(("seed", "duration_s", "idle_cap_s"), [(7, 4.0, 3.0), (55, 1.0, 0.25)])
def test_a_request_is_sent_while_others_are_before_the_engine(seed, duration_s, idle_cap_s):
    # the request that opens the window waits at the API server while another one ends, after the window's end
    trace, cost = random_forest(seed), replace(COST, front_request_s=3.0)
    loop = ClosedLoop(3, duration_s=duration_s, warm_up=2, idle_cap_s=idle_cap_s, tree_idle_cap_s=2.0)
    done = closed(trace, loop, cost, **ENGINES["vllm"])
    twin, keys = twin_of(trace, loop, done, cost)
    assert [request for request, _ in twin.arrivals] == keys
    assert [at for _, at in twin.arrivals] == pytest.approx(done.arrival_s.tolist(), abs=1e-9)
    assert [twin.on[play] for play in range(len(twin.on))] == done.plays.lane.tolist()


def opened(done, cost, **how):
    """The open loop on the arrivals of a closed one, to the bit: in milliseconds some of them would be rounded."""
    with mock.patch.object(instance, "Requests", lambda _, *rest: Requests(entered_s(done, cost), *rest)):
        return open_loop(done.trace, cost, **how)


ROUTED = [
    (engine, router)
    for engine, router in product(ENGINES, ROUTERS)
    if OWN.get(router) in (None, ENGINES[engine]["setting"].engine)
]


@pytest.mark.parametrize(("engine", "router"), ROUTED)
@pytest.mark.parametrize("instances", [1, 3])
def test_the_open_loop_serves_the_same_arrivals_in_the_same_time(engine, router, instances):
    for seed in range(5):
        trace = random_forest(seed, sessions=9)
        if not len(trace.dependencies.row):
            continue
        cost, how = FRONT if seed % 2 else COST, {"instances": instances, "router": router, **ENGINES[engine]}
        done = closed(trace, fitting(trace, LOOPS[seed]), cost, **how)
        again = opened(done, cost, **how)
        for name in ("started_s", "first_s", "ended_s", "instance", "hit_blocks", "preemptions"):
            assert np.array_equal(getattr(again, name), getattr(done, name), equal_nan=True), name


@pytest.mark.parametrize(
    ("options", "message"),
    [({"lanes": 1.5}, "--lanes must be a whole number, not 1.5."), ({"lanes": "2"}, "--lanes must be a whole number"),
     ({"seed": "x"}, "--seed must be a whole number"), ({"warm_up": -1}, "--warm-up must be at least 0"),
     ({"start_range": (0.5,)}, "--start-inside takes two shares"), ({"think_scale": -1}, "--think-scale must be from"),
     ({"lanes": 10**9}, "--lanes must be from"),
     ({"lanes": 1000, "warm_up": 1001}, "--warm-up must be at most 1,000 requests"),
     ({"duration_s": 1e9}, "--duration must be at most")],
)  # fmt: skip
def test_bad_options_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        ClosedLoop(**options)


def test_the_loop_is_a_closed_loop():
    with pytest.raises(UsageError, match="loop must be a ClosedLoop, not 'closed'. Example: ClosedLoop"):
        closed_loop(toy("0", "1"), StepCost(1.0), setting=Setting(8), loop="closed")
