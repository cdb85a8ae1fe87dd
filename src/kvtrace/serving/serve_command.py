"""The command that starts a server, such as `vllm serve M -tp 8`, read as the fields of a Deployment.

Options that decide neither memory nor hits nor times (`HARMLESS`) are passed over; every other one that is not a field
is named in `not_modelled`. Names are those of vLLM 0.33.0 (engine/arg_utils.py) and SGLang 0.5.23 (srt/server_args.py).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from .._base import units
from .._base.errors import UsageError
from .deployment import SGLANG_METHODS, Deployment, Drafter, vllm_method

EXAMPLE = "Example: --serve 'vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2'."


@dataclass(frozen=True)
class ServeCommand:
    """What the command of a server states: fields of a Deployment, and options that kvtrace does not model."""

    stated: Mapping[str, Any]  # with `not_modelled`, if there are such options
    scheduler: str | None = None  # options of the engine's scheduler, as --scheduler takes them


def _size(text: str) -> int:
    """A number of tokens, as in 32768, 32k (decimal) or 32K (binary): vLLM's own notation."""
    factors = {"k": 10**3, "K": 1 << 10, "m": 10**6, "M": 1 << 20, "g": 10**9, "G": 1 << 30}
    if text[-1:] in factors:
        return round(float(text[:-1]) * factors[text[-1]])
    return units.count(text)


def _vllm_drafter(text: str) -> Drafter | None:
    try:
        config = orjson.loads(text)
        name, tokens = str(config.get("method", "eagle")), config.get("num_speculative_tokens", 1)
    except (ValueError, AttributeError):
        raise UsageError("the value is not a JSON object.") from None
    if name in ("ngram", "suffix"):
        return None  # no drafter: nothing is lost
    method = vllm_method(name)
    if method is None:
        raise UsageError("its method is not modelled. Try mtp, eagle or eagle3.")
    return Drafter(method, tokens, config.get("model"))


Field = tuple[str, Callable[[str], Any]]
VLLM: dict[str, Field] = {  # option -> field of Deployment, and how its value is read
    "--tensor-parallel-size": ("tensor_parallel_size", units.count), "-tp": ("tensor_parallel_size", units.count),
    "--pipeline-parallel-size": ("pipeline_parallel_size", units.count), "-pp": ("pipeline_parallel_size", units.count),
    "--data-parallel-size": ("data_parallel_size", units.count), "-dp": ("data_parallel_size", units.count),
    "--decode-context-parallel-size": ("decode_context_parallel_size", units.count),
    "-dcp": ("decode_context_parallel_size", units.count),
    "--prefill-context-parallel-size": ("prefill_context_parallel_size", units.count),
    "-pcp": ("prefill_context_parallel_size", units.count),
    "--model": ("model", str), "--quantization": ("weights_dtype", str), "-q": ("weights_dtype", str),
    "--kv-cache-dtype": ("kv_cache_dtype", str), "--block-size": ("block_size", units.count),
    "--gpu-memory-utilization": ("gpu_memory_utilization", float), "--max-model-len": ("max_model_len", _size),
    "--kv-cache-memory-bytes": ("kv_cache_memory_bytes", _size), "--kv-cache-memory": ("kv_cache_memory_bytes", _size),
    "--max-num-batched-tokens": ("max_num_batched_tokens", _size), "--max-num-seqs": ("max_num_seqs", units.count),
    "--speculative-config": ("speculative", _vllm_drafter), "-sc": ("speculative", _vllm_drafter),
    "--prefix-cache-retention-interval": ("retention_interval", _size),
}  # fmt: skip
VLLM_FLAGS: dict[str, tuple[str, Any]] = {
    "--enable-expert-parallel": ("enable_expert_parallel", True), "-ep": ("enable_expert_parallel", True),
    "--enforce-eager": ("enforce_eager", True), "--disable-hybrid-kv-cache-manager": ("hybrid", False),
}  # fmt: skip
ATTENTION_RANKS = "attn_dp_size"  # stands for data_parallel_size and enable_dp_attention
SGLANG: dict[str, Field] = {
    "--model-path": ("model", str), "--model": ("model", str), "--tp-size": ("tensor_parallel_size", units.count),
    "--tensor-parallel-size": ("tensor_parallel_size", units.count), "--tp": ("tensor_parallel_size", units.count),
    "--pp-size": ("pipeline_parallel_size", units.count),
    "--pipeline-parallel-size": ("pipeline_parallel_size", units.count),
    "--dp-size": ("data_parallel_size", units.count), "--data-parallel-size": ("data_parallel_size", units.count),
    "--dp": ("data_parallel_size", units.count), "--attn-dp-size": (ATTENTION_RANKS, units.count),
    "--attention-data-parallel-size": (ATTENTION_RANKS, units.count), "--quantization": ("weights_dtype", str),
    "--kv-cache-dtype": ("kv_cache_dtype", str), "--page-size": ("block_size", units.count),
    "--mem-fraction-static": ("gpu_memory_utilization", float), "--context-length": ("max_model_len", units.count),
    "--chunked-prefill-size": ("max_num_batched_tokens", units.count),
    "--max-running-requests": ("max_num_seqs", units.count),
    "--load-balance-method": ("balancer", str),
}  # fmt: skip
SGLANG_FLAGS: dict[str, tuple[str, Any]] = {
    "--disable-cuda-graph": ("enforce_eager", True), "--enable-dp-attention": ("enable_dp_attention", True),
}  # fmt: skip
SGLANG_DRAFTER = ("--speculative-algorithm", "--speculative-num-draft-tokens", "--speculative-draft-model-path",
                  "--speculative-num-steps", "--speculative-eagle-topk")  # fmt: skip
HARMLESS = {  # where clients connect, what is printed, how text is read: no memory, no hits, no times
    "--host", "--port", "--api-key", "--served-model-name", "--trust-remote-code", "--tokenizer", "--tokenizer-path",
    "--tokenizer-mode", "--chat-template", "--tool-call-parser", "--reasoning-parser", "--enable-auto-tool-choice",
    "--log-level", "--disable-log-requests", "--enable-log-requests", "--log-requests", "--uvicorn-log-level",
    "--download-dir", "--load-format", "--revision", "--seed", "--random-seed", "--enable-metrics",
    "--distributed-executor-backend", "--nnodes", "--node-rank", "--dist-init-addr", "--master-addr", "--master-port",
    "--api-server-count", "--generation-config", "--enable-prefix-caching", "--enable-chunked-prefill",
    "--enable-cache-report", "--enable-prompt-tokens-details", "--watchdog-timeout", "--hf-token", "--allowed-origins",
    "--no-enable-log-requests", "--disable-uvicorn-access-log", "--language-model-only",
}  # fmt: skip
OF_THE_TRANSFER = {  # what options of kvtrace say of workers of two kinds
    "--kv-transfer-config", "--disaggregation-mode", "--disaggregation-transfer-backend", "--disaggregation-ib-device",
    "--disaggregation-bootstrap-port",
}  # fmt: skip
SIXTEEN_BITS = ("auto", "half", "float16", "bfloat16")
SCHEDULER = {  # engine -> option -> the scheduler's option, which has its value
    "vllm": {"--scheduling-policy": "policy", "--long-prefill-token-threshold": "long_prefill_token_threshold"},
    "sglang": {
        f"--{name.replace('_', '-')}": name
        for name in (
            "scheduler_recv_interval", "schedule_policy", "schedule_conservativeness", "max_prefill_tokens",
            "priority_scheduling_preemption_threshold", "retraction_policy", "num_reserved_decode_tokens",
        )
    },
}  # fmt: skip
SCHEDULER_FLAGS = {
    "vllm": {"--async-scheduling": "async_scheduling=on", "--no-async-scheduling": "async_scheduling=off"},
    "sglang": {
        f"--{name.replace('_', '-')}": f"{name}=on"
        for name in (
            "disable_overlap_schedule", "enable_mixed_chunk", "enable_priority_scheduling",
            "disable_priority_preemption", "schedule_low_priority_values_first",
            "disaggregation_decode_enable_radix_cache",
        )
    },
}  # fmt: skip
FLAGS = {"--trust-remote-code", "--enable-auto-tool-choice", "--enable-prefix-caching", "--enable-chunked-prefill",
         "--enable-metrics", "--enable-cache-report", "--enable-prompt-tokens-details"}  # fmt: skip


STARTS = (
    ("vllm", ["vllm", "serve"]), ("vllm", ["python", "-m", "vllm.entrypoints.openai.api_server"]),
    ("sglang", ["sglang", "serve"]), ("sglang", ["python", "-m", "sglang.launch_server"]),
)  # fmt: skip


def read_command(text: str) -> ServeCommand:
    """Read the command that starts a server.

    Args:
        text: `vllm serve MODEL ...`, `sglang serve ...` or `python -m sglang.launch_server ...`.

    Returns:
        The fields of a Deployment that it states, with the options that are not modelled, by name.

    Raises:
        UsageError: It starts no server of vLLM or SGLang, or a value is not valid.

    >>> command = read_command("vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --kv-cache-dtype fp8 --enable-lora")
    >>> command.stated["tensor_parallel_size"], command.stated["kv_cache_dtype"], command.stated["not_modelled"]
    (8, 'fp8', ('--enable-lora',))
    """
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError:
        raise UsageError(f"--serve: a quote is not closed. {EXAMPLE}") from None
    engine, rest = _engine_of(words)
    options, flags = (VLLM, VLLM_FLAGS) if engine == "vllm" else (SGLANG, SGLANG_FLAGS)
    stated: dict[str, Any] = {"engine": engine}
    unknown: list[str] = []
    scheduler: list[str] = []
    drafter: dict[str, str] = {}
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        name = name.replace("_", "-") if name.startswith("--") else name
        if not name.startswith("-"):
            if "model" in stated or engine != "vllm":
                raise UsageError(f"--serve: {name!r} is not an option. {EXAMPLE}")
            stated["model"] = name
        elif name in flags:
            field_name, flag = flags[name]
            stated[field_name] = flag
        elif name in SCHEDULER_FLAGS[engine]:
            scheduler.append(SCHEDULER_FLAGS[engine][name])
        elif name in SCHEDULER[engine]:
            scheduler.append(f"{SCHEDULER[engine][name]}={value if equals else _value_after(name, rest)}")
        elif name in options or name in SGLANG_DRAFTER:
            given = value if equals else _value_after(name, rest)
            if name in options:
                field_name, parse = options[name]
                stated[field_name] = _parsed(name, given, parse)
            else:
                drafter[name] = given
        else:
            if not equals and name not in FLAGS and rest and not rest[0].startswith("-"):
                value = rest.pop(0)
            if name not in HARMLESS and not (name == "--dtype" and value in SIXTEEN_BITS):
                unknown.append(name)
    if drafter:
        stated["speculative"] = _sglang_drafter(drafter)
    if (ranks := stated.pop(ATTENTION_RANKS, 1)) > 1:
        stated |= {"data_parallel_size": ranks, "enable_dp_attention": True}
    if stated.get("enable_dp_attention"):
        stated |= _of_a_rank(stated)
        scheduler.append("schedule_conservativeness=0.3")
    if unknown:
        stated["not_modelled"] = tuple(unknown)
    known = {name: value for name, value in stated.items() if value is not None}
    return ServeCommand(known, ",".join(scheduler) or None)


def worker_options(deployment: Deployment, text: str, kind: str) -> ServeCommand:
    """Options of the engine's serve command in which the workers of a kind differ from a deployment.

    >>> worker_options(Deployment("llama-3.1-8b"), "-tp 4 --max-num-seqs 8", "prefill").stated
    {'tensor_parallel_size': 4, 'max_num_seqs': 8}
    """
    start = "vllm serve" if deployment.engine == "vllm" else "sglang serve"
    try:
        command = read_command(f"{start} {text}")
    except UsageError as error:
        message = str(error).replace("--serve:", f"--{kind}-options:").replace(EXAMPLE, "Example: '-tp 4'.")
        raise UsageError(message) from None
    if "model" in command.stated:
        raise UsageError(f"--{kind}-options cannot name another model. Leave it out.")
    if unknown := [name for name in command.stated.get("not_modelled", ()) if name not in OF_THE_TRANSFER]:
        raise UsageError(f"--{kind}-options: {unknown[0]} is not modelled. Leave it out.")
    stated = {name: value for name, value in command.stated.items() if name not in ("engine", "not_modelled")}
    return replace(command, stated=stated)


def _of_a_rank(stated: Mapping[str, Any]) -> dict[str, Any]:
    """The share of a rank in the sizes that SGLang states of all ranks with data-parallel attention."""
    names, ranks = ("tensor_parallel_size", "max_num_batched_tokens", "max_num_seqs"), stated.get("data_parallel_size")
    return {name: max(1, stated[name] // (ranks or 1)) for name in names if name in stated}


def _engine_of(words: list[str]) -> tuple[str, list[str]]:
    """The engine that a command starts, and the words after that."""
    while words and "=" in words[0] and not words[0].startswith("-"):  # environment variables
        words = words[1:]
    plain = [word.rpartition("/")[2] for word in words[:3]]
    if plain and plain[0].startswith("python"):
        plain[0] = "python"
    for engine, start in STARTS:
        if plain[: len(start)] == start:
            return engine, words[len(start) :]
    raise UsageError(f"--serve starts neither vLLM nor SGLang. {EXAMPLE}")


def _value_after(name: str, rest: list[str]) -> str:
    if not rest:
        raise UsageError(f"--serve: {name} has no value. {EXAMPLE}")
    return rest.pop(0)


def _parsed(name: str, text: str, parse: Callable[[str], Any]) -> Any:
    """The value of an option; UsageError names the option."""
    try:
        return parse(text)
    except UsageError as error:
        raise UsageError(f"--serve: {name}: {error}") from None
    except ValueError:
        raise UsageError(f"--serve: {text!r} is not a value of {name}.") from None


def _sglang_drafter(given: Mapping[str, str]) -> Drafter | None:
    """SGLang's drafter; its N-gram method has none."""
    algorithm = given.get("--speculative-algorithm", "").lower()
    if not algorithm or algorithm == "ngram":
        return None
    method = SGLANG_METHODS.get(algorithm)
    if method is None:
        raise UsageError(f"--serve: the method {algorithm} of --speculative-algorithm is not modelled.")
    model = given.get("--speculative-draft-model-path")
    tokens = given.get("--speculative-num-steps", "1")
    steps = _parsed("--speculative-num-steps", tokens, units.count)
    return Drafter("mtp" if method == "eagle" and model is None else method, steps, model)
