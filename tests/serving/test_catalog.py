"""The catalog of models: each entry is complete and sourced, and its parameters are the published ones."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

import kvtrace
from kvtrace import InputError, UsageError
from kvtrace.cli import run
from kvtrace.serving.calibration.costs import roofline_cost
from kvtrace.serving.hardware import Roofline, gpu
from kvtrace.serving.models import MODELS, ModelShape, kv_bytes_per_token, layer_kinds, model_shape
from kvtrace.serving.models.config import QUANTISATIONS, model_name
from tests.reference.vllm_scheduler import step_seconds

WITH_TIMES = [model for model in kvtrace.serving.list_models() if model.shape]
HYBRIDS = ("gpt-oss-20b", "gpt-oss-120b", "gemma-3-27b", "llama-4-scout", "qwen3-next-80b-a3b", "mistral-7b-v0.1",
           "deepseek-v3.2", "qwen3.5-27b")  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_an_entry_has_a_name_as_people_type_it_layers_and_a_published_source(name):
    entry = MODELS[name]
    assert name == name.lower() and re.fullmatch(r"[a-z0-9.-]+", name)
    assert entry.sources[0].startswith("https://huggingface.co/") and len(set(entry.sources)) == len(entry.sources)
    assert all(source.startswith("https://") for source in entry.sources) and re.fullmatch(
        r"20\d\d-\d\d-\d\d", entry.date
    )
    assert layer_kinds(name) and kv_bytes_per_token(name) > 0
    assert model_shape(name).kv_bytes_per_token == kv_bytes_per_token(name) if entry in WITH_TIMES else True


def test_the_catalog_has_at_least_180_models_and_times_for_most_of_them():
    assert (
        len(MODELS) >= 180
        and len(WITH_TIMES) >= 0.9 * len(MODELS)
        and {*HYBRIDS} <= {model.entry.name for model in WITH_TIMES}
    )


# --- Hugging Face ids


def test_an_id_is_a_name_in_any_case():
    assert model_name("META-LLAMA/llama-3.1-8b-instruct") == "meta-llama/Llama-3.1-8B-Instruct"
    shape = model_shape("meta-llama/Llama-3.1-8B-Instruct")
    assert replace(shape, name="llama-3.1-8b") == model_shape("llama-3.1-8b")
    assert layer_kinds("qwen/qwen3-32b-fp8") == layer_kinds("qwen3-32b")
    assert model_name("llama-3.1-8B-Instruct") == "meta-llama/Llama-3.1-8B-Instruct"  # of several with one architecture
    assert model_name("Llama-3.1-8B-Instruct/") is model_name("llama") is None


@pytest.mark.parametrize(
    ("name", "gigabytes"),  # of the files of the repository, where vLLM's log or the publisher states them
    [("deepseek-ai/DeepSeek-R1-0528", 674), ("moonshotai/Kimi-K2.5", 595), ("openai/gpt-oss-120b", 65.2),
     ("Qwen/Qwen2.5-32B-Instruct-GPTQ-Int4", 19.4), ("nvidia/Qwen3.6-35B-A3B-NVFP4", 21.9)],
)  # fmt: skip
def test_a_checkpoint_has_the_weights_of_its_own_dtype(name, gigabytes):
    assert model_shape(name).weight_bytes == pytest.approx(gigabytes * 1e9, rel=0.01)


def test_ids_are_one_checkpoint_each_and_their_quantisation_is_known():
    names = [name for entry in MODELS.values() for name in entry.checkpoints]
    assert len({name.lower() for name in names}) == len(names) >= 500
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+", name) for name in names)
    used = {stated for entry in MODELS.values() for stated in entry.checkpoints.values()}
    assert used == {"", *QUANTISATIONS}
    assert all(entry.checkpoints for entry in MODELS.values())


@pytest.mark.parametrize("name", [model.entry.name for model in WITH_TIMES])
def test_each_checkpoint_of_a_model_with_times_can_be_planned_with(name):
    for checkpoint in MODELS[name].checkpoints:
        assert 0 < model_shape(checkpoint).weight_bytes <= 4.2 * model_shape(name).parameters


def test_a_path_that_exists_wins_over_an_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "openai/gpt-oss-20b"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(SMALL))
    assert model_shape("openai/gpt-oss-20b").layers == 2  # a folder stands for its config.json
    assert model_shape("OpenAI/gpt-oss-20b").layers == 24
    quantised = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (folder / "hf_quant_config.json").write_text(json.dumps(quantised))
    assert model_shape(str(folder)).fp8


def test_an_id_that_is_not_known_is_refused_with_near_ones():
    with pytest.raises(UsageError, match=r"Did you mean Qwen/Qwen3-235B-A22B-FP8 or qwen3-235b-a22b\?"):
        model_shape("Qwen/Qwen3-235B-A22B-FP9")
    with pytest.raises(UsageError, match="Try a name that kvtrace models lists"):
        model_shape("nobody/nothing-like-it")


def test_a_part_of_an_id_finds_its_model_and_the_id_itself_the_checkpoint():
    assert [model.name for model in kvtrace.serving.list_models("r1-0528-qwen3")] == ["qwen3-8b"]
    (model,) = kvtrace.serving.list_models("qwen/qwen3-8b-fp8")
    assert model.name == "Qwen/Qwen3-8B-FP8" and model.entry.name == "qwen3-8b" and model.shape.fp8


def test_models_without_times_say_so_in_a_column_of_their_own_and_why(capsys):
    (model,) = kvtrace.serving.list_models("inkling-small")
    assert not model.has_times and model.kv_only == (
        "layers with use_sconv have KV bytes, but no times: their products are not modelled"
    )
    assert run(["models", "inklin"]) == 0
    assert capsys.readouterr().out.count("KV only") == 2
    assert run(["models", "mimo-v2.5-pro"]) == 0
    assert "hidden_size is missing" in capsys.readouterr().out
    assert all(model.kv_only is None for model in WITH_TIMES)


def digits(figure):
    """A half of the last digit that a figure such as 30,500,000,000 states."""
    text = str(round(figure))
    return 10 ** (len(text) - len(text.rstrip("0"))) / 2


@pytest.mark.parametrize("name", [model.entry.name for model in WITH_TIMES if model.entry.parameters])
def test_parameters_are_the_published_ones_within_2_percent_or_their_last_digit(name):
    shape, entry = model_shape(name), MODELS[name]
    assert shape.parameters == pytest.approx(entry.parameters, rel=0.02, abs=digits(entry.parameters))


@pytest.mark.parametrize("name", [model.entry.name for model in WITH_TIMES if model.entry.active])
def test_active_parameters_are_the_published_ones_with_or_without_embedding_and_head(name):
    shape, active = model_shape(name), MODELS[name].active
    table = shape.vocabulary * shape.hidden
    counts = [shape.active_parameters - left * table for left in (0, 1, 2)]
    assert any(count == pytest.approx(active, rel=0.02, abs=digits(active)) for count in counts)


# --- windows, states and indexers in parameters and times

SMALL = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 16, "vocab_size": 10}  # fmt: skip


def test_a_gated_delta_net_by_hand():
    linear = {"full_attention_interval": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 3,
              "linear_num_value_heads": 4, "linear_value_head_dim": 5, "linear_conv_kernel_dim": 4}  # fmt: skip
    shape = model_shape(SMALL | linear)
    # queries and keys 6 each, values and gate 20 each, two numbers for each of 4 heads; out; the convolution
    mixer = 8 * (6 + 6 + 20 + 20 + 8) + 20 * 8 + 4 * (6 + 6 + 20)
    assert shape.parameters == mixer + 192 + 2 * 384 + 160
    assert shape.flops_per_pair == 1 * 4 * (2 + 2)
    gated = model_shape(SMALL | linear | {"model_type": "qwen3_next"})
    assert gated.parameters - shape.parameters == 8 * 8  # as wide as the queries


def test_an_indexer_by_hand():
    latent = {"kv_lora_rank": 3, "qk_nope_head_dim": 2, "qk_rope_head_dim": 1, "v_head_dim": 4, "q_lora_rank": 5}
    sparse = latent | {"index_head_dim": 6, "index_n_heads": 7, "index_topk": 100}
    plain, shape = model_shape(SMALL | latent), model_shape(SMALL | sparse)
    assert shape.parameters - plain.parameters == 2 * (5 * 7 * 6 + 8 * 6 + 8 * 7)
    assert shape.flops_per_pair == 2 * 7 * 6 and shape.flops_per_window_pair == plain.flops_per_pair
    assert shape.read_bytes_per_token == 2 * 6 * 2 and shape.window_read_bytes_per_token == 2 * (3 + 1) * 2
    assert shape.window_tokens == 100


def test_llama_4_has_dense_layers_of_their_own_width_and_a_shared_expert():
    fields = SMALL | {"model_type": "llama4_text", "intermediate_size_mlp": 32, "num_local_experts": 3,
                      "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "attention_chunk_size": 64}  # fmt: skip
    expert = 3 * 8 * 16
    assert model_shape(fields).parameters == 2 * 192 + 3 * 8 * 32 + 4 * expert + 8 * 3 + 160


def test_only_the_experts_of_gpt_oss_have_4_bits():
    shape = model_shape("gpt-oss-20b")
    rest = shape.parameters - shape.expert_parameters
    assert shape.weight_bytes == round(rest * 2 + shape.expert_parameters * 17 / 32)
    assert shape.weight_bytes == pytest.approx(13.8e9, rel=0.02)  # the files of the repository


@pytest.mark.parametrize(("chunked", "squares"), [(False, [1, 4, 9, 9 + 6, 9 + 12]), (True, [1, 4, 9, 10, 13])])
def test_a_token_attends_to_a_window_or_within_its_chunk(chunked, squares):
    shape = replace(model_shape(SMALL), window_layers=2, window=3, chunked=chunked)
    assert shape.window_squares(np.arange(1, 6)).tolist() == squares


@pytest.mark.parametrize("chunked", [False, True])
def test_prefill_flops_are_those_of_each_token_added_up(chunked):
    shape = replace(model_shape(SMALL), window_layers=1, window=5, chunked=chunked)
    line = Roofline(shape, gpu("h100"))
    for cached, new in ((0, 1), (0, 12), (3, 4), (7, 20)):
        flops = 2.0 * shape.matrix_parameters * new
        for before in range(cached, cached + new):
            seen = before % 5 if chunked else min(before, 5)  # a token's own pair counts half
            own = 0 if not chunked and before >= 5 else 0.5
            flops += 2 * 4 * (2 + 2) * (before + 0.5) + 2 * 4 * (2 + 2) * (seen + own)
        assert line.prefill_flops(new, cached) == pytest.approx(flops)


@pytest.mark.parametrize("name", HYBRIDS)
def test_costs_of_a_file_keep_the_layers(name):
    shape = model_shape(name)
    assert ModelShape(**json.loads(json.dumps(shape.to_dict()))) == shape


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_hybrid_takes_at_most_the_time_of_full_attention_in_long_contexts(name):
    shape = model_shape(name)
    kv = shape.kv_bytes_per_token * shape.layers // (shape.layers - shape.mixer_layers)
    changed = {"window_layers": 0, "window": 0, "mixer_layers": 0, "indexer_layers": 0, "kv_bytes_per_token": kv}
    full = replace(shape, **changed, cache=())
    lines = [Roofline(one, gpu("h200"), 8) for one in (shape, full)]
    hybrid, plain = (line.prefill_s([20_000, 100_000]) - 1e-9 for line in lines)
    assert (hybrid <= plain).all() or shape.mixer_layers  # a delta net has more parameters than attention
    hybrid, plain = (line.decode_step_s(64, 64 * 20_000) for line in lines)
    assert hybrid < plain


@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.parametrize("context", [60, 50_000])
def test_a_step_costs_what_the_roofline_says(name, context):
    line = Roofline(model_shape(name), gpu("h200"), 8)
    cost, batch = roofline_cost(line), 64
    whole = step_seconds(vars(cost), [(context, context, 1)] * batch)
    # the roofline also counts the pairs of tokens that decode
    whole += cost.attention_pair_s * batch * (2 * context + 1)
    whole += cost.window_pair_s * batch * min(2 * context + 1, 2 * cost.window_tokens)
    assert line.decode_step_s(batch, batch * context) == pytest.approx(whole)


def test_windows_longer_than_the_context_take_the_time_of_full_attention():
    shape = model_shape("mistral-7b-v0.1")
    full = replace(shape, window_layers=0, window=0, cache=())
    lines = [Roofline(one, gpu("h100")) for one in (shape, full)]
    assert lines[0].prefill_s(4000) == pytest.approx(lines[1].prefill_s(4000))
    assert lines[0].decode_step_s(64, 64 * 2000) == pytest.approx(lines[1].decode_step_s(64, 64 * 2000))
    assert lines[0].decode_step_s(64, 64 * 8000) < lines[1].decode_step_s(64, 64 * 8000) - 0.01


def test_fetching_windows_needs_no_more_than_a_window():
    shape = model_shape("gpt-oss-20b")
    assert shape.fetched_bytes(100_000) == 12 * 2048 * (100_000 + 128)
    line = Roofline(shape, gpu("h100"))
    assert line.break_even_bandwidth(100_000) < shape.kv_bytes_per_token * 100_000 / line.compute_s(100_000) / 1.9
    assert line.break_even_bandwidth(0) == line.break_even_bandwidth(1)


# --- the command


def test_the_command_lists_and_shows(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["models", "gpt-oss", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [model["name"] for model in printed["models"]] == ["gpt-oss-20b", "gpt-oss-120b"]
    assert printed == kvtrace.serving.list_models("gpt-oss").to_dict()
    assert run(["models", "GPT-OSS-20B"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "12 window 128: 2,048 bytes per token" in page and "https://huggingface.co/openai/gpt-oss-20b" in page
    assert run(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert all(any(line.startswith(name + " ") for line in lines) for name in MODELS)


def test_a_model_that_is_not_known_is_one_line_with_the_near_ones(capsys):
    for command in (["models", "gtp-oss-20b"], ["simulate", "t.jsonl", "--gpu", "h100", "--model", "gtp-oss-20b"]):
        assert run(command) == 2
        line = capsys.readouterr().err
        assert "Did you mean gpt-oss-20b" in line and "kvtrace models" in line and len(line) < 250
    with pytest.raises(UsageError, match="no model of the catalog matches nothing-77. Run kvtrace models"):
        kvtrace.serving.list_models("nothing-77")


def test_a_model_without_times_is_refused_in_one_line_and_has_bytes():
    with pytest.raises(InputError, match="inkling: layers with use_sconv have KV bytes, but no times"):
        model_shape("inkling")
    with pytest.raises(InputError, match="mimo-v2.5: hidden_size is missing"):
        model_shape("mimo-v2.5")
    assert kv_bytes_per_token("inkling") and kv_bytes_per_token("mimo-v2.5")


def test_a_hybrid_is_served_in_time(tmp_path, capsys):
    trace = kvtrace.toy(*["0 1 2 3"] * 20, gap_ms=100, block_size=512)
    kvtrace.write(trace, tmp_path / "t.jsonl")
    assert run(["simulate", str(tmp_path / "t.jsonl"), "--gpu", "h100", "--model", "gpt-oss-20b", "--json", "-q"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert 0 < result["ttft_s"]["p50"] < 1
