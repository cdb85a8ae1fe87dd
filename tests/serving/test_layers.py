"""The layers of a model by kind: small configs of each family worked by hand, and what is refused."""

import pytest

from kvtrace import InputError, UsageError
from kvtrace.cache.layout import LayerKind
from kvtrace.serving.models import cache_bytes, kv_bytes_per_token, layer_kinds

SMALL = {"num_hidden_layers": 4, "hidden_size": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 3}
TOKEN = 2 * 2 * 3 * 2  # keys and values x heads x head_dim x bytes
DELTA = {"linear_num_key_heads": 2, "linear_key_head_dim": 3, "linear_num_value_heads": 4, "linear_value_head_dim": 5,
         "linear_conv_kernel_dim": 4}  # fmt: skip
# 3 past inputs of queries and keys (2 x 2 x 3) and values (4 x 5), and a matrix of 3 x 5 a value head
DELTA_STATE = 3 * (12 + 20) * 2 + 4 * 5 * 3 * 2


def kinds(**fields):
    return layer_kinds(SMALL | fields)


def full(layers, token_bytes=TOKEN):
    return LayerKind("full", layers, token_bytes)


def window(layers, length, token_bytes=TOKEN):
    return LayerKind("window", layers, token_bytes, window=length)


def states(layers, state_bytes):
    return LayerKind("state", layers, state_bytes=state_bytes)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (full(4),)),
        ({"sliding_window": 16}, (window(4, 16),)),  # Mistral
        ({"sliding_window": 16, "use_sliding_window": False}, (full(4),)),  # Qwen2
        ({"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 3}, (full(3), window(1, 16))),
        ({"sliding_window": 16, "sliding_window_pattern": 4}, (full(1), window(3, 16))),  # Command R7B
        ({"sliding_window": 16, "model_type": "gemma2"}, (full(2), window(2, 16))),
        ({"sliding_window": 16, "model_type": "gemma3_text", "num_hidden_layers": 7}, (full(1), window(6, 16))),
        ({"sliding_window": 16, "model_type": "gpt_oss"}, (full(2), window(2, 16))),
        (
            {"sliding_window": 16, "layer_types": ["full_attention", *["sliding_attention"] * 3]},
            (full(1), window(3, 16)),
        ),
        (
            {"sliding_window": 16, "layer_types": {"full_attention": 1, "sliding_attention": 3}},
            (full(1), window(3, 16)),
        ),
        ({"layer_types": ["sliding_attention"] * 4}, (full(4),)),  # no window is stated
        (
            {"hybrid_layer_pattern": [0, 1, 1, 1], "sliding_window": 16, "swa_num_key_value_heads": 4,
             "v_head_dim": 1, "swa_head_dim": 5, "swa_v_head_dim": 2},
            (full(1, 2 * (3 + 1) * 2), window(3, 16, 4 * (5 + 2) * 2)),
        ),  # MiMo
        (
            {"sliding_window": 16, "layer_types": {"full_attention": 1, "sliding_attention": 3},
             "global_head_dim": 9, "num_global_key_value_heads": 1},
            (full(1, 2 * 9 * 2), window(3, 16)),
        ),  # Gemma 4
        (
            {"sliding_window": 16, "sliding_window_pattern": 2, "num_kv_shared_layers": 2},
            (full(1), window(1, 16)),
        ),  # Gemma 3n: the last two layers keep nothing
        ({"attention_chunk_size": 32}, (full(1), LayerKind("chunk", 3, TOKEN, window=32))),  # Llama 4
        (
            {"attention_chunk_size": 32, "no_rope_layers": [1, 0, 1, 0]},
            (full(2), LayerKind("chunk", 2, TOKEN, window=32)),
        ),
        ({"full_attention_interval": 2} | DELTA, (full(2), states(2, DELTA_STATE))),  # Qwen3-Next
        (
            {"full_attention_interval": 4, "mamba_ssm_dtype": "float32"} | DELTA,
            (full(1), states(3, DELTA_STATE + 4 * 5 * 3 * 2)),
        ),  # Qwen3.5
        (
            {"kv_lora_rank": 8, "qk_rope_head_dim": 2, "linear_attn_config": {
                "full_attn_layers": [4], "kda_layers": [1, 2, 3], "num_heads": 2, "head_dim": 3,
                "short_conv_kernel_size": 4}},
            (LayerKind("latent", 1, 20), states(3, 3 * 3 * 6 * 2 + 2 * 3 * 3 * 4)),
        ),  # Kimi Linear, whose recurrent state is float32
        (
            {"hybrid_override_pattern": "M-*E", "mamba_num_heads": 2, "mamba_head_dim": 3, "n_groups": 1,
             "ssm_state_size": 5, "conv_kernel": 4},
            (full(1), states(1, 3 * (6 + 10) * 2 + 2 * 3 * 5 * 4)),
        ),  # Nemotron-H
        (
            {"attn_layer_period": 4, "attn_layer_offset": 2, "mamba_d_state": 5, "mamba_d_conv": 4, "mamba_expand": 2},
            (full(1), states(3, 3 * 16 * 2 + 16 * 5 * 2)),
        ),  # Jamba
        (
            {"attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": "auto", "mamba_n_groups": 1,
             "mamba_d_state": 5, "mamba_d_conv": 4, "mamba_expand": 2},
            (full(1), states(3, 3 * (16 + 10) * 2 + 16 * 5 * 2)),
        ),  # Bamba; Granite 4 has the same fields and layer_types
        (
            {"model_type": "falcon_h1", "mamba_n_heads": 4, "mamba_d_head": 2, "mamba_d_ssm": 8, "mamba_n_groups": 1,
             "mamba_d_state": 5, "mamba_d_conv": 4},
            (full(4), states(4, 3 * (8 + 10) * 2 + 8 * 5 * 2)),
        ),  # attention and a state in each layer
        ({"attn_type_list": [0, 0, 0, 1]}, (full(1), states(3, 4 * 3 * 3 * 2))),  # MiniMax-01
        ({"full_attn_idxs": [1, 3], "conv_L_cache": 3}, (full(2), states(2, 2 * 8 * 2))),  # LFM2
        (
            {"kv_lora_rank": 8, "qk_rope_head_dim": 2, "index_head_dim": 6},
            (LayerKind("latent", 4, 20), LayerKind("latent", 4, 12, indexer=True)),
        ),  # DeepSeek V3.2
        (
            {"kv_lora_rank": 8, "qk_rope_head_dim": 2, "index_head_dim": 6, "num_hidden_layers": 11,
             "index_topk_freq": 4, "index_skip_topk_offset": 3},
            (LayerKind("latent", 11, 20), LayerKind("latent", 5, 12, indexer=True)),
        ),  # GLM-5.2: layers 0, 1, 2, 6 and 10 have indexers
        (
            {"compress_ratios": [0, 4, 128, 4, 0], "head_dim": 8, "index_head_dim": 6, "sliding_window": 16},
            (
                window(4, 16, 16),
                LayerKind("latent", 2, 16, tokens_per_entry=4),
                LayerKind("latent", 1, 16, tokens_per_entry=128),
                LayerKind("latent", 2, 12, tokens_per_entry=4, indexer=True),
            ),
        ),  # DeepSeek V4; the fifth ratio is the draft's
    ],
)  # fmt: skip
def test_a_small_config_of_each_family_by_hand(fields, expected):
    assert kinds(**fields) == expected


def test_a_dtype_of_the_keys_and_values_leaves_states_alone():
    plain, small = (layer_kinds(SMALL | DELTA | {"full_attention_interval": 2}, dtype) for dtype in (None, "fp8"))
    assert small[0].token_bytes == plain[0].token_bytes // 2 and small[1] == plain[1]
    assert layer_kinds(SMALL, "fp4") == (full(4, TOKEN // 4),)


def test_draft_layers_are_counted_on_demand():
    assert layer_kinds(SMALL | {"num_nextn_predict_layers": 2}) == (full(4),)
    assert layer_kinds(SMALL | {"num_nextn_predict_layers": 2}, draft=True) == (full(6),)
    assert layer_kinds(SMALL | {"use_mtp": True, "num_mtp_modules": 3}, draft=True) == (full(7),)


def test_a_request_keeps_a_window_and_a_state_at_most():
    found = kinds(sliding_window=16, sliding_window_pattern=4)
    assert [cache_bytes(found, tokens) for tokens in (10, 16, 100)] == [4 * TOKEN * 10, 4 * TOKEN * 16, TOKEN * 148]
    found = kinds(full_attention_interval=4, **DELTA)
    assert cache_bytes(found, 10) == TOKEN * 10 + 3 * DELTA_STATE
    assert cache_bytes(found, 10, states=False) == TOKEN * 10
    assert cache_bytes((LayerKind("latent", 1, 8, tokens_per_entry=4),), 11) == 16


def test_the_bytes_of_a_token_count_windows_in_full_and_states_not():
    assert kv_bytes_per_token(SMALL | {"sliding_window": 16, "sliding_window_pattern": 4}) == 4 * TOKEN
    assert kv_bytes_per_token(SMALL | DELTA | {"full_attention_interval": 4}) == TOKEN


def test_fields_that_gemma_3_leaves_out_have_the_values_of_its_model_type():
    inner = {"model_type": "gemma3_text", "num_hidden_layers": 34, "hidden_size": 2560, "sliding_window": 1024}
    assert layer_kinds({"text_config": inner}) == layer_kinds("gemma-3-4b")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"layer_types": ["full_attention", "quantum77"]}, "layer_types has a kind of layer"),
        ({"layer_types": 77}, "layer_types has a kind of layer"),
        ({"layer_types": ["full_attention"]}, "the kinds of 1 layers are stated, not of 4"),
        ({"layer_types": ["linear_attention"] * 4}, "keep a state that is not modelled"),
        ({"hybrid_override_pattern": "MX77"}, "hybrid_override_pattern has a letter"),
        ({"hybrid_layer_pattern": "77"}, "hybrid_layer_pattern is not a list"),
        ({"full_attention_interval": 2, "linear_num_key_heads": 2}, "linear_key_head_dim is missing"),
        ({"linear_attn_config": {}}, "full_attn_layers is not a list"),
        ({"sliding_window": -77}, "sliding_window is not a whole number"),
        ({"ssm_cfg": {}}, "ssm_cfg is not modelled"),
        ({"num_kv_shared_layers": 77}, "num_kv_shared_layers"),
        ({"compress_ratios": [4] * 4}, "index_head_dim is missing"),
        ({"mamba_ssm_dtype": "int77", "full_attention_interval": 2} | DELTA, "the dtype of the state"),
    ],
)
def test_what_is_not_modelled_is_one_line_that_names_the_field(fields, named):
    with pytest.raises(InputError, match=named) as caught:
        kinds(**fields)
    assert "\n" not in str(caught.value) and "77" not in str(caught.value)


def test_an_unknown_dtype_of_keys_and_values_is_refused():
    with pytest.raises(UsageError, match="The dtype of the KV must be one of"):
        layer_kinds(SMALL, "fp77")
