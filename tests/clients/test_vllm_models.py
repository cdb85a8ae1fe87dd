"""vLLM's own models, built as on an H100 or an A100, have the layouts of `vllm_layout` and of the vectors.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `vllm` among them.
"""

import pytest

from kvtrace.cache.engines.cache_groups import vllm_layout
from tests.cache.test_vllm_layout import layers_of, ours
from tests.clients.in_vllm import answers, needs_vllm
from tests.clients.test_vllm_layout import MODELS, model_case, wanted

H100, A100 = [9, 0], [8, 0]
WINDOW, FULL = "sliding_attention", "full_attention"


def config(model_type, architecture, layers, heads, kv_heads, hidden_size, **fields):
    """A config.json with a model's attention; vocabulary, MLP and experts are small, as they have no cache."""
    return {
        "model_type": model_type, "architectures": [architecture], "num_hidden_layers": layers, "vocab_size": 1024,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "hidden_size": hidden_size,
        "intermediate_size": 512, "max_position_embeddings": 131072, **fields,
    }  # fmt: skip


def by_letter(name, **names):
    """Each layer of a model in the words of its config."""
    return [names[letter] for letter in MODELS[name][0]]


def gpt_oss(name, layers):
    kinds = by_letter(name, w=WINDOW, f=FULL)
    return config(
        "gpt_oss", "GptOssForCausalLM", layers, 64, 8, 2880, head_dim=64, sliding_window=128, num_local_experts=4,
        layer_types=kinds,
    )  # fmt: skip


def qwen(layers, heads, kv_heads):
    return config(
        "qwen3_next", "Qwen3NextForCausalLM", layers, heads, kv_heads, 2048, head_dim=256, num_experts=4,
        num_experts_per_tok=2, linear_num_key_heads=16, linear_num_value_heads=32,
    )  # fmt: skip


def nemotron(pattern, kv_heads, mamba_heads):
    return config(
        "nemotron_h", "NemotronHForCausalLM", len(pattern), 32, kv_heads, 4096, head_dim=128, n_groups=8,
        mamba_num_heads=mamba_heads, mamba_head_dim=64, ssm_state_size=128, hybrid_override_pattern=pattern,
    )  # fmt: skip


def mamba_pattern(name):
    return "".join({"s": "M", "f": "*"}[letter] for letter in MODELS[name][0])


FLOAT32_STATES = {"mamba_ssm_cache_dtype": "float32"}  # as Qwen3.5's own config sets it; its class needs images
CONFIGS = {  # name in MODELS -> config.json, the GPU, vLLM's options
    "Llama-3.1-8B": (config("llama", "LlamaForCausalLM", 32, 32, 8, 4096), H100, {}),
    "DeepSeek-V3": (
        config(
            "deepseek_v3", "DeepseekV3ForCausalLM", 61, 128, 128, 7168, kv_lora_rank=512, qk_rope_head_dim=64,
            n_routed_experts=8, n_group=1, topk_group=1, num_experts_per_tok=2, moe_intermediate_size=256,
        ), H100, {},
    ),
    "Mistral-7B-v0.1": (config("mistral", "MistralForCausalLM", 32, 32, 8, 4096, sliding_window=4096), H100, {}),
    "gpt-oss-20b": (gpt_oss("gpt-oss-20b", 24), H100, {}),
    "gpt-oss-120b": (gpt_oss("gpt-oss-120b", 36), H100, {}),
    "Gemma-2-9b": (
        config("gemma2", "Gemma2ForCausalLM", 42, 16, 8, 3584, head_dim=256, sliding_window=4096), H100, {},
    ),
    "Gemma-3-27b": (
        config("gemma3_text", "Gemma3ForCausalLM", 62, 32, 16, 5376, head_dim=128, sliding_window=1024), H100, {},
    ),
    "Gemma-4-26B-A4B": (
        config(
            "gemma4_text", "Gemma4ForCausalLM", 30, 16, 8, 2816, head_dim=256, global_head_dim=512,
            num_global_key_value_heads=2, attention_k_eq_v=True, sliding_window=1024, vocab_size_per_layer_input=1024,
        ), H100, {},
    ),
    "Command-R7B": (config("cohere2", "Cohere2ForCausalLM", 32, 32, 8, 4096, sliding_window=4096), H100, {}),
    "Llama-4-Scout": (
        config(
            "llama4_text", "Llama4ForCausalLM", 48, 40, 8, 5120, head_dim=128, attention_chunk_size=8192,
            num_local_experts=2, intermediate_size_mlp=512,
        ), H100, {},
    ),
    "MiMo-V2-Flash": (
        config(
            "mimo_v2_flash", "MiMoV2FlashForCausalLM", 48, 64, 4, 4096, head_dim=192, v_head_dim=128,
            swa_num_attention_heads=64, swa_num_key_value_heads=8, swa_head_dim=192, swa_v_head_dim=128,
            sliding_window=128, sliding_window_size=128, hybrid_layer_pattern=by_letter("MiMo-V2-Flash", f=0, w=1),
            moe_layer_freq=[0] * 48, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
            rope_theta=5e6, swa_rope_theta=1e4, partial_rotary_factor=0.334, attention_value_scale=0.707,
            add_swa_attention_sink_bias=True, add_full_attention_sink_bias=False, layernorm_epsilon=1e-5,
        ), H100, {},
    ),
    "Qwen3-Next-80B-A3B on an A100": (qwen(48, 16, 2), A100, {}),
    "Qwen3-Next-80B-A3B on an H100": (qwen(48, 16, 2), H100, {}),
    "Qwen3.5-4B on an A100": (qwen(32, 16, 4), A100, FLOAT32_STATES),
    "Qwen3.5-4B on an H100": (qwen(32, 16, 4), H100, FLOAT32_STATES),
    "Nemotron-H-8B": (nemotron(mamba_pattern("Nemotron-H-8B"), 8, 128), H100, {}),
    "Nemotron-3-Super-120B with an FP8 cache": (
        nemotron(mamba_pattern("Nemotron-3-Super-120B with an FP8 cache"), 2, 128), H100, {"kv_cache_dtype": "fp8"},
    ),
    "Nemotron-3.5-Lightning-30B-A3B": (
        nemotron(mamba_pattern("Nemotron-3.5-Lightning-30B-A3B"), 2, 64), H100, {},
    ),
    "Granite-4.0-H-Small": (
        config(
            "granitemoehybrid", "GraniteMoeHybridForCausalLM", 40, 32, 8, 4096, mamba_n_heads=128, mamba_d_head=64,
            mamba_n_groups=1, mamba_d_state=128, num_local_experts=4, num_experts_per_tok=2,
            shared_intermediate_size=512, layer_types=by_letter("Granite-4.0-H-Small", s="mamba", f="attention"),
        ), H100, {},
    ),
    "Falcon-H1-34B": (
        config(
            "falcon_h1", "FalconH1ForCausalLM", 72, 20, 4, 5120, head_dim=128, mamba_d_ssm=4096, mamba_n_heads=32,
            mamba_d_head=128, mamba_n_groups=2, mamba_d_state=256,
        ), H100, {},
    ),
    "Jamba-1.5-Mini": (
        config(
            "jamba", "JambaForCausalLM", 32, 32, 8, 4096, num_experts=2, num_experts_per_tok=2, attn_layer_period=8,
            attn_layer_offset=4,
        ), H100, {},
    ),
    "LFM2-1.2B": (
        config(
            "lfm2", "Lfm2ForCausalLM", 16, 32, 8, 2048, conv_L_cache=3, conv_dim=2048, block_dim=2048,
            block_ff_dim=512, block_multiple_of=256, block_ffn_dim_multiplier=1.0, block_auto_adjust_ff_dim=False,
            layer_types=by_letter("LFM2-1.2B", s="conv", f=FULL),
        ), H100, {},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """What vLLM makes of each model."""
    cases = [dict(zip(("config", "capability", "options"), how, strict=True)) for how in CONFIGS.values()]
    return dict(zip(CONFIGS, answers(cases, tmp_path_factory.mktemp("models"), "vllm_models.py"), strict=True))


@needs_vllm
@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_built_by_vllm_has_our_layout(name, built):
    case, real = model_case(name), built[name]
    assert ours(case) == wanted(real)
    assert real["dimensions"] == "LBNHC" and real["caching"] == [True, 0]
    layout = vllm_layout(layers_of(case), state_kernel=case["state_kernel"])
    alignment = layout.internal_checkpoint_alignment
    if any(group.kind == "state" for group in layout.groups):
        assert real["checkpoints"] == [[int(alignment > 0), alignment]]
