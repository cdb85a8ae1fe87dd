"""vLLM's hybrid cache: golden counts of vLLM's own code, its plain definition, and cases that users have published."""

import json
from pathlib import Path

import numpy as np
import pytest

from kvtrace import read
from kvtrace._base.errors import UsageError
from kvtrace.cache import simulate
from kvtrace.cache.layout import CacheGroup, CacheLayout
from kvtrace.trace.building import toy
from tests.cache.hybrid_cases import drafted_case, engine_run, random_case, twin_run
from tests.cache.test_engine_vllm import trace_of

PATH = Path(__file__).parents[1] / "vectors/engine_vllm_hybrid.json"
VECTORS = json.loads(PATH.read_text()) if PATH.exists() else {"cases": []}
GPT_OSS = (CacheGroup("full", 18, 512), CacheGroup("window", 18, 512, 128))
GEMMA_3 = (CacheGroup("full", 10, 512), *[CacheGroup("window", 10, 512, 1024)] * 6)


def states(block_size, **options):
    """Full attention and states, as Qwen3.5 and Nemotron-H have them."""
    return CacheLayout((CacheGroup("full", 8, block_size), CacheGroup("state", 8, block_size)), **options)


def hits(trace, layout, capacity=1_000):
    """Hit tokens of each request."""
    return (
        simulate(trace, capacity, engine="vllm", mode="token", layout=layout).hit_blocks * trace.block_size
    ).tolist()


@pytest.mark.parametrize("case", VECTORS["cases"], ids=range(len(VECTORS["cases"])))
def test_the_vectors_of_vllm(case):
    assert engine_run(case) == (case["hits"], case["early_frees"])


def test_the_kernel_is_its_plain_definition():
    seed = int(np.random.default_rng().integers(1 << 32))
    rng = np.random.default_rng(seed)
    for number in range(225):
        case = drafted_case(rng, ["lookahead"]) if number % 3 == 0 else random_case(rng)
        assert engine_run(case) == twin_run(case), f"seed {seed}: {case}"


@pytest.mark.parametrize(
    ("groups", "share", "interval", "rates"),
    [
        (GPT_OSS, 2, 0, (0.0502, 0.1939, 0.2658)),
        (GPT_OSS, 2, None, (0.0447, 0.1242, 0.2210)),
        (GEMMA_3, 6.2, 0, (0.0892, 0.2719, 0.3320)),
        (GEMMA_3, 6.2, None, (0.0436, 0.1069, 0.2119)),
    ],
)
def test_the_conversation_trace_hits_as_measured_with_vllm(shared, groups, share, interval, rates):
    trace = read(shared / "data/mooncake/conversation_trace.jsonl")[:6000]
    layout = CacheLayout(groups, retention_interval=interval)
    for blocks, rate in zip((1_000, 5_000, 10_000), rates, strict=True):
        run = simulate(trace, int(blocks * share), engine="vllm", mode="token", layout=layout)
        assert round(run.hits.token_hit_rate, 4) == rate


# ---- published cases


def shared_prefixes(shared_tokens, prompt_tokens, requests=64, prefixes=12):
    """Requests in turn of a few prefixes, each with a suffix of its own; blocks of four tokens."""
    blocks, common, number = -(-prompt_tokens // 4), shared_tokens // 4, {}
    paths = []
    for row in range(requests):
        keys = [(row % prefixes, place) if place < common else (prefixes + row, place) for place in range(blocks)]
        paths.append([number.setdefault(key, len(number)) for key in keys])
    return trace_of(4, paths, [prompt_tokens] * requests, [1] * requests)


@pytest.mark.parametrize(("shared_tokens", "requests_that_hit"), [(1_600, 52), (1_500, 0)])
def test_a_shift_of_100_tokens_loses_all_hits(shared_tokens, requests_that_hit):
    """vLLM #45238: Qwen3.5-4B, blocks of 528; chunks of 2,048 tokens save states at 1,584 and 2,112 tokens."""
    before = states(528, retention_interval=None, junctions=False, step_tokens=2048)
    found = hits(shared_prefixes(shared_tokens, 2_200), before)
    assert sum(tokens > 0 for tokens in found) == requests_that_hit
    assert set(found) <= {0, 1_584}


def test_junctions_restore_hits_from_the_third_request_on():
    found = hits(shared_prefixes(1_500, 2_200), states(528))
    assert sum(tokens > 0 for tokens in found) == 64 - 2 * 12 and set(found) == {0, 1_056}


@pytest.mark.parametrize(("prompt", "hit_tokens"), [(527, 0), (552, 528), (979, 528)])
def test_a_repeated_prompt_hits_whole_blocks_only(prompt, hit_tokens):
    """vLLM #40696: at blocks of 528, a prompt of 552 tokens hits 95 %, one of 979 tokens 54 %, a shorter one 0 %."""
    trace = shared_prefixes(prompt + 4, prompt, requests=2, prefixes=1)
    assert hits(trace, states(528)) == [0, hit_tokens]


@pytest.mark.parametrize(("prompt", "all_hits"), [(3_536, 0), (12_816, 16_640)])
def test_a_block_longer_than_every_prompt_makes_the_cache_inert(prompt, all_hits):
    """vLLM #48402, Nemotron-3-Super: blocks of 8,320 hit 0 of 10,608 tokens; longer prompts hit 16,640 of 38,448."""
    trace = shared_prefixes(prompt + 4, prompt, requests=3, prefixes=1)
    assert sum(hits(trace, states(8_320))) == all_hits and trace.input_length.sum() in (10_608, 38_448)


# ---- small cases, worked out by hand


def test_a_window_resumes_where_its_last_blocks_are():
    """The window of 4 needs two blocks of 2; those of prompts end at 6 tokens, as the last token is computed."""
    trace = trace_of(2, ["0 1 2 3", "0 1 2 4", "0 1 5"], [8, 8, 6], [1, 1, 1])
    layout = CacheLayout((CacheGroup("full", 1, 2), CacheGroup("window", 1, 2, 4)))
    assert hits(trace, layout) == [0, 6, 0]  # at 4 tokens, only the second of the window's two blocks was kept
    assert hits(trace, CacheLayout(layout.groups, retention_interval=None)) == [0, 6, 4]


def test_a_state_resumes_at_its_checkpoint_only():
    trace = trace_of(2, ["0 1 2 3", "0 1 2 4", "0 1 5", "0 1 6"], [8, 8, 6, 6], [1, 1, 1, 1])
    assert hits(trace, states(2)) == [0, 6, 0, 4]  # the third request saw that 4 tokens are shared


def test_a_chunk_needs_the_blocks_since_its_begin():
    trace = trace_of(2, ["0 1 2 3", "0 1 2 4"], [8, 8], [1, 1])
    groups = (CacheGroup("full", 1, 2), CacheGroup("chunk", 1, 2, 4))
    assert hits(trace, CacheLayout(groups)) == [0, 6]


def test_full_attention_alone_is_the_plain_cache():
    trace = toy("0 1 2", "3 4", "0 1 2", block_size=2)
    one = CacheLayout((CacheGroup("full", 4, 2),))
    for capacity in (3, 5):
        plain = simulate(trace, capacity, engine="vllm")
        assert simulate(trace, capacity, engine="vllm", layout=one).hit_blocks.tolist() == plain.hit_blocks.tolist()


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (CacheLayout((CacheGroup("full", 1, 3), CacheGroup("window", 1, 3, 4))), "do not divide"),
        (CacheLayout((CacheGroup("full", 1, 4), CacheGroup("state", 1, 2))), "of kind state"),
        (CacheLayout((CacheGroup("window", 1, 2, 4),), retention_interval=3), "multiple of 2"),
    ],
)
def test_a_layout_that_vllm_refuses(layout, message):
    with pytest.raises(UsageError, match=message):
        simulate(toy("0 1", block_size=2), 10, engine="vllm", layout=layout)


def test_other_engines_refuse_groups():
    layout = CacheLayout((CacheGroup("window", 1, 2, 4),))
    with pytest.raises(UsageError, match="full attention only"):
        simulate(toy("0 1", block_size=2), 10, layout=layout)


def test_a_capacity_below_one_request_is_refused():
    layout = CacheLayout((CacheGroup("full", 1, 2), CacheGroup("window", 1, 2, 4)))
    with pytest.raises(UsageError, match="too small for request 0"):
        simulate(toy("0 1 2 3", block_size=2), 3, engine="vllm", layout=layout)
