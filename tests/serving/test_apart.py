"""Prefill and decode on different workers: what vLLM says, and laws."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from kvtrace._base.errors import UsageError
from kvtrace.cache.simulation import Setting
from kvtrace.serving.apart import Link, serve_apart
from kvtrace.serving.lanes import ClosedLoop
from kvtrace.serving.schedulers.sglang import SglangScheduler
from kvtrace.serving.simulation import StepCost, open_loop
from kvtrace.serving.workers import Workers
from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.dependencies import COMPLETION, SEQUENCE, dependencies_between
from kvtrace.trace.trace import Trace
from tests.conftest import ROOT
from tests.serving.apart_cases import require_equal
from tests.serving.scheduler_cases import requests_of, trace_of

PATH = ROOT / "tests/vectors/apart_vllm.json"
VECTORS = json.loads(PATH.read_text()) if PATH.exists() else {"version": "", "vectors": []}
COST = StepCost(token_s=1e-4, step_s=5e-3, request_s=1e-5)


def workers(engine, **options):
    return Workers(COST, Setting(100_000, engine=engine), **options)


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=range(len(VECTORS["vectors"])))
def test_the_times_are_those_of_vllm(vector):
    require_equal(vector["case"], vector)


def drawn(seed, gap_ms, rows=20):
    """The first requests of a random trace, so far apart."""
    rng, some = random.Random(seed), []
    while len(some) < rows:
        some = requests_of(rng, 16)
    trace = trace_of({"requests": some[:rows], "block_size": 16})
    columns = replace_columns(trace, timestamp=gap_ms * np.arange(len(trace), dtype=float))
    return Trace.from_columns(columns, block_size=trace.block_size, tail=trace.tail)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("seed", range(4))
def test_without_limits_the_hits_are_those_of_aggregated(engine, seed):
    """One request at a time, an instant link, unlimited caches, and outputs that no prompt goes on from."""
    trace = drawn(seed, 1e6)
    whole = open_loop(trace, COST, setting=Setting(100_000, engine=engine))
    apart = serve_apart(trace, workers(engine), workers(engine))
    assert apart.cached_tokens.tolist() == whole.cached_tokens.tolist()
    assert apart.hit_blocks.tolist() == whole.hit_blocks.tolist()


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_bytes_are_conserved_and_transfers_of_a_link_follow_each_other(engine):
    trace = drawn(7, 3.0)
    run = serve_apart(
        trace, workers(engine, workers=2), workers(engine, workers=3), link=Link(2e6, 0.001), bytes_per_token=1000.0
    )
    missing = trace.input_length - 16 * run.decode_hit_blocks
    sent, received = run.link_bytes
    assert sum(sent) == pytest.approx(sum(received)) == pytest.approx(1000.0 * missing.sum())
    assert run.transfer_tokens == missing.sum() > 0
    for worker in range(2):
        mine = run.instance == worker
        assert sent[worker] / 2e6 <= run.transfer_end_s[mine].max() - run.transfer_begin_s[mine].min() + 1e-9
    assert (run.transfer_end_s >= run.transfer_begin_s + 0.001 - 1e-12).all()
    assert (run.first_s >= run.transfer_end_s - 1e-12).all()
    assert (run.ended_s >= run.first_s - 1e-12).all()


def test_a_slower_link_delays_the_first_token_and_not_the_prefill():
    trace = toy("0 1 2 3", block_size=64)
    fast, slow = (
        serve_apart(trace, workers("sglang"), workers("sglang"), link=Link(rate), bytes_per_token=1000.0)
        for rate in (1e9, 1e6)
    )
    assert fast.prefilled_s.tolist() == slow.prefilled_s.tolist()
    assert slow.ttft_s[0] - fast.ttft_s[0] == pytest.approx(256e3 / 1e6 - 256e3 / 1e9)


def test_sglang_sends_chunks_while_it_computes():
    trace = toy("0 1 2 3", block_size=64)
    scheduler = SglangScheduler(64, disable_overlap_schedule=True)
    ends = []
    for chunk in (64, 256):
        side = workers("sglang", scheduler=replace(scheduler, chunked_prefill_size=chunk))
        run = serve_apart(trace, side, side, link=Link(8e6), bytes_per_token=1000.0)
        ends.append(run.transfer_end_s[0] - run.prefilled_s[0])
    # a chunk takes 8 ms on the link, and 6.4 ms to compute: three of four are nearly gone when the last one is computed
    assert ends[0] < ends[1] == pytest.approx(0.032)


def test_a_decode_worker_computes_short_prompts_itself():
    trace = toy("0", "1 2 3 4", block_size=16, gap_ms=1e4)
    run = serve_apart(trace, workers("vllm"), workers("vllm"), max_local_prefill_length=16)
    assert run.instance.tolist() == [-1, 0]
    assert np.isnan(run.transfer_end_s).tolist() == [True, False]
    assert np.isfinite(run.ended_s).all()


def test_sglang_computes_a_prompt_when_the_decode_worker_has_room():
    """The reserve of 512 tokens for each active request leaves room for one prompt at a time."""
    trace = toy("0 1", "2 3", block_size=64, gap_ms=1.0)
    trace = Trace.from_columns(replace_columns(trace, output_length=np.array([20, 20])), block_size=64, tail=trace.tail)
    small = replace(workers("sglang"), setting=Setting(12, engine="sglang"))
    run = serve_apart(trace, workers("sglang"), small)
    assert run.started_s[1] >= run.ended_s[0]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_closed_loop_keeps_so_many_requests_at_once(engine):
    trace = drawn(3, 0.0, rows=30)
    waits = dependencies_between(
        np.array([29]), np.array([28]), np.array([COMPLETION]), np.array([SEQUENCE]), np.zeros(1), 30
    )
    columns = replace_columns(trace, dependencies=waits)
    trace = Trace.from_columns(columns, block_size=trace.block_size, tail=trace.tail)
    run = serve_apart(trace, workers(engine), workers(engine), loop=ClosedLoop(4))
    begun, ended = run.arrival_s, run.ended_s
    at_once = [int(((begun <= at) & (ended > at)).sum()) for at in begun]
    assert max(at_once) == 4
    assert np.isfinite(ended).all()


def test_what_is_not_modelled_is_refused():
    with pytest.raises(UsageError, match="engine reference is not modelled"):
        Workers(COST, Setting(10, engine="reference"))
    with pytest.raises(UsageError, match="compute no prompts"):
        serve_apart(toy("0"), workers("sglang"), workers("sglang"), max_local_prefill_length=5)
    with pytest.raises(UsageError, match="one engine"):
        serve_apart(toy("0"), workers("sglang"), workers("vllm"))
