"""The weights of one GPU are the parameters of vLLM's own models, built without memory on one GPU of a deployment.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `vllm` among them.
`KVTRACE_CLIENTS=... python -m tests.clients.test_vllm_weights` writes the vectors anew.
"""

import json
import tempfile
from pathlib import Path

from kvtrace.serving.models.config import catalog_config
from tests.clients.in_vllm import answers, needs_vllm
from tests.serving.test_weights import VECTORS

IMAGES = {"qwen3_5": {}, "gemma3": {}, "gemma4": {"head_dim": 72, "num_attention_heads": 16, "num_key_value_heads": 16}}
MIMO = {"layernorm_epsilon": 1e-5, "sliding_window_size": 128, "swa_rope_theta": 10000, "rope_theta": 5000000,
        "partial_rotary_factor": 0.334, "add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False,
        "scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True, "n_group": 1, "topk_group": 1,
        "attention_value_scale": 0.707, "routed_scaling_factor": 1.0}  # fmt: skip
MODELS = {  # name in the catalog -> its class in vLLM, the model type with images, fields that the class asks for
    "meta-llama/Llama-3.1-8B-Instruct": ("LlamaForCausalLM", "", {}),
    "nvidia/Llama-3.1-8B-Instruct-FP8": ("LlamaForCausalLM", "", {}),
    "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4": ("LlamaForCausalLM", "", {}),
    "Qwen/Qwen2.5-32B-Instruct-GPTQ-Int4": ("Qwen2ForCausalLM", "", {}),
    "Qwen/Qwen3-30B-A3B-FP8": ("Qwen3MoeForCausalLM", "", {}),
    "nvidia/Qwen3-235B-A22B-NVFP4": ("Qwen3MoeForCausalLM", "", {}),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": ("Qwen3NextForCausalLM", "", {}),
    "Qwen/Qwen3.5-27B": ("Qwen3_5ForConditionalGeneration", "qwen3_5", {}),
    "deepseek-ai/DeepSeek-V2-Lite": ("DeepseekV2ForCausalLM", "", {"n_group": 1, "topk_group": 1, "q_lora_rank": None}),
    "deepseek-ai/DeepSeek-V3": ("DeepseekV3ForCausalLM", "", {}),
    "deepseek-ai/DeepSeek-V3.2": ("DeepseekV32ForCausalLM", "", {"n_group": 8, "topk_group": 4}),
    "deepseek-ai/DeepSeek-V4-Flash": ("DeepseekV4ForCausalLM", "", {}),
    "zai-org/GLM-4.5-Air": ("Glm4MoeForCausalLM", "", {}),
    "zai-org/GLM-5.2-FP8": ("GlmMoeDsaForCausalLM", "", {}),
    "openai/gpt-oss-20b": ("GptOssForCausalLM", "", {}),
    "mistralai/Mixtral-8x7B-v0.1": ("MixtralForCausalLM", "", {}),
    "MiniMaxAI/MiniMax-M2.5": ("MiniMaxM2ForCausalLM", "", {"rotary_dim": 64, "scoring_func": "sigmoid"}),
    "XiaomiMiMo/MiMo-V2-Flash": ("MiMoV2FlashForCausalLM", "", MIMO),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("NemotronHForCausalLM", "", {}),
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16": ("NemotronHForCausalLM", "", {}),
    "google/gemma-3-27b-it": ("Gemma3ForConditionalGeneration", "gemma3", {}),
    "google/gemma-4-31B-it": ("Gemma4ForConditionalGeneration", "gemma4", {}),
    "google/gemma-4-26B-A4B-it": ("Gemma4ForConditionalGeneration", "gemma4", {}),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": ("Llama4ForCausalLM", "", {}),
    "CohereLabs/c4ai-command-a-03-2025": ("Cohere2ForCausalLM", "", {}),
    "ai21labs/Jamba-v0.1": ("JambaForCausalLM", "", {}),
    "microsoft/phi-4": ("Phi3ForCausalLM", "", {}),
    "bigcode/starcoder2-3b": ("Starcoder2ForCausalLM", "", {}),
    "openai-community/gpt2": ("GPT2LMHeadModel", "", {}),
    "ibm-granite/granite-4.0-h-small": ("GraniteMoeHybridForCausalLM", "", {}),
    "mistralai/Mistral-Small-4-119B-2603": ("Mistral4ForCausalLM", "", {}),
    "baidu/ERNIE-4.5-21B-A3B-PT": ("Ernie4_5_MoeForCausalLM", "", {}),
}
TENSOR = {"google/gemma-3-27b-it": (1, 2), "microsoft/phi-4": (1, 2), "openai-community/gpt2": (1, 2),
          "baidu/ERNIE-4.5-21B-A3B-PT": (1, 2)}  # fmt: skip  # where heads do not divide by 8
MTP = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}
OTHERS = [  # model, options, pipeline stage
    ("Qwen/Qwen3-30B-A3B-FP8", {"tensor_parallel_size": 8, "enable_expert_parallel": True}, 0),
    ("deepseek-ai/DeepSeek-V3", {"tensor_parallel_size": 8, "enable_expert_parallel": True}, 0),
    ("Qwen/Qwen3-30B-A3B-FP8", {"tensor_parallel_size": 2, "data_parallel_size": 2}, 0),
    (
        "deepseek-ai/DeepSeek-V3",
        {"tensor_parallel_size": 2, "data_parallel_size": 4, "enable_expert_parallel": True},
        0,
    ),
    ("meta-llama/Llama-3.1-8B-Instruct", {"pipeline_parallel_size": 3}, 0),
    ("deepseek-ai/DeepSeek-V3", {"tensor_parallel_size": 8, **MTP}, 0),
    ("deepseek-ai/DeepSeek-V4-Flash", {"tensor_parallel_size": 4, **MTP}, 0),
    ("Qwen/Qwen3.5-27B", {"tensor_parallel_size": 2, **MTP}, 0),
]


EAGLE = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 1,
         "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}  # fmt: skip
HEADS = {  # of Llama-3.1-8B; method -> the head's config.json
    "eagle": EAGLE | {"architectures": ["EagleLlamaForCausalLM"]},
    "eagle3": EAGLE | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000},
}


def config(name):
    """The config.json of a model, with the class that vLLM takes for it."""
    architecture, outer, fields = MODELS[name]
    own = catalog_config(name) | fields
    if isinstance(own.get("layer_types"), dict):
        own["layer_types"] = [kind for kind, layers in own["layer_types"].items() for _ in range(layers)]
    vision, quantised = own.pop("vision_config", None), own.pop("quantization_config", None)
    own.pop("torch_dtype", None)
    if outer:
        own = {"model_type": outer, "text_config": own, "vision_config": vision | IMAGES[outer],
               "tie_word_embeddings": own["tie_word_embeddings"]}  # fmt: skip
    return own | ({"quantization_config": quantised} if quantised else {}) | {"architectures": [architecture]}


def cases():
    """What is asked of vLLM."""
    tensor = [(name, {"tensor_parallel_size": size}, 0) for name in MODELS for size in TENSOR.get(name, (1, 2, 8))]
    asked = [{"model": name, "options": options, "stage": stage} for name, options, stage in [*tensor, *OTHERS]]
    for method, head in HEADS.items():
        options = {"tensor_parallel_size": 4, "speculative_config": {"method": method, "num_speculative_tokens": 3}}
        asked.append({"model": "meta-llama/Llama-3.1-8B-Instruct", "options": options, "stage": 0, "drafter": head})
    return [case | {"config": config(case["model"]), "capability": [9, 0]} for case in asked]


def vectors(folder):
    """The cases with what vLLM says, without the configs."""
    asked = cases()
    return [
        {key: case[key] for key in ("model", "options", "stage", "drafter") if key in case} | said
        for case, said in zip(asked, answers(asked, folder, "vllm_weights.py"), strict=True)
    ]


@needs_vllm
def test_vllm_has_the_weights_of_the_vectors(tmp_path):
    assert vectors(tmp_path) == json.loads(VECTORS.read_text())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        rows = vectors(Path(folder))
    VECTORS.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
