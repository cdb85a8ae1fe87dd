"""Requests hit in Dynamo's offline replay what they hit in our vLLM engine, request by request, and we know why.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `dynamo` among them. docs/serving/dynamo.md has the
figures.
"""

import numpy as np
import pytest

from benchmarks.dynamo_replay import PYTHON, Replayed, at_their_times, in_order, replay
from kvtrace import read, toy
from kvtrace.cache.demand import block_demand, parse_schedule
from kvtrace.cache.simulation import Setting, simulate
from kvtrace.formats import targets as clients
from kvtrace.serving.instances import simulate_instances
from tests.cache.test_engine_vllm import vector_trace
from tests.clients.test_vllm_cache import made
from tests.reference import dynamo_router as twin

needs_dynamo = pytest.mark.skipif(not PYTHON.exists(), reason="no environment dynamo in KVTRACE_CLIENTS")
ONE = {"replay_concurrency": 1}


@pytest.fixture(scope="module")
def conversation(shared):
    path = shared / "data/mooncake/conversation_trace.jsonl"
    return read(path), str(path)


def drawn(seed, gap=1):
    """Conversations in small blocks; `gap` stretches their times, so that more or fewer are live at once."""
    rng = np.random.default_rng(seed)
    vector = made(str(seed), rng, rows=60, block_size=int(rng.choice([2, 4, 8, 16])))
    first = vector["timestamp"][0]
    return vector_trace(vector | {"timestamp": [(at - first) * gap for at in vector["timestamp"]]})


def case(trace, folder, capacity, at_once=256, **settings):
    path = folder / f"{len(list(folder.iterdir()))}.jsonl"
    clients.write(trace, path, "dynamo")
    return {"path": str(path), "engine": {"num_gpu_blocks": capacity, "max_num_seqs": at_once}, "settings": settings}


def test_its_requests_are_put_back_in_the_order_of_the_trace():
    #  it says neither row nor name: arrival and lengths tell, and turns where all of them are alike
    trace = toy("0 1", "2", "2", "3 4 5", block_size=4, gap_ms=0)
    said = [
        [-1, 0.0, int(trace.input_length[row]), int(trace.output_length[row]), row % 2, row, 1.0, 2.0, 3.0, 0, row, 0]
        for row in (3, 2, 1, 0)
    ]
    found = in_order(trace, "0", {}, said)
    assert found.worker.tolist() == [0, 1, 0, 1] and found.reused.tolist() == [0, 1, 2, 3]


def test_a_worker_costs_what_waits_there_and_what_lives_there():
    #  blocks of 4 tokens; 0 1 is live on the first worker, and all of its 8 tokens wait to be prefilled
    trace = toy("0 1", "0 1", "2 3", block_size=4)
    asked, (first, second) = twin.jobs(trace), [twin.Worker(10) for _ in range(2)]
    first.enter(0, asked[0])
    assert first.cost(asked[1], twin.Rules()) == 2 + 2 + 2  # what waits, what it brings, and 0 1 once
    assert first.cost(asked[2], twin.Rules()) == 2 + 2 + 4
    assert second.cost(asked[1], twin.Rules()) == 2 + 2
    assert first.cost(asked[1], twin.Rules(waiting=False, shared=False)) == 2 + 8 / 4
    first.admit(0, asked[0])
    assert first.cost(asked[1], twin.Rules()) == 2 + 0 + 2  # both blocks hit,
    assert first.cost(asked[1], twin.Rules(whole=False)) == 2 + 1 + 2  # or all but the one with the last token


@pytest.mark.parametrize("workers", [1, 3])
def test_without_its_rules_the_twin_is_our_kv_aware_router(workers):
    for seed in range(20):
        trace = drawn(seed, gap=7)
        capacity = int(block_demand(trace, "grow").max_blocks.sum()) // 2
        schedule = parse_schedule("open-loop:0.5")
        setting = Setting(capacity, engine="vllm", mode="grow", schedule=schedule)
        ours = simulate_instances(trace, workers, "kv-aware", setting=setting)
        rules = twin.Rules(waiting=False, shared=False, bunched=False, whole=False, drawn=False)
        assert twin.routed(trace, capacity, workers, 0.5, rules) == ours.hit_blocks.sum()


@needs_dynamo
def test_one_request_at_a_time_hits_as_in_our_engine(tmp_path):
    for seed in range(8):
        trace = drawn(seed)
        most = int(block_demand(trace, "grow").max_blocks.max())
        capacities = [most, most + 3, most + 20, most * 60]
        cases = [case(trace, tmp_path, capacity, at_once=1, **ONE) for capacity in capacities]
        for capacity, seen in zip(capacities, replay(trace, cases), strict=True):
            ours = simulate(trace, capacity, engine="vllm", mode="grow").hit_blocks
            assert seen.hit_blocks(trace.block_size).tolist() == ours.tolist(), f"seed {seed}, {capacity} blocks"
            ratio = ours.sum() * trace.block_size / trace.input_length.sum()
            assert seen.summary["prefix_cache_reused_ratio"] == pytest.approx(ratio, abs=1e-12)


@needs_dynamo
@pytest.mark.parametrize(("capacity", "blocks"), [(1_000, 12_878), (10_000, 61_238), (300_000, 105_592)])
def test_the_conversation_trace_hits_the_same_in_both(conversation, capacity, blocks):
    trace, path = conversation
    one = {"path": path, "engine": {"num_gpu_blocks": capacity, "max_num_seqs": 1}, "settings": ONE}
    (seen,) = replay(trace, [one])
    ours = simulate(trace, capacity, engine="vllm", mode="grow").hit_blocks
    assert seen.hit_blocks(512).tolist() == ours.tolist() and ours.sum() == blocks
    assert seen.summary["committed_prefill_tokens"] == trace.input_length.sum() - 512 * blocks


@needs_dynamo
def test_an_idle_worker_takes_what_its_polynomials_say(conversation):
    trace, path = conversation
    one = {"path": path, "engine": {"num_gpu_blocks": 10_000, "max_num_seqs": 1}, "settings": ONE}
    (seen,) = replay(trace, [one])
    new = trace.input_length - seen.reused
    first = [twin.prefill_ms(int(tokens)) for tokens in new]
    assert np.abs(seen.first - seen.admit - first).max() < 1e-3
    for row in range(0, len(trace), 50):  # the n-th token of an output is made over the prompt and n - 1 tokens
        context = range(int(trace.input_length[row]) + 1, int(trace.input_length[row] + trace.output_length[row]))
        took = sum(twin.decode_ms(tokens, 10_000 * 512) for tokens in context)
        assert seen.end[row] - seen.first[row] == pytest.approx(took, abs=1e-3)


def test_requests_hit_at_given_workers_and_times_as_in_the_open_loop_of_one_worker():
    trace = drawn(0, gap=20)
    room, nothing = int(block_demand(trace, "grow").max_blocks.sum()), np.zeros(len(trace), dtype=int)
    times = trace.timestamp, trace.timestamp, parse_schedule("open-loop:5").ends(trace)
    ours, early = at_their_times(trace, Replayed("", {}, nothing, nothing, *times, nothing, nothing, nothing), room)
    wanted = simulate(trace, room, engine="vllm", mode="grow", schedule="open-loop:5")
    assert (ours.tolist(), early) == (wanted.hit_blocks.tolist(), wanted.early_frees) and ours.any()


@needs_dynamo
def test_round_robin_takes_turns_and_hits_as_ours_at_its_times(tmp_path):
    for seed in range(4):
        trace = drawn(seed, gap=20)
        room = int(block_demand(trace, "grow").max_blocks.sum())
        (seen,) = replay(trace, [case(trace, tmp_path, room, num_workers=3)])
        ours, early = at_their_times(trace, seen, room)
        assert seen.worker.tolist() == [row % 3 for row in range(len(trace))]
        assert (seen.hit_blocks(trace.block_size).tolist(), early) == (ours.tolist(), 0)


@needs_dynamo
def test_four_workers_serve_the_conversation_trace_as_ours_at_its_times(conversation):
    trace, path = conversation
    four = {"path": path, "engine": {"num_gpu_blocks": 5_000}, "settings": {"num_workers": 4}}
    one_each = four | {"engine": {"num_gpu_blocks": 5_000, "max_num_seqs": 1}}
    busy, idle = replay(trace, [four, one_each])
    assert busy.worker.tolist() == [row % 4 for row in range(len(trace))] and not busy.readmitted.any()
    ours, early = at_their_times(trace, busy, 5_000)
    assert (busy.hit_blocks(512).tolist(), early) == (ours.tolist(), 0)
    # where each worker has one request at a time the times do not matter
    one = Setting(5_000, engine="vllm", mode="grow")
    alone = simulate_instances(trace, 4, "round-robin", setting=one, schedule="serial")
    assert idle.hit_blocks(512).tolist() == alone.hit_blocks.tolist() and alone.hit_blocks.sum() == 35_265


@needs_dynamo
def test_its_router_sends_a_request_where_the_cost_is_least(tmp_path):
    for seed in range(4):
        trace = drawn(seed, gap=20)
        room = int(block_demand(trace, "grow").max_blocks.sum())
        trace = distinct(trace)
        (seen,) = replay(trace, [case(trace, tmp_path, room, num_workers=3, router_mode="kv_router")])
        fits, _, hits = twin.decisions(trace, seen, room, 3)
        assert fits == len(trace) and seen.hit_blocks(trace.block_size).tolist() == hits


def distinct(trace):
    """The requests that are told apart by arrival and lengths."""
    key = np.stack([trace.timestamp, trace.input_length, trace.output_length], axis=1)
    return trace.select(np.sort(np.unique(key, axis=0, return_index=True)[1]))


@needs_dynamo
def test_its_router_sends_the_conversation_trace_where_the_cost_is_least(conversation):
    trace, path = conversation
    four = {"num_workers": 4, "router_mode": "kv_router"}
    (seen,) = replay(trace, [{"path": path, "engine": {"num_gpu_blocks": 5_000}, "settings": four}])
    fits, ties, hits = twin.decisions(trace, seen, 5_000, 4)
    # two requests are alike, and what outputs need is allocated later there: a few blocks live longer
    assert fits >= len(trace) - 10 and ties > 400
    assert (seen.hit_blocks(512) != np.array(hits)).sum() <= 30
    assert (seen.hit_blocks(512) >= np.array(hits)).all()
