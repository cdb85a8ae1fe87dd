"""The cache groups of a model in an engine: each family once, the order of groups, and what the engines refuse."""

import pytest

from kvtrace import UsageError
from kvtrace.serving import cache_layout
from kvtrace.serving.models.engine_layout import counted_as_full, layouts_for

SMALL = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": 100, "sliding_window": 32, "torch_dtype": "bfloat16"}  # fmt: skip


def groups(layout):
    return [(group.kind, group.layers, group.block_size, group.window) for group in layout.groups]


@pytest.mark.parametrize(
    ("model", "expected", "block_bytes"),
    [  # layers and windows of the published config.json; bytes of a block: layers of the widest group x its page
        ("gpt-oss-20b", [("window", 12, 16, 128), ("full", 12, 16, 0)], 12 * 16 * 2048),
        (
            "gemma-3-27b", [("window", 9, 16, 1024)] * 4 + [("window", 8, 16, 1024)] * 2 + [("full", 10, 16, 0)],
            10 * 16 * 8192,
        ),
        ("qwen3-next-80b-a3b", [("state", 12, 576, 0)] * 3 + [("full", 12, 576, 0)], 12 * 576 * 2048),
        ("llama-4-scout", [("chunk", 12, 16, 8192)] * 3 + [("full", 12, 16, 0)], 12 * 16 * 4096),
        ("mistral-7b-v0.1", [("window", 32, 16, 4096)], 32 * 16 * 4096),
    ],
)  # fmt: skip
def test_a_family_has_its_groups_in_vllm(model, expected, block_bytes):
    layout = cache_layout(model)
    assert groups(layout) == expected and layout.block_bytes == block_bytes


def test_groups_come_in_the_order_of_the_first_layers():
    window_first = SMALL | {"layer_types": ["sliding_attention", "full_attention"] * 2}
    full_first = SMALL | {"layer_types": ["full_attention", "sliding_attention"] * 2}
    assert [group.kind for group in cache_layout(window_first).groups] == ["window", "full"]
    assert [group.kind for group in cache_layout(full_first).groups] == ["full", "window"]


@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-v3", "qwen3-32b"])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_model_that_keeps_all_tokens_has_no_groups(model, engine):
    assert cache_layout(model, engine) is None


def test_sglang_builds_full_attention_for_gemma_3_and_two_pools_for_others():
    assert cache_layout("gemma-3-27b", "sglang") is None
    assert groups(cache_layout("gpt-oss-20b", "sglang", block_size=16)) == [
        ("full", 12, 16, 0),
        ("window", 12, 16, 128),
    ]
    assert groups(cache_layout("qwen3-next-80b-a3b", "sglang", block_size=16)) == [
        ("full", 12, 16, 0),
        ("state", 36, 64, 0),
    ]


def test_the_options_of_the_engine_are_in_the_layout():
    layout = cache_layout("gpt-oss-20b", block_size=64, retention_interval=None, step_tokens=2048)
    assert layout.scheduler_block_size == 64 and layout.retention_interval is None and layout.step_tokens == 2048
    assert cache_layout("gpt-oss-20b", kv_dtype="fp8").block_bytes * 2 == cache_layout("gpt-oss-20b").block_bytes


def test_blocks_of_states_depend_on_the_gpu():
    """FlashInfer's kernel for gated delta nets, which an A100 lacks, needs blocks of a multiple of 64 tokens."""
    sizes = {gpu: cache_layout("qwen3-next-80b-a3b", gpu=gpu).scheduler_block_size for gpu in (None, "h100", "a100")}
    assert sizes == {None: 576, "h100": 576, "a100": 544}


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("deepseek-v4-pro", {}, "compressed layers"),
        ("gpt-oss-20b", {"engine": "lmcache"}, "Engine lmcache models full attention only"),
        ("gpt-oss-20b", {"block_size": 20}, "multiple of 16"),
        ("gpt-oss-20b", {"retention_interval": 24}, "must be 0 or a multiple of 16 tokens, not 24"),
        ("gpt-oss-20b", {"engine": "sglang", "retention_interval": None}, "SGLang has no retention interval"),
        ("mistral-7b-v0.1", {"engine": "sglang"}, "full attention and at most one other kind"),
        ("no-such-model", {}, "no-such-model"),
    ],
)
def test_what_an_engine_has_no_groups_for_is_refused(model, options, message):
    with pytest.raises(UsageError, match=message):
        cache_layout(model, **options)


def test_a_trace_gives_the_block_size_that_is_asked_for():
    made = layouts_for("gpt-oss-20b", ["reference", "vllm", "sglang", "vllm"], 24)
    assert {engine: layout.scheduler_block_size for engine, layout in made.items()} == {"vllm": 48, "sglang": 24}
    assert layouts_for(None, ["vllm"], 16) == layouts_for("llama-3.1-8b", ["vllm"], 16) == {}


def test_engines_that_count_a_hybrid_model_as_full_attention_are_named():
    assert counted_as_full("gpt-oss-20b", ["lmcache", "dynamo", "vllm"]).startswith("Engine lmcache, dynamo counts all")
    assert counted_as_full("llama-3.1-8b", ["lmcache"]) is counted_as_full("gpt-oss-20b", ["vllm"]) is None
    assert counted_as_full(None, ["lmcache"]) is None
