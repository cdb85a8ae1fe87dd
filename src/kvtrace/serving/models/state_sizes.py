"""Values of a state: the inputs that a convolution still needs, and the recurrent state, of one layer and request.

Shapes are vLLM's (model_executor/layers/mamba/mamba_utils.py); tests/clients compares them with its own functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..._base.errors import InputError
from .config import Fields
from .dtypes import BYTES, config_dtype


@dataclass(frozen=True)
class StateSize:
    """One layer's state of one request."""

    conv: int  # values of past inputs
    recurrent: int  # values of the recurrent state
    recurrent_dtype: str | None = None  # of a mechanism that has one of its own; None = that of the model


def state_size(fields: Fields) -> StateSize:
    """The state of a linear-attention, state-space or convolution layer; InputError if no known field describes it.

    >>> state_size(Fields("config.json", {"conv_L_cache": 3, "hidden_size": 1024}))
    StateSize(conv=2048, recurrent=0, recurrent_dtype=None)
    """
    for field, size in MECHANISMS.items():
        if field in fields:
            return size(fields)
    raise InputError(
        f"{fields.name}: some layers keep a state that is not modelled. Known: configs with {', '.join(MECHANISMS)}."
    )


def state_bytes(fields: Fields, dtype: str | None = None) -> int:
    """Bytes of that state. The recurrent part has `dtype`, else that of the config, else that of the mechanism."""
    size, model = state_size(fields), config_dtype(fields)
    stated = fields.first("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
    recurrent = dtype or (fields.values[stated] if stated else size.recurrent_dtype or model)
    if not isinstance(recurrent, str) or recurrent not in BYTES:
        raise InputError(f"{fields.name}: the dtype of the state is not one of {', '.join(BYTES)}.")
    return size.conv * BYTES[model] + size.recurrent * BYTES[recurrent]


def _gated_delta_net(fields: Fields) -> StateSize:
    """Qwen3-Next and later."""
    key_heads, key_dim = fields.whole("linear_num_key_heads"), fields.whole("linear_key_head_dim")
    value_heads, value_dim = fields.whole("linear_num_value_heads"), fields.whole("linear_value_head_dim")
    inputs = 2 * key_heads * key_dim + value_heads * value_dim
    return StateSize((fields.whole("linear_conv_kernel_dim") - 1) * inputs, value_heads * value_dim * key_dim)


def _kimi_delta(fields: Fields) -> StateSize:
    """Kimi delta attention: Kimi Linear, Kimi K3."""
    linear = fields.values["linear_attn_config"]
    inner = Fields(fields.name, linear if isinstance(linear, dict) else {}, fields.hint)
    return _delta(inner, "num_heads", "head_dim", "short_conv_kernel_size")


def _glm_delta(fields: Fields) -> StateSize:
    """The same mechanism in GLM-5.3-Flash."""
    return _delta(fields, "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")


def _delta(fields, heads_field, dim_field, kernel_field):
    heads, dim = fields.whole(heads_field), fields.whole(dim_field)
    return StateSize((fields.whole(kernel_field, 4) - 1) * 3 * heads * dim, heads * dim * dim, "float32")


def _nemotron(fields: Fields) -> StateSize:
    """Mamba-2 with the names of Nemotron-H, whose recurrent state is float32 in vLLM."""
    heads, dim, states = fields.whole("mamba_num_heads"), fields.whole("mamba_head_dim"), fields.whole("ssm_state_size")
    inputs = heads * dim + 2 * fields.whole("n_groups") * states
    return StateSize((fields.whole("conv_kernel") - 1) * inputs, heads * dim * states, "float32")


def _mamba2(fields: Fields) -> StateSize:
    """Mamba-2 with the names of Bamba, Granite 4 and Falcon-H1."""
    heads, states = fields.whole("mamba_n_heads"), fields.whole("mamba_d_state")
    inner = fields.values.get("mamba_d_ssm") or fields.whole("mamba_expand", 2) * fields.whole("hidden_size")
    dim = fields.values.get("mamba_d_head")
    dim = inner // heads if dim in (None, "auto") else fields.whole("mamba_d_head")
    inputs = fields.checked("mamba_d_ssm", inner) + 2 * fields.whole("mamba_n_groups") * states
    return StateSize((fields.whole("mamba_d_conv") - 1) * inputs, heads * dim * states)


def _mamba1(fields: Fields) -> StateSize:
    """Mamba-1 with the names of Jamba."""
    inner = fields.whole("mamba_expand", 2) * fields.whole("hidden_size")
    return StateSize((fields.whole("mamba_d_conv") - 1) * inner, inner * fields.whole("mamba_d_state"))


def _lightning(fields: Fields) -> StateSize:
    """Lightning attention of MiniMax-01: a matrix for each head."""
    heads = fields.whole("num_attention_heads")
    dim = fields.whole("head_dim", fields.whole("hidden_size", heads) // heads)
    return StateSize(0, heads * dim * dim)


def _short_convolution(fields: Fields) -> StateSize:
    """LFM2: past inputs only."""
    width = fields.whole("conv_dim", fields.whole("hidden_size"))
    return StateSize((fields.whole("conv_L_cache") - 1) * width, 0)


MECHANISMS: dict[str, Callable[[Fields], StateSize]] = {  # the first field that a config has decides
    "linear_attn_config": _kimi_delta,
    "linear_num_heads": _glm_delta,
    "linear_num_key_heads": _gated_delta_net,
    "mamba_num_heads": _nemotron,
    "mamba_n_heads": _mamba2,
    "mamba_d_state": _mamba1,
    "conv_L_cache": _short_convolution,
    "attn_type_list": _lightning,
}
