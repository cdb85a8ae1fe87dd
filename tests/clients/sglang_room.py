"""SGLang: its own classes size the pools of a cache; run in SGLang's environment as CASES (a JSON object a line).

A case says layers, kv_heads, head_dim (keys and values), tp, page_size, available bytes, and `latent` (values of a
latent, in place of heads) or `window` with window_layers and ratio. Prints, a case a line, the tokens of the pool of
full attention and of windows. DefaultPoolConfigurator and HybridSWAPoolConfigurator are SGLang's, unmodified; the
configs that they read are stand-ins of a server without drafter and disaggregation. A case with `memory_mib` prints
mem_fraction_static instead, as handle_gpu_memory_settings resolves it (also unmodified), with tp, pp, latent and
after_capture.
"""

import json
import sys
from types import SimpleNamespace
from unittest import mock

import sglang_scheduler as imported  # noqa: F401 - before SGLang: it stands in for packages that this does not use
import torch
from sglang.srt.arg_groups import memory_hook
from sglang.srt.configs.model_config import AttentionArch
from sglang.srt.model_executor import pool_configurator


def server(case):
    """What the classes read of a KVCacheConfigurator."""
    first = case["layers"] - case.get("window_layers", 0)
    model = SimpleNamespace(
        hf_config=SimpleNamespace(architectures=["LlamaForCausalLM"]), head_dim=case["head_dim"],
        v_head_dim=case["head_dim"], swa_head_dim=case["head_dim"], swa_v_head_dim=case["head_dim"],
        attention_arch=AttentionArch.MHA, context_len=131072, quantization=None,
        get_num_kv_heads=lambda tp, dcp=1: max(1, case["kv_heads"] // tp),
        get_swa_num_kv_heads=lambda tp: max(1, case["kv_heads"] // tp),
        kv_lora_rank=case.get("latent", 0), qk_rope_head_dim=0,
    )  # fmt: skip
    no_drafter = SimpleNamespace(is_eagle=lambda: False, is_standalone=lambda: False, is_dflash_family=lambda: False)
    return SimpleNamespace(
        model_config=model, kv_cache_dtype=torch.bfloat16, kv_cache_dtype_str="auto", page_size=case["page_size"],
        use_mla_backend=bool(case.get("latent")), is_draft_worker=False, pp_size=1, spec_algorithm=no_drafter,
        server_args=SimpleNamespace(enable_hisparse=False), sliding_window_size=case.get("window"),
        fused_entry_bytes=lambda kind: None, mambaish_config=None,
        layer_info=SimpleNamespace(
            num_effective_layers=case["layers"], start_layer=0, end_layer=case["layers"],
            full_attention_layer_ids=list(range(first)), swa_attention_layer_ids=list(range(first, case["layers"])),
        ),
    )  # fmt: skip


def sized(case):
    parallel = SimpleNamespace(attn_tp_size=case["tp"], attn_dcp_size=1, attn_cp_size=1)
    schedule = SimpleNamespace(max_total_tokens=None, swa_full_tokens_ratio=case.get("ratio", 0.8))
    memory = SimpleNamespace(enable_unified_memory=False, enable_hisparse=False)
    patched = {
        "get_parallel": lambda: parallel, "get_schedule": lambda: schedule, "get_memory": lambda: memory,
        "mambaish_config": lambda config: None, "compute_page_shard_scratch_bytes": lambda *a, **k: 0,
        "is_deepseek_dsa": lambda config: False, "is_minimax_sparse": lambda config: False,
    }  # fmt: skip
    kind = "HybridSWAPoolConfigurator" if case.get("window_layers") else "DefaultPoolConfigurator"
    with (
        mock.patch.multiple(pool_configurator, **patched),
        mock.patch("sglang.srt.layers.cp.utils.get_glm_dsa_layer_split_effective_num_layers", lambda _, layers: layers),
        mock.patch("sglang.srt.layers.attention.qsa.config.parse_qsa_profile", lambda config: None),
        mock.patch("sglang.srt.mem_cache.kv_cache_configurator.is_deepseek_dsa", lambda config: False),
    ):
        sizer = getattr(pool_configurator, kind)(server(case))
        pools = sizer.calculate_pool_sizes(case["available"], case["page_size"])
    return {"tokens": pools.max_total_num_tokens, "window_tokens": pools.swa_max_total_num_tokens}


class Arguments(SimpleNamespace):
    """A server's arguments, none of them given."""

    def __getattr__(self, name):
        return None


def share(case):
    def graphs(backend):
        return SimpleNamespace(max_bs=None, bs=None, backend=backend)

    kinds = memory_hook.Backend
    arguments = Arguments(
        device="cuda", tp_size=case["tp"], pp_size=case["pp"], disaggregation_mode="null", model_path="model",
        cuda_graph_config=SimpleNamespace(decode=graphs(kinds.FULL), prefill=graphs(kinds.FULL)),
        _cuda_graph_config_locked=(), attn_dp_size=1, moe_a2a_backend="none",
    )  # fmt: skip

    def resolve(where, _, **values):
        vars(where).update(values)

    patched = {
        "resolving_view": lambda given: given, "resolved_view": lambda given: given, "declare_resolution": resolve,
        "get_device_memory_capacity": lambda device: case["memory_mib"],
        "use_mla_backend": lambda given: case["latent"],
        "post_capture_kv_sizing_planned": lambda given: case["after_capture"],
        "model_config_of": lambda given: SimpleNamespace(is_multimodal=False),
        "attn_dp_enabled_of": lambda given: False, "get_platform": lambda: SimpleNamespace(is_xpu=False),
    }  # fmt: skip
    with (
        mock.patch.multiple(memory_hook, **patched),
        mock.patch("sglang.srt.arg_groups.cuda_graph_hook.resolving_view", lambda given: given),
        mock.patch(
            "sglang.srt.arg_groups.model_overrides.qwen3_vl.expand_multimodal_decode_graph_to_running_limit",
            lambda *given: None,
        ),
    ):
        memory_hook.handle_gpu_memory_settings(arguments)
    return {"share": arguments.mem_fraction_static, "graphs_mib": reserve(arguments, patched)}


def reserve(arguments, patched):
    with mock.patch.multiple(memory_hook, **patched):
        return memory_hook.reserve_for_graph_mb(arguments)


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        for line in file:
            case = json.loads(line)
            print(json.dumps((share if "memory_mib" in case else sized)(case)), flush=True)
