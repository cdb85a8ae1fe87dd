"""GPUs, models, the roofline and prices: numbers worked by hand, laws, and what is refused."""

import json
import math
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace import InputError, UsageError
from kvtrace._base.input_files import MAX_BYTES
from kvtrace.serving.hardware import GPUS, LINKS, Gpu, Link, Prices, Roofline, gpu
from kvtrace.serving.hardware.gpus import FIGURES
from kvtrace.serving.models import model_shape
from kvtrace.serving.models.layers import kv_bytes_per_token
from tests.reference import serving_model as plain

MODELS = {path.stem: path for path in sorted((Path(__file__).parents[1] / "data/models").glob("*.json"))}
PUBLISHED = {  # parameters, active parameters
    "llama-3.1-8b": (8.03e9, 8.03e9),
    "llama-3-70b": (70.6e9, 70.6e9),
    "mixtral-8x7b": (46.7e9, 12.9e9),
    "qwen3-30b-a3b": (30.5e9, 3.3e9),
    "deepseek-v3": (671e9, 37e9),
}
SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 10,
    "torch_dtype": "bfloat16",
}
LATENT = {"kv_lora_rank": 3, "qk_nope_head_dim": 2, "qk_rope_head_dim": 1, "v_head_dim": 4}
# 100 FLOP/s, 1000 bytes/s, so that small models have seconds to work out
SLOW = Gpu("slow", flops=100, bandwidth=1000, memory=10_000, price_per_hour=36)
LLAMA = Roofline(model_shape(MODELS["llama-3.1-8b"]), GPUS["h100"])
ROOFLINES = [Roofline(model_shape(path), row, 8) for path in MODELS.values() for row in GPUS.values()]

rooflines = st.sampled_from(ROOFLINES)
counts = st.integers(0, 2_000_000)


def small(**changed):
    return SMALL | changed


# --- GPUs


def test_a_name_is_a_row_of_the_table_in_any_case():
    assert gpu("h100") is gpu("H100") is GPUS["h100"]
    assert all(name == row.name for name, row in GPUS.items())


def test_a_file_describes_a_gpu_with_the_same_keys(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"name": "mine", "flops": 1e15, "bandwidth": 4e12, "memory": 9e10, "price_per_hour": 0}')
    assert gpu(path) == gpu(str(path)) == Gpu("mine", 1e15, 4e12, 9e10, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("\xff", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[1]", "not a JSON object"),
        ('{"name": "x"}', "lacks flops, bandwidth, memory, price_per_hour"),
        ('{"name": 5, "flops": 1, "bandwidth": 1, "memory": 1, "price_per_hour": 1}', "name must be a text"),
        ('{"name": "x", "flops": -77, "bandwidth": 1, "memory": 1, "price_per_hour": 1}', "flops must be a number"),
        (
            '{"name": "x", "flops": 1, "bandwidth": "77", "memory": 1, "price_per_hour": 1}',
            "bandwidth must be a number",
        ),
        ('{"name": "x", "flops": 1, "bandwidth": 1, "memory": true, "price_per_hour": 1}', "memory must be a number"),
        ('{"name": "x", "flops": 1, "bandwidth": 1, "memory": 7.7e30, "price_per_hour": 1}', "memory must be a number"),
        ('{"name": "x", "flops": 1, "bandwidth": 1, "memory": null, "price_per_hour": 1}', "memory must be a number"),
        (
            '{"name": "x", "flops": 1, "bandwidth": 1, "memory": 1, "price_per_hour": -77}',
            "price_per_hour must be a number",
        ),
        ('{"name": "x", "flops": 1, "bandwidth": 1, "memory": 1, "price_per_hour": 1, "k77": 1}', "has unknown keys"),
    ],
)
def test_a_file_that_describes_no_gpu_is_refused_in_one_line_without_its_values(tmp_path, text, message):
    path = tmp_path / "gpu.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=message) as caught:
        gpu(path)
    said = str(caught.value)
    assert "gpu.json" in said and "\n" not in said and "77" not in said.replace(str(path), "")
    assert caught.value.__context__ is None


@pytest.mark.parametrize("name", ["b9000", "", ".", "no/such.json", "a\0b", "x" * 5000, None, 100, [], b"h100"])
def test_a_name_that_is_neither_row_nor_file_is_refused(name):
    with pytest.raises(UsageError, match="Try h100, h200, .*, or a JSON file with name, flops"):
        gpu(name)


def test_a_log_given_by_mistake_is_not_read_to_its_end(tmp_path):
    path = tmp_path / "log.jsonl"
    with path.open("wb") as file:
        file.write(b"{}" + b" " * MAX_BYTES)
    with pytest.raises(UsageError, match="a page or two"):
        gpu(path)


# --- models


def test_each_known_model_has_a_file():
    assert MODELS.keys() == PUBLISHED.keys()


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameters_are_the_published_ones_within_3_percent(name):
    shape, (parameters, active) = model_shape(MODELS[name]), PUBLISHED[name]
    assert shape.parameters == pytest.approx(parameters, rel=0.03)
    assert shape.active_parameters == pytest.approx(active, rel=0.03)


def test_llama_8b_has_its_published_parameters_but_for_65_norms():
    assert model_shape(MODELS["llama-3.1-8b"]).parameters == 8_030_261_248 - 65 * 4096


@pytest.mark.parametrize(("name", "kv"), [("llama-3-70b", 327_680), ("llama-3.1-8b", 131_072), ("deepseek-v3", 70_272)])
def test_kv_bytes_are_those_that_kv_bytes_has(name, kv):
    assert model_shape(MODELS[name]).kv_bytes_per_token == kv_bytes_per_token(MODELS[name]) == kv


@pytest.mark.parametrize(
    "config",
    [
        small(),
        small(head_dim=5, tie_word_embeddings=True),
        small(num_local_experts=4, num_experts_per_tok=2),
        small(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=3, decoder_sparse_step=2),
        small(
            num_experts=4, num_experts_per_tok=2, moe_intermediate_size=3, decoder_sparse_step=2, num_hidden_layers=3
        ),
        small(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=3, mlp_only_layers=[1]),
        small(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=3, shared_expert_intermediate_size=7),
        small(n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=3, n_shared_experts=2) | LATENT,
        small(
            n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=3, first_k_dense_replace=1, q_lora_rank=5
        )
        | LATENT,
        small(n_routed_experts=4, num_experts_per_tok=1, moe_intermediate_size=3, moe_layer_freq=2),
        *(json.loads(path.read_text()) for path in MODELS.values()),
    ],
)
def test_parameters_are_those_of_the_matrices_added_up(config):
    found = list(plain.matrices(config))
    shape = model_shape(config)
    assert shape.parameters == sum(rows * columns * held for rows, columns, held, _ in found)
    assert shape.active_parameters == sum(rows * columns * used for rows, columns, _, used in found)


def test_a_small_model_by_hand():
    # attention: q 8x8, k and v 8x4 each, o 8x8 = 192; MLP: 3 x 8x16 = 384; two layers; embedding and head 80 each
    shape = model_shape(SMALL)
    assert shape.parameters == shape.active_parameters == 2 * (192 + 384) + 160
    assert shape.weight_bytes == 2 * shape.parameters
    assert shape.kv_bytes_per_token == 2 * 2 * 2 * 2 * 2  # K and V, layers, KV heads, head_dim, bytes
    assert shape.flops_per_pair == 2 * 2 * 4 * 2  # 2 x layers x heads x head_dim


def test_latent_attention_multiplies_keys_and_values_of_their_own_widths():
    # 2 layers x 4 heads x (2 + 1 of a key, 4 of a value)
    assert model_shape(small() | LATENT).flops_per_pair == 2 * 4 * (3 + 4)


def test_mlps_without_a_gate_have_two_matrices():
    assert model_shape(SMALL).parameters - model_shape(small(model_type="gpt_neox")).parameters == 2 * 8 * 16


def test_a_model_with_images_keeps_its_shape_in_text_config():
    inner = {key: value for key, value in SMALL.items() if key != "torch_dtype"}
    assert model_shape({"torch_dtype": "float32", "text_config": inner}).weight_bytes == 4 * 1312


def test_null_is_as_good_as_missing():
    assert model_shape(small(kv_lora_rank=None, num_experts=None, head_dim=None, tie_word_embeddings=None)) == (
        model_shape(SMALL)
    )


@pytest.mark.parametrize(
    ("changed", "size"),
    [
        ({"torch_dtype": "float32"}, 4 * 1312),
        ({"torch_dtype": None, "dtype": "float16"}, 2 * 1312),
        # 160 of embedding and head stay; 14 matrices of 1,152 parameters have a scale each
        ({"quantization_config": {"quant_method": "fp8"}}, 320 + 1152 + 14 * 4),
        # 2.5 bytes of scale and zero point for each output, as all inputs are one group: 24 + 40 in each layer
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, 320 + 576 + 2 * (24 + 40) * 2.5),
        ({"quantization_config": {"quant_method": "mxfp4"}}, 2 * 1312),  # experts alone
    ],
)
def test_weights_are_as_large_as_the_config_says(changed, size):
    assert model_shape(small(**changed)).weight_bytes == size


def test_dtypes_that_are_given_replace_those_of_the_config():
    shape = model_shape(small(quantization_config={"quant_method": "unheard"}), dtype="int4", kv_dtype="fp8")
    assert (shape.weight_bytes, shape.kv_bytes_per_token) == (320 + 576 + 320, 16)
    for wrong in ("float3", "", 7, []):
        with pytest.raises(UsageError, match="must be one of"):
            model_shape(SMALL, dtype=wrong)
        with pytest.raises(UsageError, match="must be one of"):
            model_shape(SMALL, kv_dtype=wrong)


def test_a_model_of_experts_alone_needs_no_width_of_a_dense_layer():
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 3}
    assert model_shape(small(intermediate_size=None, **experts)).parameters == model_shape(small(**experts)).parameters
    with pytest.raises(InputError, match="intermediate_size is missing"):
        model_shape(small(intermediate_size=None, mlp_only_layers=[0], **experts))


@pytest.mark.parametrize("field", sorted(SMALL.keys() - {"torch_dtype", "num_key_value_heads"}))
def test_a_missing_field_is_named(field):
    with pytest.raises(InputError, match=f"{field} is missing"):
        model_shape({key: value for key, value in SMALL.items() if key != field})


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"num_hidden_layers": -77}, "num_hidden_layers is not a whole number"),
        ({"num_hidden_layers": 77_000_000}, "num_hidden_layers is not a whole number"),
        ({"hidden_size": "s77"}, "hidden_size"),
        ({"hidden_size": 77.5}, "hidden_size"),
        ({"vocab_size": True}, "vocab_size"),
        ({"num_attention_heads": 770}, "head_dim"),  # wider than the model: no dimension is left for a head
        ({"tie_word_embeddings": "s77"}, "tie_word_embeddings is neither"),
        ({"torch_dtype": "s77"}, "the dtype is not one of"),
        ({"torch_dtype": ["s77"]}, "the dtype is not one of"),
        ({"quantization_config": {"quant_method": "s77"}}, "unknown quantisation"),
        ({"quantization_config": "s77"}, "unknown quantisation"),
        ({"num_experts": 4}, "num_experts_per_tok is missing"),
        ({"num_experts": 4, "num_experts_per_tok": 77}, "num_experts_per_tok is not a whole number"),
        ({"num_experts": 4, "num_experts_per_tok": 2, "mlp_only_layers": "s77"}, "mlp_only_layers"),
        ({"num_experts": 4, "num_experts_per_tok": 2, "moe_layer_freq": [0, 77]}, "moe_layer_freq"),
        ({"kv_lora_rank": 77}, "qk_rope_head_dim is missing"),
        ({"block_configs": [77]}, "layers with block_configs have KV bytes, but no times"),
    ],
)
def test_a_wrong_field_is_named_and_its_value_not_shown(changed, named):
    with pytest.raises(InputError, match=named) as caught:
        model_shape(small(**changed))
    assert "77" not in str(caught.value)


def test_a_file_that_is_no_config_is_refused(tmp_path):
    path = tmp_path / "config.json"
    for text, message in [("{'secret-77'", "not valid JSON"), ('["secret-77"]', "not a JSON object")]:
        path.write_text(text)
        with pytest.raises(InputError, match=message) as caught:
            model_shape(path)
        assert "secret" not in str(caught.value) and caught.value.__context__ is None
    (tmp_path / "empty").mkdir()
    for missing in (tmp_path / "none.json", tmp_path / "empty", 5, None):
        with pytest.raises(
            UsageError, match=r"Try a name that kvtrace models lists, or the path of a model's config\.json"
        ):
            model_shape(missing)


# --- the roofline


def test_the_sizes_of_a_small_model_by_hand():
    # a layer: 3 x 8 x 16 of the MLP and 8 x (8 + 4 + 4 + 8) of attention are 576; the vocabulary has 80, twice
    shape = model_shape(SMALL)
    assert (shape.parameters, shape.matrix_parameters, shape.matrix_bytes, shape.head_bytes) == (1312, 1152, 2304, 160)
    # 64 of the norms, 16 of the queries, 3 x 8 of keys and values, 48 of the MLP, in 2 layers of 2 bytes
    assert shape.activation_bytes_per_token == 2 * 2 * (64 + 16 + 24 + 48)


def test_a_tied_head_is_read_and_experts_count_as_a_token_uses_them():
    tied = model_shape(small(tie_word_embeddings=True))
    assert (tied.matrix_parameters, tied.head_bytes) == (1152, 160)
    mixed = model_shape(small(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=6))
    # a layer: 192 of attention, 32 of the router, 144 of an expert, of which a token uses two
    assert (mixed.matrix_parameters, mixed.matrix_bytes) == (2 * (192 + 32 + 288), 2 * 2 * (192 + 32 + 576))
    assert mixed.activation_bytes_per_token == 2 * 2 * (64 + 16 + 24 + 3 * 12)
    # keys and values of latent attention are 3 + 1 wide
    assert model_shape(small(**LATENT)).activation_bytes_per_token == 2 * 2 * (64 + 2 * 4 * 3 + 3 * 4 + 48)


def test_the_five_coefficients_by_hand():
    # 1152 parameters of 2 bytes, 608 bytes of activations, 32 FLOP a pair, 32 bytes of KV a token, 160 of the head;
    # 2 GPUs at half of 100 FLOP/s and of 1000 B/s
    roofline = Roofline(
        model_shape(SMALL), SLOW, 2, compute_share=0.5, bandwidth_share=0.5, attention_bandwidth_share=0.4
    )
    assert roofline.seconds_per_token == pytest.approx(2 * 1152 / 100 + 608 / 1000)
    assert roofline.seconds_per_pair == 32 / 100
    assert roofline.seconds_per_step == 2304 / 1000
    assert roofline.seconds_per_cached_token == 32 / 800
    assert roofline.head_s == 160 / 1000


def test_the_shares_are_those_of_the_gpu_unless_they_are_given():
    roofline = Roofline(model_shape(SMALL), replace(SLOW, matmul_share=0.25, bandwidth_share=0.5))
    assert (roofline.reached_compute_share, roofline.reached_bandwidth_share) == (0.25, 0.5)
    assert (roofline.seconds_per_pair, roofline.head_s) == (32 / 25, 160 / 500)
    given = replace(roofline, compute_share=1, bandwidth_share=1)
    assert (given.seconds_per_pair, given.head_s) == (32 / 100, 160 / 1000)


def test_a_prefill_by_hand():
    roofline = exact(step_overhead_s=0.25)
    assert roofline.prefill_flops(3, 2) == 2 * 1152 * 3 + 32 * (25 - 4)
    # the products and activations of 3 tokens, attention over 21 pairs and 5 tokens of KV, the head, the overhead
    expected = 3 * (23.04 + 0.608) + 32 * 21 / 100 + 32 * 5 / 1000 + 0.16 + 0.25
    assert roofline.prefill_s(3, 2) == pytest.approx(expected)


def test_a_decode_step_that_waits_for_memory_by_hand():
    #  the same model with arithmetic for nothing: weights once, the KV of 2 contexts of 100 tokens and their new token
    roofline = exact(flops=1e20, step_overhead_s=0.25)
    assert roofline.decode_step_s(2, 200) == pytest.approx((2304 + 32 * 202 + 160) / 1000 + 0.25)


def test_a_decode_step_that_waits_for_arithmetic_by_hand():
    #  two contexts of 3 and 5 tokens: 16 - 9 and 36 - 25 squares, 18 together
    roofline = exact(bandwidth=1e20, step_overhead_s=0.25)
    assert roofline.decode_step_s(2, 8) == pytest.approx((2 * 1152 * 2 + 32 * 18) / 100 + 0.25)


def exact(flops=100, bandwidth=1000, **options):
    """The small model on a GPU that reaches its peaks."""
    peaks = {"compute_share": 1, "bandwidth_share": 1, "attention_bandwidth_share": 1}
    return Roofline(model_shape(SMALL), replace(SLOW, flops=flops, bandwidth=bandwidth), **peaks, **options)


def test_llama_70b_on_four_h100_decodes_by_the_facts():
    # layers and head at 0.9 of 4 x 3.35 TB/s: 139.0e9 B, 11.52 ms; KV at 0.66: 327,680 B x 10,001, 0.37 ms; 2 ms on top
    roofline = Roofline(model_shape(MODELS["llama-3-70b"]), GPUS["h100"], 4, link=Link(1e30, 0))
    assert roofline.decode_step_s(1, 10_000) == pytest.approx(0.0139, abs=2e-5)
    # 160 all-reduces of 10 us, in which each GPU reads 3 x 16,384 bytes at 450 GB/s: 1.6 and 0.02 ms
    linked = replace(roofline, link=None)
    assert linked.decode_step_s(1, 10_000) - roofline.decode_step_s(1, 10_000) == pytest.approx(1.6175e-3, rel=1e-3)


def test_what_gpus_exchange_by_hand():
    # 2 layers, two all-reduces each, of 8 values of 2 bytes; each GPU sends 2 x 2/3 of them at 100 bytes a second
    roofline = Roofline(model_shape(SMALL), SLOW, 3, link=Link(100, 0.5))
    assert roofline.exchange_s_per_step == 4 * 0.5
    assert roofline.exchange_s_per_token == pytest.approx(4 * (4 / 3) * 16 / 100)
    alone = replace(roofline, link=Link(1e30, 0))
    assert roofline.prefill_s(5) - alone.prefill_s(5) == pytest.approx(2 + 5 * 4 * (4 / 3) * 16 / 100)
    assert replace(roofline, gpus=1).exchange_s_per_token == replace(roofline, gpus=1).exchange_s_per_step == 0


def test_an_all_reduce_takes_the_faster_of_two_ways_and_a_ring_above_a_size():
    link = Link(100, 0.5, peer_bytes_per_s=40, peer_latency_s=0.1, peer_bytes=1000)
    assert link.ways(1) == [] and link.ways(9) == [(0.5, pytest.approx(2 * 8 / 9 / 100))]
    # each of 2 GPUs reads all bytes of the other at 40 bytes a second, or sends half of them twice at 100
    assert link.all_reduce_s(10, 2) == pytest.approx(0.1 + 10 / 40) and link.all_reduce_s(80, 2) == pytest.approx(1.3)
    slow = replace(link, latency_s=100)
    assert slow.all_reduce_s(1000, 2) == pytest.approx(0.1 + 25) and slow.all_reduce_s(1001, 2) == pytest.approx(110.01)
    # 2 layers, two all-reduces each; 16 bytes a token: 62.5 tokens are 1000 bytes
    roofline = Roofline(model_shape(SMALL), SLOW, 2, link=slow)
    alone = replace(roofline, link=Link(1e30, 0))
    extra = [roofline.prefill_s(tokens) - alone.prefill_s(tokens) for tokens in (62, 63)]
    assert extra == pytest.approx([4 * (0.1 + 62 * 16 / 40), 4 * (100 + 63 * 16 / 100)])
    assert roofline.bulk_exchange_tokens == 62.5 and roofline.bulk_exchange_s_per_step == pytest.approx(4 * 99.9)


def test_the_experts_of_a_step_are_those_that_its_tokens_use():
    # 8 experts of 3 x 8 x 12 parameters in each of 2 layers, 2 a token: half of a quarter
    shape = model_shape(small(num_local_experts=8, num_experts_per_tok=2, moe_intermediate_size=12))
    assert (shape.expert_parameters, shape.expert_share) == (2 * 8 * 288, 0.25)
    peaks = {"compute_share": 1, "bandwidth_share": 1, "attention_bandwidth_share": 1, "step_overhead_s": 0}
    roofline = Roofline(shape, replace(SLOW, flops=1e20), **peaks)
    assert roofline.seconds_per_step == pytest.approx((shape.matrix_bytes - 2 * 4608) / 1000)
    for tokens, untouched in ((1, 0.75), (2, 0.75**2), (1000, 0)):
        layers = max(roofline.seconds_per_step, roofline.seconds_per_dense_token * tokens)
        other = layers + roofline.seconds_per_cached_token * tokens + roofline.head_s
        assert roofline.prefill_s(tokens) - other == pytest.approx((1 - untouched) * 2 * 4608 / 1000)
    slow = Roofline(shape, replace(SLOW, bandwidth=1e20), **peaks)
    assert slow.seconds_per_expert_token == pytest.approx(2 * 0.25 * 4608 / 100)
    assert slow.seconds_per_token == slow.seconds_per_dense_token + slow.seconds_per_expert_token


def test_weights_in_fp8_are_multiplied_in_fp8_where_the_gpu_can():
    eight = model_shape(small(quantization_config={"quant_method": "fp8"}))
    assert eight.fp8 and model_shape(SMALL, dtype="fp8").fp8 and not model_shape(SMALL).fp8
    assert not model_shape(SMALL, dtype="int8").fp8
    plain_gpu, quick = (Roofline(eight, replace(SLOW, fp8_flops=flops)) for flops in (None, 200))
    assert plain_gpu.seconds_per_token - quick.seconds_per_token == pytest.approx(2 * 1152 * 0.5 / (100 * 0.8))
    assert plain_gpu.seconds_per_pair == quick.seconds_per_pair


@given(rooflines, st.integers(0, 300), st.integers(0, 300))
def test_prefill_flops_are_those_of_the_tokens_one_by_one(roofline, new, cached):
    assert roofline.prefill_flops(new, cached) == pytest.approx(plain.prefill_flops(roofline.model, new, cached))


@given(rooflines, counts, counts)
def test_a_step_is_its_products_or_weights_and_then_attention_and_the_head(roofline, new, cached):
    n = new + cached
    dense, experts = roofline.seconds_per_dense_token * new, roofline.seconds_per_expert_token * new
    pairs = roofline.seconds_per_pair * (n**2 - cached**2)
    read = roofline.seconds_for_experts * (1 - (1 - roofline.model.expert_share) ** new)
    count, size = 2 * roofline.model.layers, 2 * roofline.model.hidden
    alone = roofline.seconds_per_cached_token * n + roofline.head_s + roofline.fixed_s
    alone += count * roofline.reached_link.all_reduce_s(size * new, roofline.gpus)
    expected = max(dense, roofline.seconds_per_step) + max(experts, read) + pairs + alone
    assert roofline.prefill_s(new, cached) == pytest.approx(expected, rel=1e-12)
    ring = (roofline.bulk_exchange_s_per_token or roofline.exchange_s_per_token) * new  # what many tokens take
    assert roofline.compute_s(new, cached) == pytest.approx(dense + experts + ring + pairs, rel=1e-12)


@given(rooflines, counts, counts, counts)
def test_of_a_prompt_more_cached_is_never_slower(roofline, length, one, other):
    fewer, more = sorted((min(one, length), min(other, length)))
    slower, faster = roofline.prefill_s(length - fewer, fewer), roofline.prefill_s(length - more, more)
    assert faster <= slower * (1 + 1e-12)
    assert roofline.prefill_flops(length - more, more) <= roofline.prefill_flops(length - fewer, fewer) * (1 + 1e-12)


@given(rooflines, counts, counts, counts)
def test_more_work_is_never_faster(roofline, new, cached, extra):
    assert roofline.prefill_s(new + extra, cached) >= roofline.prefill_s(new, cached)
    assert roofline.prefill_s(new, cached + extra) >= roofline.prefill_s(new, cached)
    assert roofline.decode_step_s(new + extra, cached) >= roofline.decode_step_s(new, cached)
    assert roofline.decode_step_s(new, cached + extra) >= roofline.decode_step_s(new, cached)


@given(rooflines, counts)
def test_decoding_alone_is_a_prefill_of_one_token(roofline, cached):
    assert roofline.decode_step_s(1, cached) == roofline.prefill_s(1, cached)


@given(rooflines, counts, counts)
def test_more_gpus_larger_shares_and_no_overhead_are_never_slower(roofline, new, cached):
    free = replace(roofline, link=Link(1e30, 0))  # all-reduces over a slow link may take longer than more GPUs save
    assert replace(free, gpus=16).prefill_s(new, cached) <= free.prefill_s(new, cached)
    for better in ({"compute_share": 1.0}, {"bandwidth_share": 1.0}, {"step_overhead_s": 0.0},
                   {"attention_bandwidth_share": 1.0}):  # fmt: skip
        assert replace(roofline, **better).prefill_s(new, cached) <= roofline.prefill_s(new, cached)


@given(rooflines, st.lists(st.tuples(counts, counts, st.integers(1, 10**12)), min_size=1, max_size=5))
def test_columns_are_their_rows_one_by_one(roofline, rows):
    a, b, bandwidth = (np.array(column) for column in zip(*rows, strict=True))
    for method in (roofline.prefill_flops, roofline.prefill_s, roofline.decode_step_s, roofline.compute_s,
                   roofline.break_even_bandwidth):  # fmt: skip
        assert method(a, b).tolist() == [method(x, y) for x, y, _ in rows]
    assert roofline.fetch_pays(a, bandwidth, b).tolist() == [roofline.fetch_pays(x, z, y) for x, y, z in rows]
    assert roofline.prefill_s(a).tolist() == roofline.prefill_s(a, np.zeros(len(a))).tolist()


@given(rooflines, st.integers(1, 2_000_000), counts, st.floats(0.01, 100))
def test_fetching_pays_where_it_is_faster_than_computing(roofline, tokens, cached, times):
    bandwidth = roofline.break_even_bandwidth(tokens, cached) * times
    fetch_s = tokens * roofline.model.kv_bytes_per_token / bandwidth
    if abs(times - 1) > 1e-9:
        assert roofline.fetch_pays(tokens, bandwidth, cached) == (roofline.compute_s(tokens, cached) > fetch_s)
        assert roofline.fetch_pays(tokens, bandwidth, cached) == (times > 1)


@given(rooflines, counts, counts, counts)
def test_longer_contexts_are_worth_fetching_over_slower_links(roofline, tokens, cached, extra):
    least = roofline.break_even_bandwidth(tokens, cached)
    assert 0 < roofline.break_even_bandwidth(tokens + extra, cached) <= least
    assert 0 < roofline.break_even_bandwidth(tokens, cached + extra) <= least


def test_fetching_nothing_never_pays():
    assert not LLAMA.fetch_pays(0, 1e12)


def test_break_even_of_llama_8b_on_an_h100_by_hand():
    # the first token: 131,072 bytes against 2 * 6.98e9 / (989.4e12 * 0.803) s = 17.57 us for the products and
    # 5,767,168 / (3.35e12 * 0.9) s = 1.91 us for the activations, so 6.73 GB/s
    assert LLAMA.break_even_bandwidth(0) == pytest.approx(6.728e9, rel=1e-3)
    # with 8192 tokens: 262,144 * 8192 / 794.5e12 = 2.70 us more, so 5.91 GB/s
    assert LLAMA.break_even_bandwidth(8192) == pytest.approx(5.908e9, rel=1e-3)
    assert LLAMA.fetch_pays(8192, [5.8e9, 6.0e9]).tolist() == [False, True]


def test_all_gpus_cost_money():
    assert Roofline(model_shape(SMALL), SLOW, 5).usd([0, 2]).tolist() == [0, 0.1]


@pytest.mark.parametrize(
    "wrong",
    [{"gpus": 0}, {"gpus": 1.5}, {"gpus": True}, {"compute_share": 0}, {"compute_share": 1.1},
     {"bandwidth_share": -0.5}, {"bandwidth_share": "1"}, {"attention_bandwidth_share": None},
     {"step_overhead_s": -1}, {"step_overhead_s": math.nan}, {"step_overhead_s": math.inf}],
)  # fmt: skip
def test_assumptions_that_are_none_are_refused(wrong):
    with pytest.raises(UsageError, match=f"{next(iter(wrong))} must be a"):
        replace(LLAMA, **wrong)


@pytest.mark.parametrize("wrong", [-1, [1, -1], math.nan, math.inf, 2**60, 10**40, "8", None, [[1], [1, 2]], [True]])
def test_columns_that_are_no_counts_are_refused(wrong):
    for method in (LLAMA.prefill_flops, LLAMA.prefill_s, LLAMA.decode_step_s, LLAMA.break_even_bandwidth):
        for arguments in ((wrong, 0), (0, wrong)):
            with pytest.raises(UsageError):
                method(*arguments)
    for arguments in ((wrong, 1), (1, wrong), (1, 1, wrong)):
        with pytest.raises(UsageError):
            LLAMA.fetch_pays(*arguments)


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(UsageError, match="new, cached: columns of different lengths"):
        LLAMA.prefill_s([1, 2], [1, 2, 3])


def test_a_link_of_no_bandwidth_is_refused():
    with pytest.raises(UsageError, match="bandwidth_bytes_per_s must be above 0"):
        LLAMA.fetch_pays([1, 2], [0, 1])


def test_no_requests_take_no_rows():
    assert LLAMA.prefill_s([], []).tolist() == Prices().cost([], []).tolist() == []


# --- prices

MILLION = Prices(input_per_token=1, output_per_token=5)


def test_a_bill_by_hand():
    # 80 of 100 tokens read, 20 written, 10 made: 8 + 25 + 50, 8 + 40 + 50; without a cache 100 + 50
    assert MILLION.cost(80, 100, 10) == pytest.approx(8 + 25 + 50)
    assert MILLION.cost(80, 100, 10, ttl="1h") == pytest.approx(8 + 40 + 50)
    assert MILLION.cost(0, 100, 10, ttl="none") == pytest.approx(100 + 50)
    assert MILLION.saved([80, 0], 100).tolist() == pytest.approx([67, -25])


def test_each_request_may_have_a_time_to_live_of_its_own():
    ttls = ["none", "5m", "1h"]
    for column in (ttls, np.array(ttls), np.array(ttls, dtype=object)):
        assert MILLION.cost(0, 100, ttl=column).tolist() == [100, 125, 200]


rows = st.integers(0, 10**6).flatmap(lambda tokens: st.tuples(st.integers(0, tokens), st.just(tokens)))
ttl_names = st.sampled_from(["none", "5m", "1h"])


@given(rows, counts, ttl_names)
def test_what_is_saved_is_the_difference_of_two_bills(row, output, ttl):
    hit, tokens = row
    whole = MILLION.cost(0, tokens, output, "none")
    assert MILLION.saved(hit, tokens, ttl) == pytest.approx(whole - MILLION.cost(hit, tokens, output, ttl), abs=1e-6)


@given(st.lists(st.tuples(rows, ttl_names), min_size=1, max_size=5))
def test_a_bill_of_columns_is_its_rows_one_by_one(given_rows):
    hit, tokens = (list(column) for column in zip(*(row for row, _ in given_rows), strict=True))
    ttls = [ttl for _, ttl in given_rows]
    one_by_one = [MILLION.cost(h, t, 3, ttl) for (h, t), ttl in given_rows]
    assert MILLION.cost(hit, tokens, 3, ttls).tolist() == one_by_one


@given(rows, st.sampled_from(["5m", "1h"]))
def test_caching_saves_money_above_the_break_even_share_of_hits(row, ttl):
    hit, tokens = row
    share = hit / tokens if tokens else 0
    if tokens and abs(share - MILLION.break_even_hit_share(ttl)) > 1e-9:
        assert (MILLION.saved(hit, tokens, ttl) > 0) == (share > MILLION.break_even_hit_share(ttl))


def test_break_even_shares_by_hand():
    # a hit gives back 0.9, any other token costs 0.25 or 1 more
    assert MILLION.break_even_hit_share("5m") == pytest.approx(0.25 / (0.25 + 0.9))
    assert MILLION.break_even_hit_share("1h") == pytest.approx(1 / (1 + 0.9))


def test_break_even_shares_where_writes_are_free_or_reads_are_dear():
    assert replace(MILLION, write_5m=1).break_even_hit_share("5m") == 0
    assert replace(MILLION, cached_read=1).break_even_hit_share("5m") == math.inf


def test_times_to_live_by_hand():
    #  written, 60 s later read by both, 400 s later read by 1h alone, 4000 s later written by both
    costs = MILLION.ttl_costs([math.inf, 60, 400, 4000])
    assert costs == pytest.approx({"none": 4, "5m": 1.25 + 0.1 + 1.25 + 1.25, "1h": 2 + 0.1 + 0.1 + 2})


def test_a_gap_as_long_as_the_time_to_live_is_still_a_read():
    assert MILLION.ttl_costs([300])["5m"] == MILLION.ttl_costs([3600])["1h"] == 0.1
    assert MILLION.ttl_costs([300.001])["5m"] == 1.25


def test_without_a_cache_nothing_is_read_even_at_once():
    assert MILLION.ttl_costs([0, 0])["none"] == 2


@pytest.mark.parametrize(
    ("gaps", "best"),
    [
        ([math.inf], "none"),
        ([math.inf, 10], "5m"),
        ([math.inf, 400], "none"),
        ([math.inf, 400, 500], "1h"),
        ([], "none"),
    ],
)
def test_the_best_time_to_live_follows_the_gaps(gaps, best):
    assert MILLION.best_ttl(gaps) == best


gaps_and_tokens = st.lists(
    st.tuples(st.integers(0, 8000) | st.just(math.inf), st.integers(0, 10**6)), min_size=1, max_size=12
)


@given(gaps_and_tokens)
def test_times_to_live_cost_what_a_cache_followed_through_time_costs(uses):
    gaps, tokens = zip((math.inf, 1), *uses, strict=True)
    costs = MILLION.ttl_costs(gaps, tokens)
    assert costs["none"] == pytest.approx(sum(tokens))
    assert costs["5m"] == pytest.approx(sum(plain.bill(gaps, tokens, 300, 0.1, 1.25)))
    assert costs["1h"] == pytest.approx(sum(plain.bill(gaps, tokens, 3600, 0.1, 2.0)))
    assert costs[MILLION.best_ttl(gaps, tokens)] == min(costs.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5, 4), "hit_tokens exceed tokens in 1 rows"),
        ((-1, 4), "hit_tokens: negative"),
        ((1, math.inf), "tokens: negative, not finite"),
        ((1, 4, "many"), "output_tokens: not a number"),
        ((1, 4, 0, "10m"), "time to live must be one of"),
        ((1, 4, 0, None), "time to live must be one of"),
        ((1, 4, 0, 300), "time to live must be one of"),
        (([1, 1], 4, 0, ["5m"] * 3), "different lengths"),
    ],
)
def test_bills_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        MILLION.cost(*arguments)


@pytest.mark.parametrize("wrong", [math.nan, -1, [1, math.nan], "soon", None])
def test_gaps_that_are_none_are_refused(wrong):
    with pytest.raises(UsageError, match="gaps_s"):
        MILLION.ttl_costs(wrong)


@pytest.mark.parametrize("wrong", [{"input_per_token": -1}, {"cached_read": math.nan}, {"write_1h": "2"}])
def test_prices_that_are_none_are_refused(wrong):
    with pytest.raises(UsageError, match=f"{next(iter(wrong))} must be a number"):
        Prices(**wrong)


# --- the manual


def test_each_gpu_has_its_figures_in_the_manual():
    manual = (Path(__file__).parents[2] / "docs/serving/models.md").read_text(encoding="utf-8")
    for name, row in GPUS.items():
        figures = FIGURES["gpus"][name]
        low = "|".join(f"{peak / 1e12:g}" if peak else "-" for peak in (row.fp8_flops, row.fp4_flops))
        peaks = f"{row.flops / 1e12:g}|{low}|{row.bandwidth / 1e12:g}|{row.memory / 1e9:.1f}|{figures['link']}|"
        shares = f"{row.matmul_share:.1%}|{row.bandwidth_share:.1%}|".replace("%", " %")
        line = f"|`{name}` ({figures['label']})|{peaks}{shares}{row.price_per_hour:.2f}|"
        assert manual.splitlines().count(line) == 1, line


def test_each_link_has_its_figures_in_the_manual():
    manual = (Path(__file__).parents[2] / "docs/serving/models.md").read_text(encoding="utf-8")
    for name, link in LINKS.items():
        peer = link.peer_bytes_per_s
        direct = f"{peer / 1e9:.0f}|{1e6 * link.peer_latency_s:g}|{link.peer_gpus}" if peer else "-|-|-"
        line = f"|`{name}`|{link.bytes_per_s / 1e9:.1f}|{1e6 * link.latency_s:.0f}|{direct}|"
        assert sum(one.startswith(line) for one in manual.splitlines()) == 1, line


def test_each_figure_has_a_source_and_each_source_a_figure():
    used = set()
    for name, row in FIGURES["gpus"].items():
        figures = row.keys() - {"label", "sources"}
        assert figures == row["sources"].keys(), name
        assert figures == {field.name for field in fields(Gpu)} - {"name"} - (
            {"fp8_flops", "fp4_flops"} - row.keys()
        ), name
        used |= set(row["sources"].values())
    for row in FIGURES["links"].values():
        assert row["sources"]
        used |= set(row["sources"])
    assert used == FIGURES["sources"].keys()


def test_figures_are_those_of_one_gpu_without_sparsity():
    for name, row in GPUS.items():
        assert 60e12 < row.flops <= 2500e12 and 0.3e12 <= row.bandwidth <= 8e12, name
        assert row.fp8_flops is None or row.fp8_flops == pytest.approx(2 * row.flops, rel=0.02), name
        assert 15e9 <= row.memory <= 297e9, name


def test_a_file_may_name_a_link(tmp_path):
    path = tmp_path / "mine.json"
    figures = '"name": "mine", "flops": 1e15, "bandwidth": 4e12, "memory": 9e10, "price_per_hour": 0'
    path.write_text(f'{{{figures}, "link": "nvlink-4", "fp8_flops": 2e15}}')
    assert (gpu(path).link, gpu(path).fp8_flops) == (LINKS["nvlink-4"], 2e15)
    for wrong in ('"carrier-pigeon"', "5", '{"bytes_per_s": 1}'):
        path.write_text(f'{{{figures}, "link": {wrong}}}')
        with pytest.raises(UsageError, match="is not a link. Try pcie-5, pcie-5-amd, pcie-4"):
            gpu(path)
    for wrong in ({"link": "pcie-5"}, {"fp8_flops": -1}):
        with pytest.raises(UsageError, match="a GPU's"):
            replace(SLOW, **wrong)
    with pytest.raises(UsageError, match="bytes_per_s must be a number"):
        Link(0)


@pytest.mark.parametrize(("wrong", "near"), [
    ("4090", "rtx-4090"), ("h100sxm", "h100"), ("RTX PRO 6000", "rtx-pro-6000 or rtx-pro-6000-max-q or "),
    ("mi300", "mi300x"), ("rtx-4080", "rtx-4090"),
])  # fmt: skip
def test_a_wrong_name_of_a_gpu_gives_those_that_are_near(wrong, near):
    with pytest.raises(UsageError, match=f"Did you mean {near}.*[?]$"):
        gpu(wrong)


def test_the_default_share_of_the_products_is_the_median_of_the_table():
    measured = [GPUS[name].matmul_share for name, row in FIGURES["gpus"].items()
                if row["sources"]["matmul_share"] != "median"]  # fmt: skip
    assert Gpu("x", 1, 1, 1, 1).matmul_share == pytest.approx(np.median(measured), abs=0.01)
    assert all(row.matmul_share == 0.8 for row in GPUS.values() if row.matmul_share not in measured)


def test_a_file_may_state_the_shares_that_a_gpu_reaches(tmp_path):
    path = tmp_path / "mine.json"
    figures = '"name": "mine", "flops": 1e15, "bandwidth": 4e12, "memory": 9e10, "price_per_hour": 0'
    path.write_text(f'{{{figures}, "matmul_share": 0.7, "bandwidth_share": 0.85}}')
    assert gpu(path) == Gpu("mine", 1e15, 4e12, 9e10, 0, 0.7, 0.85)
    for wrong in ('"matmul_share": 1.77', '"bandwidth_share": "77"'):
        path.write_text(f"{{{figures}, {wrong}}}")
        with pytest.raises(UsageError, match="share must be a number") as caught:
            gpu(path)
        assert "77" not in str(caught.value).removeprefix(str(path))


@pytest.mark.parametrize(("name", "gpus", "h100", "a100"), [
    ("llama-3.1-8b", 1, 5.91, 2.10), ("llama-3-70b", 4, 5.52, 2.06), ("qwen3-30b-a3b", 1, 7.93, 2.85),
])  # fmt: skip
def test_break_even_bandwidths_are_those_of_the_manual(name, gpus, h100, a100):
    model = model_shape(MODELS[name])
    found = [Roofline(model, GPUS[row], gpus).break_even_bandwidth(8192) / 1e9 for row in ("h100", "a100")]
    assert found == pytest.approx([h100, a100], abs=0.005)
