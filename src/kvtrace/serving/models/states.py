"""The states of linear attention, state space models and short convolutions: one layer's, of one request, on one GPU.

A state is the inputs that a convolution still needs, and the recurrent state. Shapes are vLLM's
(model_executor/layers/mamba/mamba_utils.py): tensor parallelism divides the heads and the inputs of the convolution,
and each token that a drafter predicts adds an input. tests/clients compares them with vLLM's own functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..._base.errors import InputError, UsageError
from .config import BYTES, Fields, config_dtype


@dataclass(frozen=True)
class StateSize:
    """One layer's state of one request."""

    conv: int  # values of past inputs
    recurrent: int  # values of the recurrent state
    recurrent_dtype: str | None = None  # of a mechanism that has one of its own; None = that of the model


@dataclass(frozen=True)
class _Mechanism:
    """Sizes of a state of the whole model."""

    kernel: int  # tokens that the convolution reads
    inputs: int  # values of a token that the convolution reads
    heads: int  # of the recurrent state; 0 = none
    head_values: int = 0  # values of the recurrent state of one head
    group_inputs: int = 0  # of `inputs` in addition, for each of `groups`
    groups: int = 0  # each GPU copies a single one
    dtype: str | None = None  # of the recurrent state
    drafts: bool = True  # the convolution keeps an input for each predicted token


def state_size(fields: Fields, gpus: int = 1, drafted_tokens: int = 0) -> StateSize:
    """The state on one of the GPUs of a tensor-parallel group; InputError if no known field describes it.

    >>> state_size(Fields("config.json", {"conv_L_cache": 3, "hidden_size": 1024}), gpus=2)
    StateSize(conv=1024, recurrent=0, recurrent_dtype=None)
    """
    named = fields.first(*MECHANISMS)
    if named is None:
        raise InputError(
            f"{fields.name}: some layers keep a state that is not modelled. Known: configs with "
            f"{', '.join(MECHANISMS)}."
        )
    size = MECHANISMS[named](fields)
    if size.groups > 1 and size.groups % gpus:
        raise UsageError(
            f"{fields.name}: {gpus} GPUs cannot divide the {size.groups} groups of a state. Try another "
            "--tensor-parallel-size."
        )
    groups = gpus if size.groups == 1 else size.groups
    inputs = _share(fields, size.inputs + groups * size.group_inputs, gpus)
    past = max(size.kernel - 1, 0) + (drafted_tokens if size.drafts and size.inputs else 0)
    return StateSize(past * inputs, _share(fields, size.heads, gpus) * size.head_values, size.dtype)


def _share(fields: Fields, count: int, gpus: int) -> int:
    if count % gpus:
        raise UsageError(
            f"{fields.name}: {gpus} GPUs cannot divide {count:,} heads or inputs of a state evenly. Try another "
            "--tensor-parallel-size."
        )
    return count // gpus


def state_bytes(fields: Fields, dtype: str | None = None, gpus: int = 1, drafted_tokens: int = 0) -> int:
    """Bytes of that state. The recurrent part has `dtype`, else that of the config, else that of the mechanism."""
    size, model = state_size(fields, gpus, drafted_tokens), config_dtype(fields)
    stated = fields.first("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
    recurrent = dtype or (fields.values[stated] if stated else size.recurrent_dtype or model)
    if not isinstance(recurrent, str) or recurrent not in BYTES:
        raise InputError(f"{fields.name}: the dtype of the state is not one of {', '.join(BYTES)}.")
    return size.conv * BYTES[model] + size.recurrent * BYTES[recurrent]


def _gated_delta_net(fields: Fields) -> _Mechanism:
    """Qwen3-Next and later."""
    key_heads, key_dim = fields.whole("linear_num_key_heads"), fields.whole("linear_key_head_dim")
    value_heads, value_dim = fields.whole("linear_num_value_heads"), fields.whole("linear_value_head_dim")
    inputs = 2 * key_heads * key_dim + value_heads * value_dim
    return _Mechanism(fields.whole("linear_conv_kernel_dim"), inputs, value_heads, value_dim * key_dim)


def _kimi_delta(fields: Fields) -> _Mechanism:
    """Kimi delta attention: Kimi Linear, Kimi K3."""
    linear = fields.values["linear_attn_config"]
    inner = Fields(fields.name, linear if isinstance(linear, dict) else {}, fields.hint)
    return _delta(inner, "num_heads", "head_dim", "short_conv_kernel_size")


def _glm_delta(fields: Fields) -> _Mechanism:
    """The same mechanism in GLM-5.3-Flash."""
    return _delta(fields, "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")


def _delta(fields, heads_field, dim_field, kernel_field):
    heads, dim = fields.whole(heads_field), fields.whole(dim_field)
    return _Mechanism(fields.whole(kernel_field, 4), 3 * heads * dim, heads, dim * dim, dtype="float32")


def _nemotron(fields: Fields) -> _Mechanism:
    """Mamba-2 with the names of Nemotron-H, whose recurrent state is float32 in vLLM."""
    heads, dim, states = fields.whole("mamba_num_heads"), fields.whole("mamba_head_dim"), fields.whole("ssm_state_size")
    return _Mechanism(
        fields.whole("conv_kernel"), heads * dim, heads, dim * states, 2 * states, fields.whole("n_groups"), "float32"
    )


def _mamba2(fields: Fields) -> _Mechanism:
    """Mamba-2 with the names of Bamba, Granite 4 and Falcon-H1."""
    heads, states = fields.whole("mamba_n_heads"), fields.whole("mamba_d_state")
    inner = fields.values.get("mamba_d_ssm") or fields.whole("mamba_expand", 2) * fields.whole("hidden_size")
    dim = fields.values.get("mamba_d_head")
    dim = inner // heads if dim in (None, "auto") else fields.whole("mamba_d_head")
    inner, groups = fields.checked("mamba_d_ssm", inner), fields.whole("mamba_n_groups")
    return _Mechanism(fields.whole("mamba_d_conv"), inner, heads, dim * states, 2 * states, groups)


def _mamba1(fields: Fields) -> _Mechanism:
    """Mamba-1 with the names of Jamba: its recurrent state has a row for each input."""
    inner = fields.whole("mamba_expand", 2) * fields.whole("hidden_size")
    return _Mechanism(fields.whole("mamba_d_conv"), inner, inner, fields.whole("mamba_d_state"), drafts=False)


def _lightning(fields: Fields) -> _Mechanism:
    """Lightning attention of MiniMax-01: a matrix for each head."""
    heads = fields.whole("num_attention_heads")
    dim = fields.whole("head_dim", fields.whole("hidden_size", heads) // heads)
    return _Mechanism(0, 0, heads, dim * dim)


def _short_convolution(fields: Fields) -> _Mechanism:
    """LFM2: past inputs only."""
    return _Mechanism(fields.whole("conv_L_cache"), fields.whole("conv_dim", fields.whole("hidden_size")), 0)


MECHANISMS: dict[str, Callable[[Fields], _Mechanism]] = {  # the first field that a config has decides
    "linear_attn_config": _kimi_delta,
    "linear_num_heads": _glm_delta,
    "linear_num_key_heads": _gated_delta_net,
    "mamba_num_heads": _nemotron,
    "mamba_n_heads": _mamba2,
    "mamba_d_state": _mamba1,
    "conv_L_cache": _short_convolution,
    "attn_type_list": _lightning,
}
