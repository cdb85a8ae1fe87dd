"""vLLM: the bytes of its own models' parameters on one GPU, built without memory; run in vLLM's environment as CASES.

A case, a line of JSON, has config, capability and options as in vllm_models.py, and stage (of the pipeline). Prints, a
case a line, vLLM's version, the bytes of the parameters of that stage's first GPU (those of MTP layers too, but not the
embedding and the head that these share with the model), and those of the copy of kv_b_proj in 16 bits that latent
attention makes after loading; or the reason of a refusal.
"""

import json
import sys

import torch
import vllm_models as models
from vllm_absent import ABSENT

ABSENT.append("torchvision")  # after transformers, which asks for its version

import vllm.model_executor.layers.sparse_attn_indexer as sparse  # noqa: E402
from vllm import __version__  # noqa: E402
from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.distributed import parallel_state  # noqa: E402
from vllm.model_executor.layers.attention.mla_attention import MLAAttention  # noqa: E402

sparse.has_deep_gemm = lambda: True
SHARED = {
    "mtp": ("embed_tokens", "lm_head", "shared_head.head")
}  # with the model; EAGLE heads share the embedding alone


class OnMeta(torch.overrides.TorchFunctionMode):
    """What a model asks for on a GPU has no memory either."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "meta"
        return function(*args, **kwargs)


def weigh(case):
    """The bytes of a stage's parameters, and of copies."""
    config, stage = models.engine_config(case), case["stage"]
    parallel, drafter = config.parallel_config, config.speculative_config
    with set_current_vllm_config(config):
        models.join_groups(parallel, stage)
        join_data_parallel(parallel)
    with set_current_vllm_config(config), torch.device("meta"), OnMeta():
        models.Kernels.models_are_loaded = False
        models.get_model_cls(config.model_config)
        models.Kernels.models_are_loaded = True
        torch.set_default_dtype(torch.bfloat16)
        model = models.initialize_model(config)
        size, absorbed = size_of(model), sum(map(absorbed_by, model.modules()))
        if drafter is not None and stage == parallel.pipeline_parallel_size - 1:
            draft, shared = drafter.apply_draft_overrides(config), SHARED.get(drafter.method, ("embed_tokens",))
            size += size_of(models.initialize_model(draft, model_config=drafter.draft_model_config), shared)
        torch.set_default_dtype(torch.float32)
    return {"bytes": size, "absorbed": absorbed}


def join_data_parallel(parallel):
    """The process is the first GPU of the first data-parallel rank; experts are shared with the others."""
    for members, size in ((parallel_state._DP, 1), (parallel_state._EP, parallel.tensor_parallel_size)):
        if members is not None:
            members.world_size = size * parallel.data_parallel_size


def absorbed_by(module):
    """The bytes of a layer's copies for absorption: W_UK_T and W_UV."""
    if not isinstance(module, MLAAttention):
        return 0
    return 2 * module.num_heads * module.kv_lora_rank * (module.qk_nope_head_dim + module.v_head_dim)


def size_of(model, left_out=()):
    """The bytes of a model's parameters."""
    parts = [part for name, part in model.named_parameters() if not any(word in name for word in left_out)]
    return sum(part.numel() * part.element_size() for part in parts)


def answer(case):
    """What is printed of a case."""
    try:
        return {"version": __version__} | weigh(case)
    except Exception as error:
        return {"version": __version__, "error": f"{type(error).__name__}: {error}"[:300]}


if __name__ == "__main__":
    with open(sys.argv[1]) as lines:
        for line in lines:
            print(json.dumps(answer(json.loads(line))), flush=True)
