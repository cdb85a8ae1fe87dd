"""Many instances behind a router: who is sent where, and what hits there."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import UsageError
from kvtrace.cache.demand import parse_schedule
from kvtrace.cache.simulation import Setting, simulate
from kvtrace.cli import run
from kvtrace.serving.instances import OVERLAP, simulate_instances
from kvtrace.serving.routers import ROUTERS, TIMED
from kvtrace.trace.building import toy
from tests.reference.fleet import fleet as slow
from tests.strategies import traces

routers = st.sampled_from(sorted(set(ROUTERS) - set(TIMED)))


def setting(trace, extra=0, **options):
    return Setting(max(1, int(trace.prompt_blocks.max(initial=1)) + extra), **options)


# -- laws ------------------------------------------------------------------------------------------------------------


@given(traces(outputs=False), st.integers(1, 4), routers, st.integers(0, 6), st.sampled_from(["serial", "open-loop:3"]))
def test_a_fleet_does_what_its_twin_does(trace, count, router, extra, schedule):
    chosen = setting(trace, extra)
    done = simulate_instances(trace, count, router, setting=chosen, schedule=schedule)
    hits, instances = slow(trace, count, router, chosen.capacity, 3 if schedule != "serial" else None)
    assert done.instance.tolist() == instances and done.hit_blocks.tolist() == hits


@given(
    traces(outputs=False), routers, st.sampled_from(["reference", "vllm"]), st.sampled_from(["serial", "open-loop:30"])
)
def test_one_instance_is_the_cache_itself(trace, router, engine, schedule):
    capacity = int(trace.prompt_blocks.max(initial=1)) + 4
    alone = simulate(trace, capacity, engine=engine, schedule=schedule)
    done = simulate_instances(trace, 1, router, setting=setting(trace, 4, engine=engine), schedule=schedule)
    assert done.hit_blocks.tolist() == alone.hit_blocks.tolist() and done.evictions == alone.evictions


ENGINES = ["reference", "vllm", "nano-vllm", "sglang", "tensorrt-llm", "lmcache"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mode", ["block", "token"])
def test_a_request_goes_where_its_engine_would_hit_most(engine, mode):
    """What an engine says would hit is what hits, were the request served there."""

    @settings(max_examples=25, deadline=None)
    @given(traces(outputs=False))
    def holds(trace):
        assume(engine != "lmcache" or 256 % trace.block_size == 0)  # its chunks hold 256 tokens
        capacity = max(256, int(trace.prompt_blocks.max(initial=1)))
        one = Setting(capacity, engine=engine, mode=mode)
        found = simulate_instances(trace, 2, "overlap", setting=one, schedule="serial").instance
        for row in range(len(trace)):
            hits = []
            for number in range(2):
                rows = [*np.flatnonzero(found[:row] == number), row]
                hits.append(simulate(trace[np.array(rows)], capacity, engine=engine, mode=mode).hit_blocks[-1])
            assert found[row] == int(np.argmax(hits))

    holds()


def test_lmcache_is_asked_by_its_chunks():
    #  blocks of 128 tokens: a chunk of 256 is two of them; the third goes where two chunks hit, not one
    trace = toy("0 1 2 3", "4 5 6 7", "4 5 6 7", "0 1 2 9", block_size=128)
    done = simulate_instances(trace, 2, "overlap", setting=Setting(4, engine="lmcache"))
    assert done.instance.tolist() == [0, 0, 0, 0] and done.hit_blocks.tolist() == [0, 0, 4, 0]
    roomy = simulate_instances(trace, 2, "overlap", setting=Setting(8, engine="lmcache"))
    assert roomy.hit_blocks.tolist() == [0, 0, 4, 2]


@given(traces(outputs=False), st.integers(1, 5), routers)
def test_every_request_goes_to_one_instance_and_all_are_counted(trace, count, router):
    done = simulate_instances(trace, count, router, setting=setting(trace))
    assert ((done.instance >= 0) & (done.instance < count)).all()
    assert sum(load["requests"] for load in done.loads) == len(trace)
    assert sum(load["hit_blocks"] for load in done.loads) == done.hits.hit_blocks
    assert 1 - 1e-9 <= done.imbalance <= count + 1e-9


@given(traces(outputs=False), st.integers(1, 4), st.sampled_from(["round-robin", "sticky"]))
def test_an_instance_does_what_a_cache_does_with_its_requests(trace, count, router):
    done = simulate_instances(trace, count, router, setting=setting(trace, 2), schedule="serial")
    for number in range(count):
        rows = np.flatnonzero(done.instance == number)
        if len(rows):
            alone = simulate(trace[rows], setting(trace, 2).capacity)
            assert done.hit_blocks[rows].tolist() == alone.hit_blocks.tolist()


# -- routers, by hand ------------------------------------------------------------------------------------------------


def test_pure_overlap_sends_all_that_share_a_block_to_one_instance():
    #  all begin with block 0: the first instance has it from the first request on
    done = simulate_instances(toy("0 1", "0 2", "0 3", "0 4"), 3, "overlap", setting=Setting(9))
    assert done.instance.tolist() == [0, 0, 0, 0] and done.imbalance == 3


def test_a_sticky_router_keeps_a_session_together_and_else_goes_by_the_second_block():
    trace = toy("0 1", "0 2", "0 1 3", "0 2 4", "0 1")
    done = simulate_instances(trace, 2, "sticky", setting=Setting(9)).instance
    assert done[0] == done[2] == done[4] and done[1] == done[3]


def test_the_least_loaded_takes_turns_while_nobody_is_busy():
    done = simulate_instances(toy("0", "1", "2", "3"), 3, "least-loaded", setting=Setting(2))
    assert done.instance.tolist() == [0, 1, 2, 0]


def test_lmetric_leaves_a_busy_instance_that_has_the_prefix():
    #  block size 1; instance 0 has 0 and is busy with two requests: 1 new token x 3 > 2 new tokens x 1
    trace = toy("0 1", "0 2", "0 3", gap_ms=1.0)
    done = simulate_instances(trace, 2, "lmetric", setting=Setting(9, schedule=parse_schedule("open-loop:1000")))
    assert done.instance.tolist() == [0, 0, 1] or done.instance.tolist() == [0, 1, 0]


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "router", "changed", "message"),
    [
        (0, "sticky", {}, "--instances must be from 1 to 2,048"),
        (2049, "sticky", {}, "--instances must be from"),
        (2, "nobody", {}, "'nobody' is not a router. Try round-robin"),
        (2, "sticky", {"schedule": parse_schedule("concurrency:3")}, "supports --schedule serial and open-loop"),
        (2, "sticky", {"policy": "belady"}, "does not support the upper bound belady"),
    ],
)
def test_what_no_fleet_does_is_refused(count, router, changed, message):
    with pytest.raises(UsageError, match=message):
        simulate_instances(toy("0 1", "0 2"), count, router, setting=Setting(4, **changed))


# -- the command, and a real trace -----------------------------------------------------------------------------------


def test_the_command_prints_loads_and_imbalance(tmp_path, capsys):
    kvtrace.write(toy("0 1", "0 2", "0 1", block_size=16), tmp_path / "t.jsonl")
    words = [str(tmp_path / "t.jsonl"), "--capacity", "4", "--instances", "2", "--no-gap", "-q"]
    assert run(["simulate", *words, "--router", "overlap", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["instances"] == 2 and result["router"] == "overlap" and result["imbalance"] == 2
    assert [load["requests"] for load in result["loads"]] == [3, 0]
    assert run(["simulate", *words]) == 0
    assert "round-robin" in capsys.readouterr().out
    assert run(["simulate", *words, "--router", "nobody"]) == 2


def test_the_command_serves_a_trace_in_time(tmp_path, capsys):
    kvtrace.write(toy("0 1", "0 2", "0 1", block_size=512), tmp_path / "t.jsonl")
    model = Path(__file__).parents[1] / "data/models/llama-3.1-8b.json"
    words = ["simulate", str(tmp_path / "t.jsonl"), "--gpu", "a100", "--instances", "2", "-q"]
    assert run([*words, "--model-config", str(model), "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["served"] == 3 and 0 < result["ttft_s"]["p50"] < 1 and result["capacity"] > 800
    assert run([*words, "--model-config", str(model)]) == 0
    assert "TTFT p50" in capsys.readouterr().out
    assert run([*words, "--model-config", str(model), "--csv"]) == 0
    assert "ttft_s_p90" in capsys.readouterr().out.splitlines()[0]
    assert run(words) == 2 and "needs --model." in capsys.readouterr().err


@pytest.mark.parametrize(("router", "hits"), [("round-robin", 35049), ("sticky", 83021), ("overlap", 32260)])
def test_four_instances_on_a_real_trace(shared, router, hits):
    trace = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")
    assert simulate_instances(trace, 4, router, setting=Setting(5000), schedule="serial").hits.hit_blocks == hits


@pytest.mark.parametrize(("router", "hits"), [("kv-aware", 60103), ("lmetric", 82367)])
def test_routers_that_weigh_load_use_all_instances_of_a_real_trace_by_default(shared, router, hits):
    trace = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")
    done = simulate_instances(trace, 4, router, setting=Setting(5000))
    assert done.hits.hit_blocks == hits and done.imbalance < 1.1 and done.warning is None


# -- the default schedule --------------------------------------------------------------------------------------------


def shared_prompt(requests=8):
    """Requests that begin with the same block, 2 ms apart; each has one output token."""
    return toy(*(f"0 {block}" for block in range(1, requests + 1)), block_size=16, gap_ms=2.0)


@pytest.mark.parametrize("router", ["kv-aware", "lmetric", "least-loaded"])
def test_requests_overlap_by_default_so_that_a_router_sees_the_load(router):
    alone, overlapping = (
        simulate_instances(shared_prompt(), 4, router, setting=Setting(9), schedule=one) for one in ("serial", None)
    )
    assert overlapping.setting.schedule == parse_schedule(OVERLAP)
    assert max(load["requests"] for load in overlapping.loads) == 2
    assert (alone.warning is None) == (router == "least-loaded") and overlapping.warning is None


def test_a_schedule_of_the_setting_stays():
    one = Setting(9, schedule=parse_schedule("open-loop:1"))
    assert simulate_instances(shared_prompt(), 2, setting=one).setting == one


def test_the_command_has_the_same_default_and_warns_about_an_uneven_load(tmp_path, capsys):
    kvtrace.write(shared_prompt(), tmp_path / "t.jsonl")
    words = ["simulate", str(tmp_path / "t.jsonl"), "--capacity", "9", "--instances", "4", "--json"]
    assert run([*words, "--router", "kv-aware"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["results"][0]["schedule"] == OVERLAP and "warning" not in printed.err
    assert run([*words, "--router", "kv-aware,overlap", "--schedule", "serial"]) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert len(warnings) == 2 and "kv-aware sent 8 of 8 requests to one of 4 instances." in warnings[0]
    assert run([*words, "--router", "overlap", "-q"]) == 0 and not capsys.readouterr().err
