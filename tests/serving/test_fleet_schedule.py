"""Fleets that change by a schedule: its file, who takes requests, and what the changes cost."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import InputError, UsageError
from kvtrace.cache.simulation import Setting, simulate
from kvtrace.cli import run
from kvtrace.serving.fleet_schedule import FleetChange, FleetSchedule, read_fleet
from kvtrace.serving.instances import simulate_instances
from kvtrace.serving.lanes import ClosedLoop
from kvtrace.serving.routers import OWN, ROUTERS, TIMED
from kvtrace.serving.run import simulate_all
from kvtrace.serving.simulation import StepCost, closed_loop, open_loop
from kvtrace.trace.building import toy
from tests.reference.fleet import fleet as slow
from tests.reference.fleet import sticky
from tests.serving.session_forests import random_forest
from tests.strategies import traces

routers = st.sampled_from(sorted(set(ROUTERS) - set(TIMED)))
timed = st.sampled_from(sorted(set(ROUTERS) - set(OWN)))
COST = StepCost(token_s=0.0005, step_s=0.002)


def setting(trace, extra=4, **options):
    return Setting(max(1, int(trace.prompt_blocks.max(initial=1)) + extra), **options)


@st.composite
def schedules(draw, count, length_s):
    """Changes within the length of a trace, of a fleet that begins with `count` instances."""
    running, changes, number = list(range(count)), [], count
    for at in sorted(draw(st.lists(st.integers(0, 8), max_size=5))):
        start = draw(st.integers(0, 2))
        leaving = draw(st.lists(st.sampled_from(running), unique=True, max_size=len(running) - 1))
        startup = draw(st.sampled_from([0.0, 0.001, length_s / 3]))
        changes.append(FleetChange(at * length_s / 8, start, tuple(leaving), startup_s=startup))
        running = [one for one in running if one not in leaving]
        number += start
        if startup == 0:
            running += range(number - start, number)
    return FleetSchedule(tuple(changes))


def length_s(trace):
    return float(trace.timestamp[-1]) / 1000 if len(trace) else 0.0


# -- laws ------------------------------------------------------------------------------------------------------------


@given(st.data(), traces(outputs=False), st.integers(1, 3), routers, st.sampled_from(["serial", "open-loop:3"]))
def test_a_changing_fleet_does_what_its_twin_does(data, trace, count, router, schedule):
    fleet, chosen = data.draw(schedules(count, length_s(trace))), setting(trace, 2)
    done = simulate_instances(trace, count, router, setting=chosen, schedule=schedule, fleet=fleet)
    spans = fleet.spans(count)
    pairs = list(zip(spans.takes_s.tolist(), spans.drains_s.tolist(), strict=True))
    hits, instances = slow(trace, count, router, chosen.capacity, None if schedule == "serial" else 3, pairs)
    assert done.instance.tolist() == instances and done.hit_blocks.tolist() == hits


@given(st.data(), traces(), st.integers(1, 3), timed, st.sampled_from(["vllm", "sglang", "dynamo", "reference"]))
def test_in_time_each_request_is_served_once_by_an_instance_that_takes_requests(data, trace, count, router, engine):
    assume(engine != "sglang" or 8192 % trace.block_size == 0)  # pages of its chunks
    fleet, options = data.draw(schedules(count, length_s(trace))), {"router": router, "instances": count}
    done = open_loop(trace, COST, setting=setting(trace, 4, engine=engine), fleet=fleet, **options)
    spans, at = fleet.spans(count), trace.timestamp / 1000
    served = ~np.isnan(done.ended_s)
    assert ((done.instance >= 0) == served).all()
    chosen = done.instance[served]
    assert (spans.takes_s[chosen] <= at[served]).all() and (at[served] < spans.drains_s[chosen]).all()
    assert sum(row["requests"] for row in done.to_dict()["fleet"]["phases"]) == len(trace)


@given(traces(), st.integers(1, 3), timed, st.sampled_from(["vllm", "sglang", "dynamo"]))
def test_a_schedule_without_effect_equals_none(trace, count, router, engine):
    assume(engine != "sglang" or 8192 % trace.block_size == 0)
    late = FleetSchedule((FleetChange(length_s(trace) + 1e6, 2, (0,)),))
    options = {"setting": setting(trace, 4, engine=engine), "router": router, "instances": count}
    fixed, changing = open_loop(trace, COST, **options), open_loop(trace, COST, **options, fleet=late)
    for name in ("instance", "hit_blocks", "started_s", "first_s", "ended_s"):
        assert np.array_equal(getattr(fixed, name), getattr(changing, name), equal_nan=True), name


@given(traces(outputs=False), routers, st.integers(1, 20))
def test_an_instance_replaced_while_nothing_runs_is_a_cache_that_was_reset(trace, router, part):
    cut = len(trace) * part // 20
    at = float(trace.timestamp[cut]) / 1000 if cut < len(trace) else length_s(trace) + 1
    cut = int((trace.timestamp / 1000 < at).sum())
    fleet = FleetSchedule((FleetChange(at, replace=(0,)),))
    done = simulate_instances(trace, 1, router, setting=setting(trace), schedule="serial", fleet=fleet)
    alone = [simulate(piece, setting(trace).capacity) for piece in (trace[:cut], trace[cut:]) if len(piece)]
    assert done.hit_blocks.tolist() == [hit for piece in alone for hit in piece.hit_blocks.tolist()]


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.sets(st.integers(0, 9), min_size=1))
def test_only_keys_of_a_draining_instance_move_and_only_to_a_starting_one(key, first, taking):
    taking = sorted(taking)
    before = sticky(key, first, taking)
    after = sticky(key, first, [*taking, 10])
    assert after in (before, 10)
    if len(taking) > 1:
        gone = [number for number in taking if number != taking[0]]
        assert before == taking[0] or sticky(key, first, gone) == before
    assert sticky(key, first, list(range(first))) == key % first


def test_a_new_instance_gets_its_share_of_the_keys():
    moved = sum(sticky(key * 7919, 4, [0, 1, 2, 3, 4]) == 4 for key in range(2_000))
    assert 340 < moved < 460


# -- by hand ---------------------------------------------------------------------------------------------------------


def test_a_replaced_instance_finishes_what_it_has_and_the_new_one_is_cold():
    trace = toy("0 1", "0 1", "0 1", "0 1", gap_ms=1000.0)
    fleet = FleetSchedule((FleetChange(1.5, replace=(0,), startup_s=0.5),))
    done = simulate_instances(trace, 1, setting=Setting(4), fleet=fleet)
    assert done.instance.tolist() == [0, 0, 1, 1] and done.hit_blocks.tolist() == [0, 2, 0, 2]
    phases = done.to_dict()["fleet"]["phases"]
    assert [(row["start_s"], row["requests"], row["hit_blocks"]) for row in phases] == [(0.0, 2, 2), (2.0, 2, 2)]


def test_turns_keep_their_place_in_the_list():
    #  0 1 2 | 2 drains: place 3 of two is the second | 3 starts: place 2 of three is the third
    trace = toy(*["0"] * 7, gap_ms=1000.0)
    fleet = FleetSchedule((FleetChange(2.5, drain=(2,)), FleetChange(3.5, start=1)))
    done = simulate_instances(trace, 3, setting=Setting(4), fleet=fleet)
    assert done.instance.tolist() == [0, 1, 2, 1, 3, 0, 1]


def test_instance_hours_count_start_up_and_the_last_request():
    trace = toy("0", "1", "2", gap_ms=3_600_000.0)
    fleet = FleetSchedule((FleetChange(3600.0, start=1, startup_s=1800.0), FleetChange(5400.0, drain=(0,))))
    values = simulate_instances(trace, 1, setting=Setting(4), fleet=fleet).to_dict()["fleet"]
    assert values["instance_hours"] == 1.5 + 1.0 and (values["started"], values["drained"]) == (1, 1)


def test_each_setting_runs_with_a_fixed_fleet_and_then_with_the_changes():
    trace = toy("0 1", "0 1", "0 1", gap_ms=1000.0)
    fleet = FleetSchedule((FleetChange(1.5, replace=(0,)),))
    done = simulate_all(trace, [4], instances=1, fleet=fleet, gap=False)
    assert [run.to_dict()["fleet"]["kind"] for run in done.runs] == ["fixed", "changing"]
    assert [run.hits.hit_blocks for run in done.runs] == [4, 2]


@pytest.mark.parametrize("router", ["round-robin", "kv-aware", "dynamo", "sticky"])
def test_a_closed_loop_runs_on_a_changing_fleet(router):
    trace, loop = random_forest(3, sessions=12), ClosedLoop(lanes=3)
    options = {"loop": loop, "setting": Setting(2_000, engine="vllm"), "instances": 2, "router": router}
    fleet = FleetSchedule((FleetChange(0.5, replace=(0,)), FleetChange(1.0, start=1), FleetChange(4.0, drain=(1,))))
    done = closed_loop(trace, COST, fleet=fleet, **options)
    spans = fleet.spans(2)
    assert not np.isnan(done.ended_s).any() and len(done.ended_s) == len(trace)
    assert (spans.takes_s[done.instance] <= done.arrival_s).all()
    assert (done.arrival_s < spans.drains_s[done.instance]).all()
    late = FleetSchedule((FleetChange(1e6, start=2),))
    fixed, same = closed_loop(trace, COST, **options), closed_loop(trace, COST, fleet=late, **options)
    assert fixed.row.tolist() == same.row.tolist() and fixed.ended_s.tolist() == same.ended_s.tolist()
    front = replace(COST, front_request_s=0.1)
    with pytest.raises(UsageError, match="times of API servers"):
        closed_loop(trace, front, fleet=fleet, **options)


# -- the file --------------------------------------------------------------------------------------------------------


def written(tmp_path, text, name="fleet.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_csv_and_json_lines_say_the_same(tmp_path):
    csv = read_fleet(written(tmp_path, "time,start,drain,replace,startup\n10m,2,,,90s\n00:20,,0 1,,\n1800,,,2,1m\n"))
    rows = [
        {"time": "10m", "start": 2, "startup": "90s"}, {"time": 1200, "drain": [0, 1]},
        {"time": "00:30:00", "replace": 2, "startup": 60},
    ]  # fmt: skip
    other = read_fleet(written(tmp_path, "\n".join(map(json.dumps, rows)), "fleet.jsonl"))
    assert csv.spans(3).takes_s.tolist() == other.spans(3).takes_s.tolist() == [0.0, 0.0, 0.0, 690.0, 690.0, 1860.0]
    assert csv.spans(3).drains_s.tolist() == other.spans(3).drains_s.tolist()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no changes"),
        ("start\n1\n", "fleet.csv:1: the first line must name the columns"),
        ("time,start\n10m\n", "fleet.csv:2: 1 values for 2 columns"),
        ("time,start\nlater,1\n", "fleet.csv:2: the time is not valid"),
        ("time,start\n10m,-1\n", "fleet.csv:2: start, drain and replace take whole numbers"),
        ("time,start\n10m,1.5\n", "fleet.csv:2: start, drain and replace take whole numbers"),
        ("time,start\n10m,\n", "fleet.csv:2: a change has a time"),
        ("time,stop\n10m,1\n", "fleet.csv:2: a change has a time"),
        ("time,start\n10m,1\n5m,1\n", "fleet.csv:3: the time is before"),
        ('{"time": 5}\n', "fleet.csv:1: a change has a time"),
        ('{"time": 5, "drain": [true]}\n', "fleet.csv:1: start, drain and replace take whole numbers"),
    ],
)
def test_errors_name_the_line(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_fleet(written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time,drain\n10m,4\n", "fleet.csv:2: there is no instance 4. The fleet has had instances 0 to 1."),
        ("time,drain\n10m,0\n11m,0\n", "fleet.csv:3: instance 0 drains already"),
        ("time,drain\n10m,0 1\n", "At 600 s no instance of the fleet takes requests"),
        ("time,start\n10m,2048\n", "fleet.csv:2: a fleet can have at most 2,048 instances"),
    ],
)
def test_a_schedule_fits_its_fleet(tmp_path, text, message):
    with pytest.raises(UsageError, match=message):
        read_fleet(written(tmp_path, text)).spans(2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--fleet needs --instances"),
        (["--instances", "2", "--engine", "sglang", "--router", "sglang-total-tokens", "--gpu", "h100",
          "--model", "llama-3.1-8b"], "the ranks of one server"),
        (["--gpu", "h100", "--model", "llama-3.1-8b", "--data-parallel-size", "2"], "the ranks of one server"),
    ],
)  # fmt: skip
def test_what_cannot_change_is_refused(tmp_path, capsys, options, message):
    trace, fleet = tmp_path / "trace.jsonl", written(tmp_path, "time,start\n1,1\n")
    kvtrace.write(toy("0 1", "0 1", block_size=16), trace)
    assert run(["simulate", str(trace), "--capacity", "8", "--fleet", str(fleet), *options]) != 0
    assert message in capsys.readouterr().err


def test_the_command_says_what_a_rollout_costs(tmp_path, capsys):
    trace, fleet = tmp_path / "trace.jsonl", written(tmp_path, "time,replace\n1.5,0\n")
    kvtrace.write(toy("0 1", "0 1", "0 1", "0 1", block_size=16, gap_ms=1000.0), trace)
    command = ["simulate", str(trace), "--capacity", "8", "--instances", "1", "--fleet", str(fleet)]
    assert run([*command, "--json"]) == 0
    fixed, changing = json.loads(capsys.readouterr().out)["results"]
    assert (fixed["fleet"]["kind"], changing["fleet"]["kind"]) == ("fixed", "changing")
    assert changing["difference"]["block_hit_rate"] == changing["block_hit_rate"] - fixed["block_hit_rate"] < 0
    assert run(command) == 0
    assert "The changes cost 32 hit tokens" in " ".join(capsys.readouterr().out.split())
    assert run([*command, "--csv"]) == 0
