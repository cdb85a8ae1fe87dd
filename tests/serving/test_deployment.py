"""A deployment: made from options, from the command of a server, and read again from its JSON."""

import json
from dataclasses import fields, replace

import pytest

import kvtrace
from kvtrace._base.errors import UsageError
from kvtrace.cli import run
from kvtrace.serving.deployment import Deployment, Drafter
from kvtrace.serving.hardware.room import kv_room, step_limits
from kvtrace.serving.run_options import TimeSetup
from kvtrace.serving.schedulers.sglang import SglangScheduler
from kvtrace.serving.schedulers.vllm import VllmScheduler
from kvtrace.serving.serve_command import SCHEDULER, SCHEDULER_FLAGS, read_command
from kvtrace.trace.building import toy

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize(
    ("command", "stated"),
    [
        ("vllm serve m", {"engine": "vllm", "model": "m"}),
        (
            "CUDA_VISIBLE_DEVICES=0,1 /opt/venv/bin/vllm serve org/M -tp 8 -pp=2 -dp 4 -ep -dcp 8 --port 8000",
            {
                "engine": "vllm", "model": "org/M", "tensor_parallel_size": 8, "pipeline_parallel_size": 2,
                "data_parallel_size": 4, "enable_expert_parallel": True, "decode_context_parallel_size": 8,
            },
        ),
        (
            "vllm serve m --max_model_len 32K --max-num-batched-tokens=8k --kv-cache-dtype fp8 --enforce-eager",
            {
                "engine": "vllm", "model": "m", "max_model_len": 32768, "max_num_batched_tokens": 8000,
                "kv_cache_dtype": "fp8", "enforce_eager": True,
            },
        ),
        (
            """vllm serve m --speculative-config '{"method": "deepseek_mtp", "num_speculative_tokens": 3}'""",
            {"engine": "vllm", "model": "m", "speculative": Drafter("mtp", 3)},
        ),
        (
            "python3 -m sglang.launch_server --model-path m --tp 8 --dp-size 2 --page-size 64 --mem-fraction-static .8",
            {
                "engine": "sglang", "model": "m", "tensor_parallel_size": 8, "data_parallel_size": 2,
                "block_size": 64, "gpu_memory_utilization": 0.8,
            },
        ),
        (
            "sglang serve --model-path m --tp 8 --dp 4 --enable-dp-attention --max-running-requests 64",
            {
                "engine": "sglang", "model": "m", "tensor_parallel_size": 2, "data_parallel_size": 4,
                "enable_dp_attention": True, "max_num_seqs": 16,
            },
        ),
        (
            "sglang serve --model-path m --tp 8 --attn-dp-size 8",
            {
                "engine": "sglang", "model": "m", "tensor_parallel_size": 1, "data_parallel_size": 8,
                "enable_dp_attention": True,
            },
        ),
        (
            "sglang serve --model-path m --speculative-algorithm EAGLE3 --speculative-num-steps 4 "
            "--speculative-draft-model-path d",
            {"engine": "sglang", "model": "m", "speculative": Drafter("eagle3", 4, "d")},
        ),
    ],
)  # fmt: skip
def test_the_command_of_a_server_states_a_deployment(command, stated):
    assert read_command(command).stated == stated


def test_an_option_that_is_not_modelled_is_named_and_one_that_changes_nothing_is_not():
    command = read_command("vllm serve m --enable-lora --max-loras 4 --port 1 --api-key secret --dtype bfloat16")
    assert command.stated["not_modelled"] == ("--enable-lora", "--max-loras")
    assert "secret" not in repr(command)
    assert read_command("vllm serve m --dtype float32 --no-enable-prefix-caching").stated["not_modelled"] == (
        "--dtype", "--no-enable-prefix-caching",
    )  # fmt: skip
    assert read_command("vllm serve m --no-async-scheduling --scheduling-policy priority").scheduler == (
        "async_scheduling=off,policy=priority"
    )
    command = read_command("sglang serve --model-path m --scheduler-recv-interval 10 --enable-mixed-chunk")
    assert command.scheduler == "scheduler_recv_interval=10,enable_mixed_chunk=on"
    assert "not_modelled" not in command.stated


def test_options_of_a_scheduler_are_those_that_it_has():
    for engine, kind in (("vllm", VllmScheduler), ("sglang", SglangScheduler)):
        names = [*SCHEDULER[engine].values(), *(flag.partition("=")[0] for flag in SCHEDULER_FLAGS[engine].values())]
        assert set(names) <= {one.name for one in fields(kind)}


@pytest.mark.parametrize(
    "command",
    ["", "vllm", "ls -l", "vllm serve 'm", "vllm serve m -tp", "vllm serve m -tp two", "vllm serve m n",
     "vllm serve m --speculative-config no",
     """vllm serve m --speculative-config '{"method": "medusa"}'""", "sglang serve --speculative-algorithm DREAM"],
)  # fmt: skip
def test_what_starts_no_server_is_one_line(command):
    with pytest.raises(UsageError, match="--serve") as error:
        read_command(command)
    assert "\n" not in str(error.value)


def test_a_deployment_is_read_again_from_its_json():
    deployment = Deployment(
        LLAMA, engine="sglang", gpu="h200", tensor_parallel_size=4, data_parallel_size=2, kv_cache_dtype="fp8",
        speculative=Drafter("eagle3", 2, "d"), max_num_seqs=64, not_modelled=("--enable-lora",),
    )  # fmt: skip
    values = json.loads(json.dumps(deployment.to_dict()))
    assert Deployment.from_dict(values) == deployment
    assert Deployment().to_dict() == {"engine": "vllm"}


@pytest.mark.parametrize(
    "fields",
    [{"tensor_parallel_size": 0}, {"data_parallel_size": 1.5}, {"gpu_memory_utilization": 90}],
)  # fmt: skip
def test_sizes_that_no_engine_takes_are_refused(fields):
    with pytest.raises(UsageError, match="--"):
        Deployment(**fields)


def test_gpus_are_tensor_parallelism_unless_that_is_stated():
    assert Deployment().with_gpus(8) == Deployment(tensor_parallel_size=8)
    assert Deployment(tensor_parallel_size=4).with_gpus(4) == Deployment(tensor_parallel_size=4)
    for deployment, gpus in ((Deployment(tensor_parallel_size=4), 8), (Deployment(pipeline_parallel_size=2), 3)):
        with pytest.raises(UsageError, match=f"--gpus {gpus} contradicts"):
            deployment.with_gpus(gpus)


def test_the_limits_of_a_step_are_the_engines_for_the_gpu():
    limits = {name: step_limits(Deployment(gpu=name)) for name in ("h100", "a100", "rtx-4090", "b200")}
    assert [(each.step_tokens, each.requests) for each in limits.values()] == [
        (8192, 1024), (2048, 256), (2048, 256), (16384, 1024),
    ]  # fmt: skip
    sglang = [step_limits(Deployment(engine="sglang", gpu=name)).step_tokens for name in ("h100", "rtx-4090", "b200")]
    assert sglang == [8192, 4096, 16384]
    assert step_limits(Deployment(gpu="a100", max_num_seqs=7)).requests == 7


def test_gpus_that_share_the_tokens_of_a_context_hold_as_many_more():
    plain = Deployment("deepseek-v3", gpu="h200", tensor_parallel_size=8)
    shared = replace(plain, decode_context_parallel_size=8)
    assert kv_room(shared).tokens == 8 * kv_room(plain).tokens
    blocks = [TimeSetup(deployment=each).blocks_of("vllm", 512) for each in (plain, shared)]
    assert blocks == [
        kv_room(each).available_bytes * shards // (512 * 70_272) for each, shards in ((plain, 1), (shared, 8))
    ]


@pytest.fixture
def path(tmp_path):
    kvtrace.write(toy("0 1 2", "0 1 3", "0 4 5", block_size=512, gap_ms=100.0), tmp_path / "t.jsonl")
    return str(tmp_path / "t.jsonl")


def printed(capsys, *words):
    assert run([*words, "--json"]) == 0
    outcome = capsys.readouterr()
    return json.loads(outcome.out), outcome.err


def test_every_command_states_the_deployment_and_warns_of_what_is_not_modelled(path, capsys):
    served = ("--serve", "vllm serve llama-3.1-8b -tp 2 --enable-lora", "--gpu", "h100")
    values, warned = printed(capsys, "simulate", path, *served)
    assert values["deployment"] == {
        "engine": "vllm", "model": "llama-3.1-8b", "gpu": "h100", "tensor_parallel_size": 2,
        "not_modelled": ["--enable-lora"],
    }  # fmt: skip
    assert "not modelled: --enable-lora" in warned
    assert printed(capsys, "explain", path, *served)[0]["deployment"] == values["deployment"]
    planned = printed(capsys, "plan", path, *served, "--router", "sticky")[0]["setting"]
    assert planned["deployment"].items() >= values["deployment"].items()
    assert planned["capacity_blocks"] == values["results"][0]["capacity"]


def test_a_plan_and_a_simulation_of_one_deployment_have_the_same_blocks(path, capsys):
    for words in (["--gpus", "2"], ["--kv-cache-dtype", "fp8"], ["--max-requests", "64"], []):
        words = ["--model", "llama-3.1-8b", "--gpu", "h100", *words]
        simulated = printed(capsys, "simulate", path, *words)[0]["results"][0]["capacity"]
        planned = printed(capsys, "plan", path, *words, "--router", "sticky")[0]
        assert planned["setting"]["capacity_blocks"] == simulated


def test_the_engine_is_that_of_the_command(path, capsys):
    command = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 2 --scheduler-recv-interval 10"
    served = ["--serve", command, "--gpu", "h100"]
    values = printed(capsys, "simulate", path, *served)[0]
    assert values["deployment"]["engine"] == values["results"][0]["engine"] == "sglang"
    assert (
        printed(capsys, "plan", path, *served, "--router", "sticky")[0]["setting"]["deployment"]["engine"] == "sglang"
    )


def test_a_drafter_changes_hits_by_the_rule_of_the_version(path, capsys):
    words = ["simulate", path, "--model", "deepseek-v3", "--tp", "8", "--engine", "vllm", "--capacity", "50"]
    hits = {}
    for name, more in (("none", []), ("new", ["--speculative", "mtp"]), ("old", ["--engine-version", "0.26.0"])):
        more = [*more, "--speculative", "mtp"] if name == "old" else more
        (result,) = printed(capsys, *words, *more)[0]["results"]
        hits[name] = result["hit_blocks"], result.get("drafting", {}).get("rule")
    assert hits == {"none": (3, None), "new": (1, "lookahead"), "old": (1, "drop")}
    assert run(["simulate", path, "--model", "mimo-7b-base", "--speculative", "mtp:2", "--capacity", "9"]) == 2
    assert run(["simulate", path, "--model", "deepseek-v3", "--speculative", "mtp", "--capacity", "9"]) == 2
    assert "not modelled with --engine reference" in capsys.readouterr().err


def test_the_room_of_a_deployment_is_printed(capsys):
    room = printed(capsys, "models", "deepseek-ai/DeepSeek-V3", "--gpu", "h200", "--gpus", "8")[0]
    assert room["deployment"]["tensor_parallel_size"] == 8 and room["room"]["token_bytes"] == 70_272
    assert run(["models", "llama-3.1-8b", "--gpu", "h100", "--speculative", "eagle:2"]) == 2
    assert "eagle" in capsys.readouterr().err
    assert run(["models", "llama-3.1-8b", "--tp", "2"]) == 2
    assert "--tensor-parallel-size needs --gpu." in capsys.readouterr().err
    assert run(["models", "qwen3-8b", "--gpu", "l40s", "--max-model-len", "32768"]) == 0
    assert "of the longest context at once" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--serve", "vllm serve llama-3.1-8b -tp 2", "--tp", "4"], "--tensor-parallel-size 4 contradicts --serve"),
        (["--serve", "vllm serve llama-3.1-8b -tp 2", "--model", "qwen3-8b"], "--model qwen3-8b contradicts --serve"),
        (["--model", "llama-3.1-8b", "--tp", "2", "--gpus", "4"], "--gpus 4 contradicts"),
        (["--model", "llama-3.1-8b", "--speculative", "magic:2"], "'magic' is not a method"),
        (["--model", "llama-3.1-8b", "--tp", "0"], "--tensor-parallel-size must be at least 1"),
    ],
)
def test_options_that_contradict_are_one_line(path, capsys, words, message):
    assert run(["simulate", path, "--gpu", "h100", "--quiet", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1
