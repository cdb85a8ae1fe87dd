"""The matrices of MLPs and experts, from a config.json: which layers have experts, how many, how wide.

Field names are those of Mixtral, Qwen-MoE, DeepSeek, Ernie, Gemma 4, Granite, Jamba, Kimi, LFM2, Llama 4, MiMo,
MiniMax, Nemotron and Step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ..._base.errors import InputError
from .config import Fields, numbers

Split = Literal["outputs", "inputs", "heads", "vocabulary", "whole"]
UNGATED = {"apertus", "arcee", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "nemotron", "nemotron_h", "opt", "phi",
           "starcoder2"}  # fmt: skip  # MLPs of two matrices, not three
FLOAT32_ROUTERS = ("bailing", "mimo_v2", "minimax_m2", "minimax_m3")  # model types whose router vLLM keeps in 32 bits
MLP_NAMES = {"minimax_m2": "block_sparse_moe", "mixtral": "block_sparse_moe", "llama4": "feed_forward"}


@dataclass(frozen=True)
class Matrix:
    """A matrix, or one of each expert of a layer."""

    module: str  # its name in a checkpoint, within its layer
    outputs: int
    inputs: int
    split: Split = "outputs"
    experts: int = 0  # that have one each; 0 = it is not of an expert
    used: int = 1  # of these, by one token
    heads: int = 0  # of keys or values, if they divide it
    is_linear: bool = True  # an engine may quantise it
    bytes_each: int = 0  # of a parameter, if it has a dtype of its own

    @property
    def parameters(self) -> int:
        """Its parameters, of all experts."""
        return self.outputs * self.inputs * (self.experts or 1)

    @property
    def active(self) -> int:
        """The parameters that one token uses."""
        return self.outputs * self.inputs * self.used


def model_type_of(fields: Fields) -> str:
    """The model type that a config states, or ''."""
    return str(fields.values.get("model_type", ""))


def is_gated(fields: Fields) -> bool:
    """Whether an MLP has three matrices (gate, up, down), not two."""
    return model_type_of(fields) not in UNGATED


def mlp_kinds(fields: Fields, layers: int) -> list[str]:
    """The MLP of each layer: dense, experts, both or none."""
    if "hybrid_override_pattern" in fields:  # Nemotron-H: a layer is a mixer or an MLP
        return [
            {"-": "dense", "E": "experts"}.get(letter, "none") for letter in fields.values["hybrid_override_pattern"]
        ]
    stated = fields.values.get("layers_block_type")
    if model_type_of(fields) == "nemotron_h" and isinstance(stated, list):
        return [{"mlp": "dense", "moe": "experts"}.get(name, "none") for name in stated]
    mixed = expert_layers(fields, layers)
    kind = "both" if fields.values.get("enable_moe_block") is True else "experts"  # Gemma 4
    return [kind if layer in mixed else "dense" for layer in range(layers)]


def expert_layers(fields: Fields, layers: int) -> set[int]:
    """The layers with experts, by the fields of each family."""
    if not expert_count(fields):
        return set()
    if "mlp_layer_types" in fields:
        stated = fields.values["mlp_layer_types"]
        return {layer for layer, name in enumerate(stated) if name == "sparse"} if isinstance(stated, list) else set()
    if isinstance(fields.values.get("moe_layer_freq"), list):  # MiMo, MiniMax M3: a flag for each layer
        flags = numbers(fields, fields.values, "moe_layer_freq")
        if len(flags) != layers or not set(flags) <= {0, 1}:
            raise InputError(f"{fields.name}: moe_layer_freq is not a whole number from 1, or a flag for each layer.")
        return {layer for layer, flag in enumerate(flags) if flag}
    first = fields.whole(fields.first(*FIRST) or FIRST[0], 0, least=0)  # dense layers come first, then
    every = fields.whole(fields.first("moe_layer_freq", "expert_layer_period", "moe_layer_interval") or "", 1)
    offset = fields.whole("expert_layer_offset", 0, least=0)  # layers 0, f, 2f, ... have experts
    step = fields.whole("decoder_sparse_step", 1)  # Qwen: layers s - 1, 2s - 1, ... have experts
    step = fields.whole("interleave_moe_layer_step", step)  # Llama 4, likewise
    dense = numbers(fields, fields.values, "mlp_only_layers") if "mlp_only_layers" in fields else []  # except these
    mixed = {layer for layer in range(first, layers) if layer % every == offset % every and (layer + 1) % step == 0}
    return mixed - set(dense)


FIRST = ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers")
COUNTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_k", "moe_top_k")
SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
SHARED_WIDTHS = ("moe_shared_expert_intermediate_size", "shared_expert_intermediate_size", "share_expert_dim",
                 "shared_intermediate_size")  # fmt: skip  # of each shared expert, where it is not as wide as another


def expert_count(fields: Fields) -> int:
    """The routed experts of a layer; 0 without any."""
    named = fields.first(*COUNTS)
    return fields.whole(named, least=0) if named else 0


def experts_per_token(fields: Fields) -> int:
    """The routed experts that one token uses."""
    return fields.whole(fields.first(*PER_TOKEN) or PER_TOKEN[0], greatest=expert_count(fields))


def expert_width(fields: Fields) -> int:
    """The width of one expert; Mixtral has none of its own."""
    return fields.whole(fields.first("moe_intermediate_size") or "intermediate_size")


def shared_width(fields: Fields) -> int:
    """The total width of the experts that every token passes."""
    if model_type_of(fields).startswith("llama4"):
        return expert_width(fields)
    count = fields.first(*SHARED)
    width = fields.first(*SHARED_WIDTHS)
    if count is None:
        return fields.whole(width, least=0) if width else 0
    return fields.whole(count, least=0) * (fields.whole(width) if width else expert_width(fields))


def dense_width(fields: Fields) -> int:
    """The width of a layer's MLP without experts."""
    named = fields.first("intermediate_size_mlp", "dense_intermediate_size") or "intermediate_size"
    width = fields.whole(named)
    if fields.values.get("block_auto_adjust_ff_dim") is True:  # LFM2: two thirds, rounded up
        multiple = fields.whole("block_multiple_of", 256)
        width = -(-(2 * width // 3) // multiple) * multiple
    return width


def _mlp(fields: Fields, module: str, width: int, inputs: int, experts: int = 0, used: int = 1) -> list[Matrix]:
    parts = [
        Matrix(f"{module}.up_proj", width, inputs, experts=experts, used=used),
        Matrix(f"{module}.down_proj", inputs, width, "inputs", experts=experts, used=used),
    ]
    gate = Matrix(f"{module}.gate_proj", width, inputs, experts=experts, used=used)
    return [gate, *parts] if is_gated(fields) else parts


def _mlp_name(fields: Fields) -> str:
    model_type = model_type_of(fields)
    default = "mixer" if model_type == "nemotron_h" else "mlp"
    return next((name for kind, name in MLP_NAMES.items() if model_type.startswith(kind)), default)


def _dense(fields: Fields, times: int = 1) -> list[Matrix]:
    return _mlp(fields, _mlp_name(fields), times * dense_width(fields), fields.whole("hidden_size"))


def _experts(fields: Fields, times: int = 1) -> list[Matrix]:
    """The router, the experts, those that every token passes, and what leads into a narrower width and back."""
    hidden, name, count = fields.whole("hidden_size"), _mlp_name(fields), expert_count(fields)
    inner = fields.first("moe_latent_size", "routed_expert_hidden_size")  # Nemotron 3, Kimi K3
    narrow = fields.whole(inner) if inner else hidden
    used = experts_per_token(fields)
    precise = 4 if model_type_of(fields).startswith(FLOAT32_ROUTERS) else 0
    parts = [Matrix(f"{name}.gate", count, hidden, "whole", is_linear=False, bytes_each=precise)]
    if inner:
        parts += [
            Matrix(f"{name}.fc1_latent_proj", narrow, hidden, "whole"),
            Matrix(f"{name}.fc2_latent_proj", hidden, narrow, "whole"),
        ]
    experts = "experts" if fields.values.get("enable_moe_block") is True else f"{name}.experts"  # Gemma 4
    parts += _mlp(fields, f"{experts}.0", expert_width(fields), narrow, count, used)
    shared = shared_width(fields)
    module = "shared_expert" if "shared_expert_intermediate_size" in fields else "shared_experts"
    return [*parts, *(_mlp(fields, f"{name}.{module}", shared, hidden) if shared else [])]


MLPS: dict[str, Callable[[Fields, int], list[Matrix]]] = {  # with what multiplies the width of a dense one
    "dense": _dense,
    "experts": _experts,
    "both": lambda fields, times: [*_dense(fields, times), *_experts(fields)],
    "none": lambda fields, times: [],
}
