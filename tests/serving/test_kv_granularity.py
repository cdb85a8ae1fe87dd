"""When a KV cache is sent, at the end of a prompt, chunk by chunk or layer by layer: laws, and what is refused."""

from itertools import pairwise

import numpy as np
import pytest

from kvtrace._base.errors import UsageError
from kvtrace.cache.simulation import Setting
from kvtrace.serving.apart import Link, serve_apart
from kvtrace.serving.disaggregation import Disaggregation
from kvtrace.serving.schedulers.sglang import SglangScheduler
from kvtrace.serving.schedulers.vllm import VllmScheduler
from kvtrace.serving.simulation import DynamoCost, StepCost, open_loop
from kvtrace.serving.workers import Workers
from kvtrace.trace.building import toy
from tests.serving.test_apart import drawn

COST = StepCost(token_s=1e-4)
ENGINES = ["vllm", "sglang"]
BYTE_S = 1e-8  # a token's 1,000 bytes take a tenth of the time that it is computed


def side(engine, chunk=64, **options):
    scheduler = (
        VllmScheduler(max_num_batched_tokens=chunk)
        if engine == "vllm"
        else SglangScheduler(chunk, disable_overlap_schedule=True)
    )
    return Workers(COST, Setting(100_000, engine=engine), scheduler, **options)


def run(trace, engine, granularity=None, layers=None, byte_s=BYTE_S, latency_s=0.0, **options):
    both = [side(engine, **options), side(engine, **options)]
    link = Link(1 / byte_s, latency_s)
    return serve_apart(trace, *both, link=link, bytes_per_token=1000.0, granularity=granularity, layers=layers)


def handoffs(done):
    return done.transfer_end_s - done.prefilled_s


@pytest.mark.parametrize("engine", ENGINES)
def test_the_bytes_are_equal_and_no_handoff_of_a_lone_request_is_later(engine):
    trace = drawn(7, 1e5)
    runs = [
        run(trace, engine, "prompt"),
        run(trace, engine, "chunk"),
        *(run(trace, engine, "layer", n) for n in (2, 8)),
    ]
    for before, after in pairwise(runs):
        assert sum(after.link_bytes[0]) == pytest.approx(sum(before.link_bytes[0]), rel=1e-12)
        assert (handoffs(after) <= handoffs(before) + 1e-12).all()
        assert after.prefilled_s.tolist() == before.prefilled_s.tolist()
    assert handoffs(runs[-1]).sum() < handoffs(runs[0]).sum() / 4


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("layers", [1, 4, 1000])
def test_with_a_link_faster_than_compute_the_handoff_is_the_time_of_a_layer(engine, layers):
    trace = toy("0 1 2 3", block_size=64)  # four chunks
    done = run(trace, engine, "layer", layers, latency_s=0.003)
    assert handoffs(done)[0] == pytest.approx(64_000 * BYTE_S / layers + 0.003)


@pytest.mark.parametrize("engine", ENGINES)
def test_with_a_link_slower_than_compute_the_transfer_begins_with_the_first_layer(engine):
    trace, slow = toy("0 1 2 3", block_size=64), 1e-6
    done = run(trace, engine, "layer", 4, byte_s=slow)
    begin = done.started_s[0] + 64 * 1e-4 / 4
    assert done.transfer_begin_s[0] == pytest.approx(begin)
    assert done.transfer_end_s[0] == pytest.approx(begin + 256_000 * slow)


@pytest.mark.parametrize("engine", ENGINES)
def test_requests_of_a_step_share_the_link_layer_by_layer(engine):
    trace = toy("0", "1", block_size=64, gap_ms=0.0)
    done = run(trace, engine, "layer", 100, chunk=128)
    assert handoffs(done) == pytest.approx([640e-6 / 100, 1280e-6 / 100], rel=1e-6)


def test_one_layer_is_a_chunk():
    trace = drawn(3, 5.0)
    for engine in ENGINES:
        chunk, layer = run(trace, engine, "chunk"), run(trace, engine, "layer", 1)
        for name in ("prefilled_s", "transfer_end_s", "first_s", "ended_s"):
            np.testing.assert_allclose(getattr(layer, name), getattr(chunk, name), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("engine", "default"), [("vllm", "prompt"), ("sglang", "chunk")])
def test_the_default_is_the_engines(engine, default):
    trace = drawn(5, 3.0)
    assert run(trace, engine).ended_s.tolist() == run(trace, engine, default).ended_s.tolist()


def test_with_few_blocks_all_requests_end_and_the_bytes_are_those_that_were_missing():
    trace = drawn(9, 1.0)
    for engine, capacity in (("vllm", 90), ("sglang", 900)):
        both = [Workers(COST, Setting(capacity, engine=engine), side(engine).scheduler, 2) for _ in range(2)]
        done = serve_apart(trace, *both, link=Link(1e7), bytes_per_token=1000.0, granularity="layer", layers=8)
        missing = 1000.0 * (trace.input_length - 16 * done.decode_hit_blocks)
        assert np.isfinite(done.ended_s).all()
        assert sum(done.link_bytes[0]) == pytest.approx(sum(done.link_bytes[1])) == pytest.approx(missing.sum())


def test_what_is_not_modelled_is_refused():
    with pytest.raises(UsageError, match="layer needs a --model"):
        run(toy("0"), "vllm", "layer")
    with pytest.raises(UsageError, match="a value of --kv-transfer-granularity"):
        Disaggregation(1, 1, kv_transfer_granularity="token")
    layered = Disaggregation(1, 1, kv_transfer_granularity="layer")
    with pytest.raises(UsageError, match="when its prompt is computed"):
        open_loop(toy("0"), DynamoCost(), setting=Setting(9, engine="dynamo"), disaggregation=layered)
