"""Hit rates that other tools publish or print for public traces, as we compute them."""

import pytest

import kvtrace
from tests.conftest import ROOT

# tokens of cache -> token hit rate of the last half of the requests, as llmtrafficlens 0.13.4 prints for Mooncake's
# conversation trace (`profile --format mooncake`; its README has the same). Its M is 2^20.
LLMTRAFFICLENS = {2**18: 0.045, 2**20: 0.056, 2**22: 0.188, 2**24: 0.356}
UNLIMITED = 0.398  # the same, and the "hit rate ceiling" of kvcache-simulator 0.1.3
# blocks -> token hit rates of LRU and of the optimum, as kvcache-simulator prints for --model cohere-command-r-v01 and
# --budgets-gib of 640 MiB a block
KVCACHE_SIMULATOR = {3_000: (0.067, 0.310), 10_000: (0.220, 0.398), 30_000: (0.344, 0.398)}
# blocks -> hit blocks of the best cache of strict prefixes: both bounds of kvcache-calculator, which are equal here
KVCACHE_CALCULATOR = {1_000: 55_019, 3_000: 84_953, 10_000: 105_710}
# what kvlint 0.1.1 prints for the prompts of examples/raw_log.jsonl and Qwen3's tokenizer: cached tokens of vLLM, in
# blocks of 16, and of SGLang, and the requests whose prompt hits whole
KVLINT = {"vllm": 17_872, "sglang": 18_522, "full hits": 24}


@pytest.fixture(scope="module")
def trace(shared):
    return kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")


def test_lru_hits_what_llmtrafficlens_prints(trace):
    for tokens, rate in LLMTRAFFICLENS.items():
        run = kvtrace.cache.simulate(trace, capacity=tokens // 512, warm_up=len(trace) // 2)
        assert run.hits.token_hit_rate == pytest.approx(rate, abs=0.0006)


def test_lru_and_belady_hit_what_kvcache_simulator_prints(trace):
    for blocks, rates in KVCACHE_SIMULATOR.items():
        runs = [kvtrace.cache.simulate(trace, blocks, policy, warm_up=len(trace) // 2) for policy in ("lru", "belady")]
        assert [run.hits.token_hit_rate for run in runs] == pytest.approx(rates, abs=0.0006)


def test_belady_hits_what_kvcache_calculator_proves_to_be_the_optimum(trace):
    runs = {blocks: kvtrace.cache.simulate(trace, blocks, "belady") for blocks in KVCACHE_CALCULATOR}
    assert {blocks: run.hits.hit_blocks for blocks, run in runs.items()} == KVCACHE_CALCULATOR


def test_a_log_hits_what_kvlint_prints_less_the_last_token_that_sglang_computes(shared):
    """SGLang computes at least one token of each prompt; kvlint counts whole prompts as cached."""
    qwen = shared / "data/tokenizers/qwen3"
    hits = {}
    for engine, block_size in (("vllm", 16), ("sglang", 1)):
        log = kvtrace.anonymize(ROOT / "examples/raw_log.jsonl", tokenizer=qwen, block_size=block_size, profile="exact")
        hits[engine] = kvtrace.cache.simulate(log, log.working_set, engine=engine).hits.hit_tokens
    assert hits == {"vllm": KVLINT["vllm"], "sglang": KVLINT["sglang"] - KVLINT["full hits"]}


def test_an_unlimited_cache_hits_what_both_print(trace):
    later = slice(len(trace) // 2, None)
    assert kvtrace.trace.count_hits(trace, kvtrace.trace.unlimited_hits(trace), later).token_hit_rate == pytest.approx(
        UNLIMITED, abs=0.0006
    )


def test_the_first_half_may_be_left_out_of_the_rate():
    trace = kvtrace.toy("0 1", "0 1", "0 1", "0 2")
    run = kvtrace.cache.simulate(trace, capacity=9, warm_up=2)
    assert run.hits.block_hit_rate == 3 / 4 and kvtrace.cache.simulate(trace, capacity=9).hits.block_hit_rate == 5 / 8
