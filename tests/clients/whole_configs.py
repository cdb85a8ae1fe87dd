"""Whole config.json files of the catalog's models, as vLLM's and SGLang's model classes need them.

What a model keeps is the catalog's; vocabulary, MLP, experts and other sizes that keep nothing are small.
"""

from kvtrace.serving.models.config import MODELS, all_layers, read_config
from tests.serving.test_rank_layout import EAGLE_HEAD as SMALL_HEAD

NEUTRAL = {
    "vocab_size": 1024, "hidden_size": 1024, "intermediate_size": 512, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6, "rope_theta": 1e6,
}  # fmt: skip
EXPERTS = {
    "num_experts": 32, "num_experts_per_tok": 2, "moe_intermediate_size": 512, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "shared_expert_intermediate_size": 512,
}  # fmt: skip
DEEPSEEK = {
    "n_routed_experts": 32, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 512,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
    "routed_scaling_factor": 1.0, "norm_topk_prob": True,
}  # fmt: skip
FAMILIES = {  # model type -> architecture and the fields that its class needs beside the catalog's
    "cohere": ("CohereForCausalLM", {"layer_norm_eps": 1e-5, "logit_scale": 1.0}),
    "cohere2": ("Cohere2ForCausalLM", {"layer_norm_eps": 1e-5, "logit_scale": 1.0}),
    "deepseek_v3": ("DeepseekV3ForCausalLM", DEEPSEEK),
    "deepseek_v32": ("DeepseekV32ForCausalLM", DEEPSEEK),
    "deepseek_v4": ("DeepseekV4ForCausalLM", {"num_attention_heads": 64, "num_nextn_predict_layers": 1}),
    "gemma3_text": ("Gemma3ForCausalLM", {}),
    "gemma3n_text": ("Gemma3nForCausalLM", {}),
    "gemma4_text": ("Gemma4ForCausalLM", {"vocab_size_per_layer_input": 1024}),
    "glm_moe_dsa": ("GlmMoeDsaForCausalLM", DEEPSEEK),
    "gpt_oss": ("GptOssForCausalLM", {"num_local_experts": 32, "num_experts_per_tok": 2}),
    "kimi_linear": (
        "KimiLinearForCausalLM",
        DEEPSEEK | {
            "num_experts": 32, "num_experts_per_token": 2, "num_expert_group": 1, "num_shared_experts": 1,
            "moe_renormalize": True, "moe_router_activation_func": "sigmoid", "mla_use_nope": True,
            "hidden_act": "silu",
        },
    ),
    "minimax_m3": (
        "MiniMaxM3SparseForCausalLM",
        {
            "num_local_experts": 32, "num_experts_per_tok": 2, "rotary_dim": 64, "scoring_func": "sigmoid",
            "model_type": "minimax_m3_vl",
        },
    ),
    "jamba": ("JambaForCausalLM", {"num_experts": 2, "num_experts_per_tok": 2, "mamba_dt_rank": 256}),
    "kimi_k25": ("DeepseekV3ForCausalLM", DEEPSEEK | {"model_type": "deepseek_v3"}),
    "llama": ("LlamaForCausalLM", {}),
    "llama4_text": ("Llama4ForCausalLM", {"num_local_experts": 32, "intermediate_size_mlp": 512}),
    "mimo_v2": (
        "MiMoV2FlashForCausalLM",
        {
            "model_type": "mimo_v2_flash", "n_routed_experts": 32, "num_experts_per_tok": 2, "n_group": 1,
            "topk_group": 1, "swa_rope_theta": 1e4, "partial_rotary_factor": 0.334, "attention_value_scale": 0.707,
            "add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False, "layernorm_epsilon": 1e-5,
        },
    ),
    "minimax_m2": (
        "MiniMaxM2ForCausalLM",
        {"num_local_experts": 32, "num_experts_per_tok": 2, "rotary_dim": 64, "scoring_func": "sigmoid"},
    ),
    "mistral": ("MistralForCausalLM", {}),
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 32}),
    "nemotron_h": ("NemotronHForCausalLM", {}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3ForCausalLM", {}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", EXPERTS),
    "qwen3_next": ("Qwen3NextForCausalLM", EXPERTS),
    "qwen3_5_text": ("Qwen3_5ForCausalLM", {}),
    "qwen3_5_moe_text": ("Qwen3_5MoeForCausalLM", EXPERTS),
}  # fmt: skip


UNSERVED = ["deepseek-v4.1-flash"]  # its class needs more of its config than is published
EAGLE_HEAD = NEUTRAL | SMALL_HEAD | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 1024}


def whole_config(name):
    """A whole config.json of a model of the catalog, with 16-bit weights."""
    stated = {key: value for key, value in MODELS[name].config.items() if key != "quantization_config"}
    counts = stated.get("layer_types")
    if isinstance(counts, dict):  # the catalog has counts alone; full attention is last, as in Gemma 4
        stated["layer_types"] = [kind for kind in sorted(counts, reverse=True) for _ in range(counts[kind])]
    architecture, fields = FAMILIES[stated["model_type"]]
    small = {key: NEUTRAL[key] for key in ("vocab_size", "intermediate_size")}
    small["hidden_size"] = stated.get("hidden_size", stated.get("num_attention_heads", 8) * stated.get("head_dim", 128))
    whole = {**NEUTRAL, **stated, **small, **fields, "architectures": [architecture]}
    if stated["model_type"] == "gemma4_text":
        names = {"full": "full_attention", "window": "sliding_attention"}
        whole["layer_types"] = [names[word] for word in all_layers(read_config(whole))]
        whole["attention_k_eq_v"] = "num_global_key_value_heads" in stated
    if stated["model_type"] == "kimi_linear" and "layer_types" in whole:
        kinds = whole.pop("layer_types")
        lists = {"full_attn_layers": "full_attention", "kda_layers": "linear_attention"}
        numbered = {key: [i for i, kind in enumerate(kinds, 1) if kind == value] for key, value in lists.items()}
        whole["linear_attn_config"] = whole["linear_attn_config"] | numbered | {"gate_lower_bound": -5.0}
    if stated["model_type"] == "mimo_v2" and "layer_types" in whole:
        kinds = whole.pop("layer_types")
        whole["hybrid_layer_pattern"] = [int(kind == "sliding_attention") for kind in kinds]
        whole |= {"moe_layer_freq": [0] * len(kinds), "sliding_window_size": whole["sliding_window"]}
    return whole
