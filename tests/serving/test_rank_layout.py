"""What one GPU of a deployment keeps, and its cache groups: vectors from vLLM's own models, and figures by hand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvtrace import UsageError
from kvtrace.serving.deployment import Deployment, Drafter
from kvtrace.serving.models.config import read_config
from kvtrace.serving.models.engine_layout import rank_layout
from kvtrace.serving.models.layers import rank_layers, stage_layers
from kvtrace.serving.models.possible_hits import reachable_hits
from kvtrace.trace.building import toy

PATH = Path(__file__).parent.parent / "vectors/vllm_deployments.json"
VECTORS = json.loads(PATH.read_text()) if PATH.exists() else {"vectors": []}
CAPABILITIES = {"h100": [9, 0], "a100": [8, 0], "l40s": [8, 9], "b200": [10, 0], "rtx-pro-6000": [12, 0]}
EAGLE_HEAD = {  # of a Llama with 8 heads of keys and values
    "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 512, "vocab_size": 1024,
}  # fmt: skip


def deployment(model, gpu, options, head=None):
    """A deployment with vLLM's options."""
    options = dict(options)
    options["hybrid"] = not options.pop("disable_hybrid_kv_cache_manager", False)
    if drafter := options.pop("speculative_config", None):
        options["speculative"] = Drafter(drafter["method"], drafter["num_speculative_tokens"], head)
    return Deployment(model, gpu=gpu, **options)


def ours(vector, head):
    """Our layout in the words of the vectors; a string where it is refused."""
    options = vector["options"]
    try:
        layout = rank_layout(deployment(vector["model"], vector["gpu"], options, head))
    except UsageError as error:
        return str(error)
    stages = options.get("pipeline_parallel_size", 1)
    groups = [
        (group.kind, group.layers if stages == 1 else 0, group.block_size, group.window) for group in layout.groups
    ]
    counted = sorted([groups.count(group), *group] for group in set(groups))
    return [counted, layout.block_bytes, layout.internal_checkpoint_alignment]


@pytest.fixture(scope="module")
def eagle_head(tmp_path_factory):
    path = tmp_path_factory.mktemp("head") / "config.json"
    path.write_text(json.dumps(EAGLE_HEAD))
    return str(path)


@pytest.mark.parametrize("model", sorted({row["model"] for row in VECTORS["vectors"]}))
def test_one_gpu_is_laid_out_as_in_vllm(model, eagle_head):
    for vector in VECTORS["vectors"]:
        if vector["model"] == model:
            real, mine = vector["layout"], ours(vector, eagle_head)
            if isinstance(real, str):
                assert isinstance(mine, str), vector
            else:
                assert mine[: len(real)] == real, vector


def test_the_vectors_hold_what_vllm_lays_out_and_what_it_refuses():
    refused = [row for row in VECTORS["vectors"] if isinstance(row["layout"], str)]
    assert len(VECTORS["vectors"]) > 1000 and 100 < len(refused) < 250


def block(model, **options):
    layout = rank_layout(Deployment(model, **options))
    return layout.groups[0].block_size, layout.block_bytes // layout.groups[0].block_size


@pytest.mark.parametrize(
    ("model", "options", "tokens", "token_bytes"),
    [  # tokens of a block, and bytes of one of its tokens on each GPU; figures of public start-up lines and issues
        ("deepseek-v3", {"tensor_parallel_size": 8}, 16, 70_272),  # 61 x 576 x 2, not divided
        ("deepseek-v3.2", {"tensor_parallel_size": 8, "kv_cache_dtype": "fp8"}, 64, 48_068),  # 61 x (656 + 132)
        ("deepseek-v3.2", {"tensor_parallel_size": 8}, 64, 78_324),  # 61 x (1152 + 132)
        ("qwen3-30b-a3b", {"tensor_parallel_size": 8}, 16, 24_576),  # 48 x 1 head x 2 x 128 x 2
        ("qwen3-30b-a3b", {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}, 16, 12_288),
        ("qwen3-235b-a22b", {"tensor_parallel_size": 16}, 16, 48_128),
        ("qwen3.5-397b-a17b", {"tensor_parallel_size": 8, "gpu": "a100"}, 528, 15_360),
        ("qwen3.5-397b-a17b", {"tensor_parallel_size": 8, "gpu": "h100"}, 576, 15_360),
        ("qwen3.5-35b-a3b", {"tensor_parallel_size": 8, "gpu": "a100"}, 272, 10_240),  # vllm-ascend#7393
        ("deepseek-v3.2", {"engine": "sglang", "kv_cache_dtype": "fp8_e4m3"}, 64, 48_068),  # public lines say 48,072
        ("deepseek-v3.2", {"engine": "sglang"}, 64, 78_324),
        ("deepseek-v3.2", {"engine": "sglang", "gpu": "b200"}, 64, 43_188),  # 61 x (576 + 132), FP8 by default
        ("qwen3-235b-a22b", {"engine": "sglang", "tensor_parallel_size": 8}, 1, 48_128),
    ],
)
def test_one_gpu_keeps_what_public_lines_state(model, options, tokens, token_bytes):
    assert block(model, **options) == (tokens, token_bytes)


def test_context_parallelism_gives_a_block_more_tokens_and_no_more_bytes():
    whole = Deployment("kimi-k2.5", tensor_parallel_size=8)
    shared = rank_layout(replace(whole, decode_context_parallel_size=8))
    assert shared.groups[0].block_size == 128 and shared.block_bytes == rank_layout(whole).block_bytes


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("qwen2.5-7b", {"tensor_parallel_size": 8}, "28 query heads are not a multiple"),
        ("qwen2.5-7b", {"tensor_parallel_size": 14}, "cannot divide or copy 4 heads"),
        ("gpt-oss-20b", {"tensor_parallel_size": 16}, "copies no heads of keys"),
        ("nemotron-3-nano-30b-a3b", {"tensor_parallel_size": 16}, "8 groups of a state"),
        ("llama-3.1-8b", {"pipeline_parallel_size": 33}, "more than the 32 layers"),
        ("mimo-v2.5", {"pipeline_parallel_size": 2}, "no order of its layers"),
        ("llama-3.1-8b", {"kv_cache_dtype": "nvfp4"}, "nvfp4 is not modelled"),
        ("llama-3.1-8b", {"kv_cache_dtype": "float16"}, "does not go with bfloat16"),
        ("deepseek-v3", {"kv_cache_dtype": "fp8_e5m2"}, "no kernel keeps latents"),
        ("deepseek-v3", {"kv_cache_dtype": "fp8_ds_mla"}, "latents with an indexer"),
        ("deepseek-v4-flash", {"kv_cache_dtype": "bfloat16"}, "in FP8"),
        ("deepseek-v4-flash", {"engine": "sglang"}, "in vLLM alone"),
        ("deepseek-v4.1-flash", {}, "compressed attention are not modelled"),
        ("deepseek-v3.2", {"tensor_parallel_size": 8, "decode_context_parallel_size": 8}, "in FP8 alone"),
        ("gpt-oss-20b", {"tensor_parallel_size": 8, "decode_context_parallel_size": 2}, "8 heads of keys and values"),
        ("llama-3.1-8b", {"prefill_context_parallel_size": 2}, "for latent attention alone"),
        ("llama-3.1-8b", {"speculative": Drafter("mtp")}, "no layers that predict further tokens"),
        ("llama-3.1-8b", {"speculative": Drafter("eagle3")}, "needs the config.json of its head"),
    ],
)
def test_what_an_engine_refuses_is_one_clear_line(model, options, message):
    with pytest.raises(UsageError, match=message):
        rank_layout(Deployment(model, **options))


def test_a_checkpoint_asks_for_the_dtype_of_its_cache():
    config = {**read_config("llama-3.1-8b").values, "quantization_config": {"kv_cache_quant_algo": "FP8"}}
    assert rank_layout(Deployment(config)).block_bytes * 2 == rank_layout(Deployment("llama-3.1-8b")).block_bytes


def test_a_hybrid_model_has_hits_at_the_block_of_one_gpu():
    """Four prompts of 1,600 tokens share 1,504. The state at the last whole block of a prompt is kept.

    Blocks of 528: it is at 1,584, after the shared prefix, so that 1,056 tokens hit from the third prompt on. Blocks of
    576: it is at 1,152, and hits from the second on.
    """
    prompts = [[*range(94), *range(100 * row, 100 * row + 6)] for row in range(1, 5)]
    trace = toy(*(" ".join(map(str, prompt)) for prompt in prompts), block_size=16)
    hits = {
        gpu: reachable_hits(trace, Deployment("qwen3.5-397b-a17b", gpu=gpu, tensor_parallel_size=8)).hit_tokens
        for gpu in ("a100", "h100")
    }
    assert hits == {"a100": 2 * 1_056, "h100": 3 * 1_152}


def test_a_drafter_adds_its_layers_to_the_last_stage(eagle_head):
    plain = Deployment("llama-3.1-8b", pipeline_parallel_size=2)
    head = replace(plain, speculative=Drafter("eagle3", 3, eagle_head))
    assert [sum(kind.layers for kind in kinds) for kinds in stage_layers(head)] == [16, 17]
    assert rank_layers(head) == stage_layers(head)[1]
