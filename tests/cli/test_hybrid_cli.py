"""Models with windows and states in `kvtrace simulate` and `kvtrace analyze`, as their user meets them."""

import json

import pytest

import kvtrace
from kvtrace.cli import run
from kvtrace.trace.building import toy

MODEL = ("--model", "gpt-oss-20b")  # 12 layers with windows of 128 tokens, 12 of full attention; 2,048 bytes a token
BLOCK = 12 * 512 * 2048  # bytes of one block of vLLM's pool


@pytest.fixture
def path(tmp_path, monkeypatch):
    kvtrace.write(toy("0 1 2 3", "0 1 4 5", "0 1 6 7", block_size=512, gap_ms=1000), tmp_path / "trace.jsonl")
    monkeypatch.chdir(tmp_path)
    return "trace.jsonl"


def shown(capsys, *arguments):
    assert run([*arguments, "--quiet"]) == 0
    return " ".join(capsys.readouterr().out.split())


def results(capsys, *arguments):
    assert run(["simulate", *arguments, "--json", "--quiet"]) == 0
    return json.loads(capsys.readouterr().out)["results"]


def error(capsys, *arguments, status=2):
    assert run([*arguments, "--quiet"]) == status
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err


def test_a_model_with_windows_hits_where_its_window_is(path, capsys):
    """The second request finds no window at the fork; the third one does."""
    options = (path, "--capacity", "100", "--mode", "token", "--no-gap")
    plain, hybrid, dense = (
        results(capsys, *options, "--engine", "vllm", *more)[0]
        for more in ((), MODEL, (*MODEL, "--retention", "dense"))
    )
    assert [one["hit_blocks"] for one in (plain, hybrid, dense)] == [4, 2, 4]
    assert "layout" not in plain and dense["layout"]["retention_interval"] is None
    assert hybrid["layout"] == {
        "groups": [
            {"kind": "window", "layers": 12, "block_size": 512, "window": 128},
            {"kind": "full", "layers": 12, "block_size": 512, "window": 0},
        ],
        "block_bytes": BLOCK, "retention_interval": 0,
    }  # fmt: skip


def test_options_of_the_engine(path, capsys):
    options = (path, *MODEL, "--engine", "vllm", "--capacity", "100", "--mode", "token", "--no-gap")
    (larger,) = results(capsys, *options, "--engine-block-size", "1024")
    assert {group["block_size"] for group in larger["layout"]["groups"]} == {1024} and larger["hit_tokens"] == 2048
    (interval,) = results(capsys, *options, "--retention", "1,024")
    assert interval["layout"]["retention_interval"] == 1024 and interval["hit_tokens"] == 2048
    (steps,) = results(capsys, *options, "--step-tokens", "512")
    assert steps["hit_tokens"] == 1024


def test_the_groups_and_the_engines_without_them_are_named_below_the_table(path, capsys):
    text = shown(capsys, "simulate", path, *MODEL, "--engine", "vllm,reference", "--capacity", "100", "--no-gap")
    assert "vllm has 2 cache groups: 12 window 128 + 12 full. Hits are multiples of 512 tokens." in text
    assert "Engine reference counts all layers of this model as full attention" in text
    plain = shown(
        capsys, "simulate", path, "--model", "llama-3.1-8b", "--engine", "vllm,reference", "--capacity", "100"
    )
    assert "cache group" not in plain and "full attention" not in plain
    gemma = shown(capsys, "simulate", path, "--model", "gemma-3-27b", "--engine", "sglang", "--capacity", "100")
    assert "Engine sglang counts all layers" not in gemma and "cache group" not in gemma


def test_capacities_are_blocks_of_each_engines_pool(path, capsys):
    """40 blocks of the pool are 20 of each group: 20 x 512 tokens of 24 layers."""
    options = (path, *MODEL, "--engine", "vllm,reference", "--no-gap")
    size = f"{40 * BLOCK // 1024**2}MiB"
    assert [one["capacity"] for one in results(capsys, *options, "--capacity", size)] == [40, 20]
    assert [one["capacity_bytes"] for one in results(capsys, *options, "--capacity", size)] == [40 * BLOCK] * 2
    assert [one["capacity_tokens"] for one in results(capsys, *options, "--capacity", size)] == [20 * 512] * 2
    assert [one["capacity"] for one in results(capsys, *options, "--capacity", "100%")] == [16, 8]
    assert [one["capacity"] for one in results(capsys, *options, "--capacity", "10240tokens")] == [40, 20]
    auto = results(capsys, *options)
    assert [one["capacity"] for one in auto if one["engine"] == "vllm"][-1] == 16


def test_there_is_no_gap_to_belady_with_groups(path, capsys):
    hybrid, plain = results(capsys, path, *MODEL, "--engine", "vllm,reference", "--capacity", "100")
    assert "gap_to_belady" not in hybrid and plain["gap_to_belady"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--engine", "vllm", "--retention", "512"),
            "need --model with windows or states, and --engine vllm or sglang",
        ),
        ((*MODEL, "--engine-block-size", "1024"), "need --model with windows or states, and --engine vllm or sglang"),
        (
            ("--model", "llama-3.1-8b", "--engine", "vllm", "--retention", "dense"),
            "need --model with windows or states",
        ),
        ((*MODEL, "--engine", "vllm", "--retention", "500"), "must be 0 or a multiple of 512 tokens, not 500"),
        ((*MODEL, "--engine", "vllm", "--retention", "often"), "'often' is not a whole number"),
        ((*MODEL, "--engine", "sglang", "--retention", "dense"), "SGLang has no retention interval"),
        ((*MODEL, "--engine", "sglang", "--engine-block-size", "1024"), "must be as long as the trace's (512 tokens)"),
        ((*MODEL, "--engine", "vllm", "--engine-block-size", "528"), "do not divide"),
        ((*MODEL, "--engine", "vllm", "--tiers", "hbm=50,dram=100"), "--tiers does not support cache groups"),
        (("--model", "deepseek-v4-pro", "--engine", "vllm"), "Use --engine reference"),
        (("--engine", "vllm", "--step-tokens", "512"), "--step-tokens, --max-requests and --scheduler need --gpu"),
        (
            (*MODEL, "--engine", "vllm", "--max-requests", "4"),
            "--step-tokens, --max-requests and --scheduler need --gpu",
        ),
    ],
)
def test_a_wrong_option_of_simulate_is_one_line(path, capsys, arguments, message):
    capacity = () if "--tiers" in arguments else ("--capacity", "100")
    assert message in error(capsys, "simulate", path, *capacity, *arguments)


def test_analyze_says_what_the_models_cache_makes_of_the_possible_hits(path, capsys):
    text = shown(capsys, "analyze", path, *MODEL, "--engine", "vllm")
    assert (
        "With memory for all blocks, vLLM's cache of this model (blocks of 512 tokens) hits 16.7 % of the prompt "
        "tokens; 33.3 % are possible. --retention dense would hit 33.3 %." in text
    )
    assert "At 20 blocks, vLLM's" in shown(capsys, "analyze", path, *MODEL, "--engine", "vllm", "--capacity", "20")
    size = f"{20 * BLOCK // 1024**2}MiB"
    size = f"{20 * BLOCK // 1024**2}MiB"  # SGLang's pools take 1.8 times as much for a block of the first one
    assert "At 11 blocks, SGLang's" in shown(capsys, "analyze", path, *MODEL, "--engine", "sglang", "--capacity", size)
    assert "possible" not in shown(capsys, "analyze", path, *MODEL)


@pytest.mark.parametrize("basic", [(), ("--basic",)])
def test_analyze_has_the_keys_that_the_docs_list(path, capsys, basic):
    assert run(["analyze", path, *MODEL, "--engine", "vllm", "--json", *basic]) == 0
    found = json.loads(capsys.readouterr().out)["reachable_hits"]
    assert (found["engine"], found["capacity"], found["prompts_below_a_block"]) == ("vllm", None, 0)
    assert (found["hit_tokens"], found["possible_hit_tokens"], found["prompt_tokens"]) == (1024, 2048, 6144)
    assert found["others"][0] == {
        "setting": "--retention dense", "block_size": 512, "retention_interval": None, "hit_tokens": 2048,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--engine", "vllm"), "--engine needs --model"),
        ((*MODEL, "--capacity", "20"), "--capacity needs --engine"),
        ((*MODEL, "--engine", "lmcache"), "Engine lmcache models full attention only. Try vllm or sglang."),
        ((*MODEL, "--engine", "vllm", "--capacity", "much"), "'much' is not a capacity"),
        ((*MODEL, "--engine", "vllm", "--capacity", "3"), "too small for request 0"),
        (("--model", "deepseek-v4-pro", "--engine", "vllm"), "compressed layers"),
    ],
)
def test_a_wrong_option_of_analyze_is_one_line(path, capsys, arguments, message):
    assert message in error(capsys, "analyze", path, *arguments)


def test_the_memory_of_groups_is_not_promised(path, capsys):
    assert run(["convert", path, "-o", "day.dataset", "--quiet"]) == 0
    options = ("simulate", "day.dataset", *MODEL, "--capacity", "100", "--memory", "2GB")
    assert "not supported with --model with windows or states" in error(capsys, *options, "--engine", "vllm")
    assert run([*options, "--engine", "reference", "--quiet"]) == 0
