"""The router sglang-cache-aware: vectors of SGLang's gateway, its plain twin, and its options."""

import json
import random

import numpy as np
import pytest

from kvtrace._base.errors import UsageError
from kvtrace.cache.simulation import Setting
from kvtrace.serving.fleet_schedule import FleetChange, FleetSchedule
from kvtrace.serving.instances import simulate_instances
from kvtrace.serving.simulation import StepCost, open_loop
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace
from tests.conftest import ROOT, drawn
from tests.reference.sglang_gateway import Gateway
from tests.serving.gateway_cases import gateway_case, served

VECTORS = json.loads((ROOT / "tests/vectors/sglang_gateway.json").read_text())


@pytest.mark.parametrize("number", range(len(VECTORS["vectors"])))
def test_the_twin_sends_requests_where_the_gateway_sends_them(number):
    vector = VECTORS["vectors"][number]
    assert served(vector["case"])[0] == vector["workers"]


def timed(case):
    """The trace of a case whose events are a second apart; a request ends after a second for each output token."""
    sent = [at for at, event in enumerate(case["events"]) if event[0] == "send"]
    ends = {event[1]: at for at, event in enumerate(case["events"]) if event[0] == "end"}
    events = [case["events"][at] for at in sent]
    ids = [event[3] for event in events]
    columns = Columns(
        1000.0 * (np.array(sent) - sent[0]), np.array([len(event[2]) for event in events]),
        np.array([ends.get(event[1], 10_000) - at for event, at in zip(events, sent, strict=True)]),
        np.concatenate(ids), np.cumsum([0, *map(len, ids)]),
    )  # fmt: skip
    return Trace.from_columns(columns, block_size=case["block_size"], tail="kept")


def twin(case, evicts, drains=None):
    """The workers of the twin; it evicts before each request."""
    gateway, where, running, sent = Gateway(range(case["workers"]), **case["options"]), {}, [], []
    first = next(at for at, event in enumerate(case["events"]) if event[0] == "send")
    for at, (kind, name, *values) in enumerate([*event, None][:4] for event in case["events"]):
        if kind == "end":
            gateway.load[where[name]] -= 1
        elif kind == "send":
            if evicts:
                gateway.evict()
            if drains and at - first >= drains and 0 in gateway.workers:
                gateway.add(case["workers"])
                gateway.remove(0)
            where[name] = gateway.send(values[0])
            running.append(name)
            sent.append(where[name])
    return sent


def options_of(case, evicts):
    options = case["options"] | {"eviction_interval_secs": int(evicts), "characters_per_token": 1}
    return ",".join(f"{name}={value}" for name, value in options.items())


@pytest.mark.parametrize("evicts", [False, True])
@pytest.mark.parametrize("drains", [None, 20])
def test_requests_go_where_the_twin_sends_them(evicts, drains):
    for seed in range(drawn(200)):
        case = gateway_case(random.Random(seed), evicts)
        fleet = None if drains is None else FleetSchedule((FleetChange(drains, replace=(0,)),))
        done = simulate_instances(
            timed(case), case["workers"], "sglang-cache-aware", setting=Setting(100_000), schedule="open-loop:1000",
            router_options=options_of(case, evicts), fleet=fleet,
        )  # fmt: skip
        assert done.instance.tolist() == twin(case, evicts, drains), f"seed {seed}"


def test_a_match_above_the_share_goes_to_its_maker_and_others_to_the_first_idle_one():
    trace = toy("0 1 2 3", "4 5 6 7", "0 1 8 9", "0 10 11 12", "4 5 6 13", gap_ms=1.0)
    run = open_loop(trace, StepCost(token_s=1.0), setting=Setting(30), instances=2, router="sglang-cache-aware")
    #  two of four blocks match the first prompt; then one of four does not, and the first has more requests in flight
    assert run.instance.tolist() == [0, 1, 0, 1, 1]
    strict = open_loop(
        trace, StepCost(token_s=1.0), setting=Setting(30), instances=2, router="sglang-cache-aware",
        router_options="cache_threshold=0.8",
    )  # fmt: skip
    assert strict.instance.tolist() == [0, 1, 0, 1, 0]


def test_wrong_options_are_refused():
    trace, setting = toy("0 1"), Setting(4)
    for options, message in (
        ("cache_treshold=0.5", "is not an option of SGLang's gateway"),
        ("cache_threshold=-1", "is not a number|at least 0"),
        ("characters_per_token=0", "above 0"),
    ):
        with pytest.raises(UsageError, match=message):
            simulate_instances(trace, 2, "sglang-cache-aware", setting=setting, router_options=options)
    with pytest.raises(UsageError, match="at most 64 instances"):
        simulate_instances(trace, 65, "sglang-cache-aware", setting=setting)
    with pytest.raises(UsageError, match="round-robin has none"):
        simulate_instances(trace, 2, "round-robin", setting=setting, router_options="cache_threshold=0.5")
