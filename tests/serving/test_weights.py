"""Weights of a whole model and of one GPU: beside vLLM's own models, and worked by hand."""

import json
from pathlib import Path

import pytest

from kvtrace import InputError, UsageError
from kvtrace.serving.deployment import Deployment, Drafter
from kvtrace.serving.models import ModelShape, model_shape
from kvtrace.serving.models.config import Fields, read_config
from kvtrace.serving.models.matrices import model_matrices
from kvtrace.serving.models.mlps import Matrix
from kvtrace.serving.models.quantisation import STORED, WEIGHTS, Names, Storage, quantisation
from kvtrace.serving.models.weights import WeightSums, rank_weight_bytes, stage_layers

VECTORS = Path(__file__).parents[1] / "vectors/weights.json"
ROWS = json.loads(VECTORS.read_text()) if VECTORS.exists() else []


def deployment(row, folder):
    """The deployment of a vector."""
    options, drafter, head = dict(row["options"]), None, folder / "config.json"
    if stated := options.pop("speculative_config", None):
        head.write_text(json.dumps(row.get("drafter", {})))
        drafter = Drafter(stated["method"], stated["num_speculative_tokens"], str(head) if "drafter" in row else None)
    return Deployment(row["model"], speculative=drafter, **options)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']} {row['options']}")
def test_the_weights_of_a_gpu_are_those_of_vllms_own_model_within_half_a_percent(row, tmp_path):
    # vLLM keeps kv_b_proj of latent attention a second time, after it has loaded the parameters
    weights = rank_weight_bytes(deployment(row, tmp_path))
    assert weights == pytest.approx(row["bytes"] + row["absorbed"], rel=0.005)


# --- by hand

SMALL = {"num_hidden_layers": 4, "hidden_size": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 16, "vocab_size": 100, "torch_dtype": "bfloat16"}  # fmt: skip
MIXED = SMALL | {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 4, "n_shared_experts": 1}
LINEAR, EXPERT = Matrix("mlp.up_proj", 256, 512), Matrix("mlp.experts.0.up_proj", 256, 512, experts=4)


def weigh(model, **options):
    return rank_weight_bytes(Deployment(model, **options))


def test_heads_divide_until_each_gpu_has_one_and_the_vocabulary_comes_in_64_rows():
    # a layer: queries and out 64 each, keys and values 32 each, MLP 3 x 128; 100 rows are 128
    assert weigh(SMALL) == 2 * (4 * (2 * 64 + 2 * 32 + 3 * 128) + 2 * 128 * 8)
    assert weigh(SMALL, tensor_parallel_size=2) == weigh(SMALL) // 2
    # of four GPUs each has one of two heads
    assert weigh(SMALL, tensor_parallel_size=4) == 2 * (4 * (2 * 16 + 2 * 16 + 3 * 32) + 2 * 32 * 8)


def test_a_tied_head_is_held_by_the_last_stage_too():
    layer, table = 2 * (2 * 64 + 2 * 32 + 3 * 128), 2 * 128 * 8
    tied = SMALL | {"tie_word_embeddings": True}
    assert weigh(tied) == 4 * layer + table
    assert weigh(tied, pipeline_parallel_size=2) == 2 * layer + table == weigh(SMALL, pipeline_parallel_size=2)


def test_experts_divide_over_all_ranks_and_whole_ones_with_expert_parallelism():
    rest = 4 * (2 * 64 + 2 * 32 + 8 * 6 + 3 * 8 * 4) + 2 * 128 * 8  # attention, router, shared expert; vocabulary
    expert = 3 * 8 * 4
    assert weigh(MIXED) == 2 * (rest + 4 * 6 * expert)
    assert weigh(MIXED, data_parallel_size=2) == 2 * (rest + 4 * 6 * expert // 2)  # each expert divides
    assert weigh(MIXED, data_parallel_size=4, enable_expert_parallel=True) == 2 * (
        rest + 4 * 2 * expert
    )  # 6 in 4 parts
    assert weigh(MIXED, data_parallel_size=2, engine="sglang") == weigh(MIXED)  # its ranks share nothing
    halves = 4 * (2 * 32 + 2 * 16 + 8 * 6 + 3 * 8 * 2) + 128 * 8  # the router is whole
    assert weigh(MIXED, tensor_parallel_size=2) == 2 * (halves + 4 * 6 * expert // 2)


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"),
    [(32, 3, [11, 11, 10]), (62, 4, [15, 16, 16, 15]), (7, 2, [4, 3]), (11, 4, [3, 3, 3, 2]), (5, 1, [5])],
)
def test_stages_that_do_not_divide_are_those_of_vllm(layers, stages, sizes):
    parts = stage_layers(layers, stages)
    assert [len(part) for part in parts] == sizes and [layer for part in parts for layer in part] == [*range(layers)]


def test_a_deployment_that_cannot_be_weighed_is_refused_in_one_line():
    with pytest.raises(UsageError, match="Give --model"):
        rank_weight_bytes(Deployment())
    with pytest.raises(UsageError, match="--pipeline-parallel-size must be at most 4"):
        weigh(SMALL, pipeline_parallel_size=5)
    with pytest.raises(UsageError, match="has no layers that predict further tokens"):
        weigh(SMALL, speculative=Drafter("mtp"))
    with pytest.raises(UsageError, match="The weights of the eagle3 head are not known. Example: eagle3:3:config.json"):
        weigh(SMALL, speculative=Drafter("eagle3", 3))
    with pytest.raises(UsageError, match="must be one of .*fp8.*nvfp4"):
        weigh(SMALL, weights_dtype="fp3")


def test_a_drafter_adds_its_layers_without_embedding_and_head(tmp_path):
    layer, joined = 2 * 64 + 2 * 32 + 3 * 128, 8 * 16
    assert weigh(SMALL | {"num_nextn_predict_layers": 2}, speculative=Drafter("mtp")) == weigh(SMALL) + 2 * 2 * (
        layer + joined
    )
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SMALL | {"num_hidden_layers": 1, "draft_vocab_size": 64}))
    # three hidden states are joined; queries, keys and values read two inputs; its own head has 64 rows
    eagle = 8 * 24 + layer + 8 * (8 + 4 + 4) + 64 * 8
    assert weigh(SMALL, speculative=Drafter("eagle3", 1, str(path))) == weigh(SMALL) + 2 * eagle


# --- how a checkpoint stores its matrices


def stored(quantised, module="layers.1.mlp.up_proj", matrix=LINEAR, **config):
    """Bytes of a matrix of 256 x 512."""
    storage = quantisation(Fields("config", {"torch_dtype": "bfloat16", "quantization_config": quantised} | config))
    kept = storage.storage(module, matrix)
    return 2 * 256 * 512 if kept is None else kept.size(256, 512)


def linear(**weights):
    return {"quant_method": "compressed-tensors", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}  # fmt: skip


def quark(**weight):
    return {"quant_method": "quark", "global_quant_config": {"weight": weight}, "exclude": ["lm_head"]}


SIZE = 256 * 512


@pytest.mark.parametrize(
    ("quantised", "size"),
    [
        ({"quant_method": "fp8"}, SIZE + 4),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, SIZE + 2 * 4 * 4),
        ({"quant_method": "fbgemm_fp8"}, SIZE + 256 * 4),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, SIZE // 2 + 256 * 4 * 2.5),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64}, SIZE // 2 + 256 * 8 * 2.5),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, SIZE + 256 * 3),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128}, SIZE // 2 + 256 * 4 * 2.5),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, SIZE // 2 + SIZE // 64 * 4),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, SIZE + 256 * 4),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, SIZE + 4),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, SIZE // 2 + SIZE // 16),
        ({"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}, SIZE // 2 + SIZE // 16),
        (linear(num_bits=4, type="int", strategy="group", group_size=32), SIZE // 2 + SIZE // 32 * 2),
        (linear(num_bits=8, type="float", strategy="channel"), SIZE + 256 * 4),
        (linear(num_bits=8, type="int", strategy="tensor"), SIZE + 4),
        (linear(num_bits=8, type="float", strategy="block", block_structure=[128, 128]), SIZE + 2 * 4 * 4),
        (linear(num_bits=4, type="float", strategy="tensor_group", group_size=16), SIZE // 2 + SIZE // 16),
        (linear(num_bits=4, type="float", strategy="group", group_size=32), SIZE // 2 + SIZE // 32),
        ({"quant_method": "mxfp4"}, 2 * SIZE),  # experts alone
        (quark(dtype="fp4", qscheme="per_group", group_size=32), SIZE // 2 + SIZE // 32),
        (quark(dtype="fp8_e4m3", qscheme="per_channel"), SIZE + 256 * 4),
    ],
)
def test_a_product_is_stored_with_its_scales(quantised, size):
    assert stored(quantised) == size
    router = Matrix("mlp.gate", 256, 512, is_linear=False)
    assert stored(quantised, "layers.1.mlp.gate", router) == 2 * SIZE


def test_experts_may_have_a_storage_of_their_own():
    expert = "layers.1.mlp.experts.0.up_proj"
    assert stored({"quant_method": "mxfp4"}, expert, EXPERT) == SIZE // 2 + SIZE // 32
    v4 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    assert stored(v4, expert, EXPERT, compress_ratios=[0]) == SIZE // 2 + SIZE // 32
    assert stored(v4, compress_ratios=[0]) == SIZE + 8  # scales of one byte
    assert stored(v4 | {"moe_quant_algo": "NVFP4"}, expert, EXPERT, compress_ratios=[0]) == SIZE // 2 + SIZE // 16


@pytest.mark.parametrize(
    ("names", "skipped"),
    [
        ({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.1.mlp.up_proj"]}, True),
        ({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.11.mlp", "up", "mlp.up"]}, False),
        ({"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["mlp"]}, True),
        ({"quant_method": "bitsandbytes", "llm_int8_skip_modules": ["lm_head"]}, False),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["model.language_model.layers.1.*"]}, True),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["*self_attn*"]}, False),
        (linear(num_bits=8, type="int", strategy="channel") | {"ignore": ["re:.*mlp\\.(gate|up)_proj"]}, True),
        (linear(num_bits=8, type="int", strategy="channel") | {"ignore": ["re:mlp"]}, False),  # from the start
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:.*\\.mlp\\..*": {}}}, True),
        ({"quant_method": "auto-round", "bits": 4, "extra_config": {"model.layers.1.mlp.up_proj": {"bits": 16}}}, True),
    ],
)
def test_what_a_list_names_stays_in_16_bits(names, skipped):
    assert (stored(names) == 2 * SIZE) is skipped


def test_groups_of_modules_have_their_own_storage():
    layers = {"layers.1.mlp": {"quant_algo": "NVFP4"}, "layers.2.mlp": {"quant_algo": "FP8"}}
    mixed = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    assert [stored(mixed, f"layers.{layer}.mlp.up_proj") for layer in (0, 1, 2)] == [
        2 * SIZE, SIZE // 2 + SIZE // 16, SIZE + 4,
    ]  # fmt: skip
    head = Matrix("lm_head", 256, 512, is_linear=False)
    assert stored({"quant_method": "modelopt", "quant_algo": "FP8"}, "lm_head", head) == SIZE + 4
    assert stored({"quant_method": "fp8"}, "lm_head", head) == 2 * SIZE
    groups = {"quant_method": "compressed-tensors", "config_groups": {
        "group_0": {"targets": ["re:.*experts.*"], "weights": {"num_bits": 4, "type": "int", "group_size": 128}},
        "group_1": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}},
    }}  # fmt: skip
    assert stored(groups) == SIZE + 256 * 4
    assert stored(groups, "layers.1.mlp.experts.0.up_proj", EXPERT) == SIZE // 2 + 256 * 4 * 2


@pytest.mark.parametrize(
    "quantised",
    [
        {},
        {"quant_method": "hqq"},
        {"quant_method": "modelopt", "quant_algo": "W4A8"},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
        {"quant_method": "fp8", "weight_block_size": 7},
        {"quant_method": "compressed-tensors"},
        {"quant_method": "fp8", "ignored_layers": ["re:("]},
        {"quant_method": "compressed-tensors", "config_groups": {"a": {"targets": 7, "weights": {"num_bits": [4]}}}},
        quark(dtype="int3", qscheme="per_group"),
        linear(num_bits=3, type="float"),
        linear(num_bits=6, type="int"),
    ],
)
def test_a_method_that_is_not_modelled_names_the_remedy(quantised):
    with pytest.raises(
        InputError, match="config: unknown quantisation. Give the dtype of the weights: --weights-dtype"
    ):
        stored(quantised)
    assert model_shape(SMALL | {"quantization_config": quantised}, dtype="bf16").weight_bytes > 0
    with pytest.raises(InputError, match="unknown quantisation"):  # auto is the config's own
        weigh(SMALL | {"compression_config": quantised}, weights_dtype="auto")


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quantization_config": {"quant_method": "auto-round", "extra_config": {"a": {"bits": "77"}}}}, "bits is not"),
        ({"quantization_config": {"quant_method": "awq", "group_size": "77"}}, "group_size is not"),
        ({"vision_config": {"depth": 2, "hidden_size": 8, "deepstack_visual_indexes": 77}}, "deepstack_visual_indexes"),
        (
            {"compress_ratios": [0], "head_dim": 2, "index_head_dim": 2, "sliding_window": 8},
            "compress_ratios has 1 layers",
        ),
    ],
)
def test_a_wrong_field_is_named(config, named):
    with pytest.raises(InputError, match=named) as caught:
        weigh(SMALL | config)
    assert "77" not in str(caught.value)


@pytest.mark.parametrize("dtype", WEIGHTS)
def test_each_dtype_of_the_option_replaces_the_one_of_the_config(dtype):
    model = MIXED | {"quantization_config": {"quant_method": "unheard"}}
    assert weigh(model, weights_dtype=dtype.upper()) == weigh(MIXED, weights_dtype=dtype) > 0


def test_4_bits_are_less_than_8_and_8_less_than_16():
    sizes = {name: weigh("llama-3.1-8b", weights_dtype=name) for name in ("nvfp4", "int4", "fp8", "bf16")}
    assert sorted(sizes, key=sizes.__getitem__) == ["int4", "nvfp4", "fp8", "bf16"]
    assert STORED.keys() >= {"awq", "gptq", "mxfp4", "bitsandbytes"}


def test_names_are_paths_globs_or_patterns():
    assert Names(["lm_head"]).match("lm_head") and not Names(["head"]).match("layers.0.headroom")
    assert Names(["model.layers.0.block_sparse_moe.experts.*.w1"]).match("layers.0.mlp.experts.0.gate_proj")
    assert not Names([]).match("layers.0.mlp")


def test_a_block_that_a_gpus_part_cuts_gets_smaller():
    block = Storage(8, (128, 128))
    assert block.size(256, 512) == SIZE + 8 * 4
    assert block.size(96, 256) == 96 * 256 + 3 * 8 * 4  # of 32 x 32


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3.2", "qwen3-next-80b-a3b", "mixtral-8x7b", "gpt-oss-20b"])
def test_a_shape_of_a_file_of_costs_from_before_the_sums_has_its_parameters(name):
    shape = model_shape(name, dtype="bf16")
    sums = {field for field in WeightSums.__dataclass_fields__} | {"read_width", "window_read_width"}
    old = ModelShape(**{field: value for field, value in shape.to_dict().items() if field not in sums})
    assert (old.parameters, old.active_parameters) == (shape.parameters, shape.active_parameters)
    assert (old.matrix_bytes, old.expert_bytes, old.head_bytes) == (
        shape.matrix_bytes, shape.expert_bytes, shape.head_bytes,
    )  # fmt: skip


def test_the_matrices_of_a_model_are_its_parameters():
    for name in ("llama-3.1-8b", "deepseek-v3", "gpt-oss-20b", "qwen3.5-27b", "gemma-4-31b", "nemotron-3-nano-30b-a3b"):
        matrices = model_matrices(read_config(name))
        parts = [part for layer in matrices.layers for part in layer]
        total = sum(part.parameters for part in [*parts, *matrices.embeddings, *matrices.head])
        assert total == model_shape(name).parameters
