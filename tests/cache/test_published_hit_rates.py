"""Hit rates that other tools publish or print for public traces, as we compute them."""

import pytest

import kvtrace

# tokens of cache -> token hit rate of the last half of the requests, as llmtrafficlens 0.13.4 prints for Mooncake's
# conversation trace (`profile --format mooncake`; its README has the same). Its M is 2^20.
LLMTRAFFICLENS = {2**18: 0.045, 2**20: 0.056, 2**22: 0.188, 2**24: 0.356}
UNLIMITED = 0.398  # the same, and the "hit rate ceiling" of kvcache-simulator 0.1.3
KVCACHE_SIMULATOR = {1638: 0.052}  # blocks -> token hit rate: --model cohere-command-r-v01 --budgets-gib 1024


@pytest.fixture(scope="module")
def trace(shared):
    return kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")


def test_lru_hits_what_llmtrafficlens_prints(trace):
    for tokens, rate in LLMTRAFFICLENS.items():
        run = kvtrace.cache.simulate(trace, capacity=tokens // 512, warm_up=len(trace) // 2)
        assert run.hits.token_hit_rate == pytest.approx(rate, abs=0.0006)


def test_lru_hits_what_kvcache_simulator_prints(trace):
    for blocks, rate in KVCACHE_SIMULATOR.items():
        run = kvtrace.cache.simulate(trace, capacity=blocks, warm_up=len(trace) // 2)
        assert run.hits.token_hit_rate == pytest.approx(rate, abs=0.0006)


def test_an_unlimited_cache_hits_what_both_print(trace):
    later = slice(len(trace) // 2, None)
    assert kvtrace.trace.count_hits(trace, kvtrace.trace.unlimited_hits(trace), later).token_hit_rate == pytest.approx(
        UNLIMITED, abs=0.0006
    )


def test_the_first_half_may_be_left_out_of_the_rate():
    trace = kvtrace.toy("0 1", "0 1", "0 1", "0 2")
    run = kvtrace.cache.simulate(trace, capacity=9, warm_up=2)
    assert run.hits.block_hit_rate == 3 / 4 and kvtrace.cache.simulate(trace, capacity=9).hits.block_hit_rate == 5 / 8
