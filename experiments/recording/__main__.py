"""Record a model that runs: `python -m experiments.recording --device cuda --model-size 8b -o FOLDER`."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path

import click
import numpy as np

from kvtrace._base.errors import KvtraceError, UsageError
from kvtrace.formats.reading import read
from kvtrace.serving.schedulers.vllm import VllmScheduler

from .cutting import cut, shrunk, to_budget
from .sizes import SIZES, config_of

PREPARED = Path("build/recording")  # `prepare.sh` writes NAME.jsonl there
SHARED = {"conversation": "data/mooncake/conversation_trace.jsonl"}  # in the folder that KVTRACE_SHARED names
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
DEFAULTS = {  # device -> what suits it
    "cuda": {
        "model_size": "8b",
        "dtype": "bfloat16",
        "block": None,
        "step_tokens": 8192,
        "requests": 256,
        "longest": 32768,
        "clock": "wall",
    },
    "cpu": {
        "model_size": "tiny",
        "dtype": "float32",
        "block": 16,
        "step_tokens": 512,
        "requests": 64,
        "longest": 4096,
        "clock": "processor",
    },
}


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--device", default="cpu", type=click.Choice(list(DEFAULTS)), help="Where the model runs.")
@click.option(
    "--model-size", type=click.Choice(list(SIZES)), help="Random weights.  [default: 8b on cuda, tiny on cpu]"
)
@click.option(
    "--trace", "trace_name", default="conversation", metavar="NAME|FILE", help="conversation, agents, or a trace file."
)
@click.option(
    "--minutes", default=60.0, type=click.FloatRange(0, min_open=True), help="The part of the trace, from its start."
)
@click.option(
    "--budget-s",
    default=480.0,
    type=click.FloatRange(1),
    help="Wall-clock seconds of the recording; it decides how many requests are served.",
)
@click.option(
    "--load",
    default=0.9,
    type=click.FloatRange(0.01, 10),
    help="Seconds of work that arrive per second; times between arrivals are stretched to it.",
)
@click.option(
    "--shrink",
    type=click.IntRange(1),
    help="Divide all lengths and the block size.  [default: 1 on cuda, to blocks of 16 on cpu]",
)
@click.option(
    "--max-tokens", type=click.IntRange(2), help="Leave out longer requests.  [default: 32768 on cuda, 4096 on cpu]"
)
@click.option(
    "--step-tokens", type=click.IntRange(1), help="max_num_batched_tokens.  [default: 8192 on cuda, 512 on cpu]"
)
@click.option("--max-requests", type=click.IntRange(1), help="max_num_seqs.  [default: 256 on cuda, 64 on cpu]")
@click.option(
    "--kv-gib",
    type=click.FloatRange(0, min_open=True),
    help="Memory of the KV.  [default: 85 % of what is free on cuda, 1 on cpu]",
)
@click.option(
    "--async-scheduling/--no-async-scheduling", default=False, help="Plan a step before the one before it has ended."
)
@click.option(
    "--dtype", type=click.Choice(["bfloat16", "float16", "float32"]), help="[default: bfloat16 on cuda, float32 on cpu]"
)
@click.option("--attention", help="A way of attention.  [default: the fastest that is right on the device]")
@click.option(
    "--threads",
    default=1,
    type=click.IntRange(1),
    help="PyTorch's threads: several wait for each other where others use the processors.",
)
@click.option(
    "--clock",
    type=click.Choice(list(CLOCKS)),
    help="Seconds of the wall, or of the processor that runs this process.  [default: wall on cuda, processor on cpu]",
)
@click.option("--seed", default=0, type=click.IntRange(0), help="Of the weights.")
@click.option("-o", "--output", required=True, type=click.Path(file_okay=False), help="The folder to write.")
def main(
    device, trace_name, minutes, budget_s, load, shrink, output, attention, threads, seed, async_scheduling, **given
):
    """Serve a trace with a model of random weights, step by step as vLLM's scheduler plans, and record all times."""
    from experiments.model import Transformer
    from experiments.paged import BlockStore
    from experiments.pytorch import torch

    from . import machine
    from .folder import write_folder
    from .recorder import probe, serve

    started = datetime.now(UTC)
    begin = time.perf_counter()
    defaults = DEFAULTS[device]
    if device == "cuda" and not torch().cuda.is_available():
        raise UsageError("PyTorch finds no GPU. Use --device cpu.")
    if device == "cpu":
        torch().set_num_threads(threads)
    size, dtype = given["model_size"] or defaults["model_size"], given["dtype"] or defaults["dtype"]
    whole = read(_trace_file(trace_name), extra="ignore")
    if shrink is None:
        shrink = max(whole.block_size // (defaults["block"] or whole.block_size), 1)
    longest = given["max_tokens"] or defaults["longest"]
    clock = given["clock"] or defaults["clock"]
    part, too_long = cut(shrunk(whole, shrink), minutes=minutes, longest=longest)
    scheduler = VllmScheduler(
        max_num_batched_tokens=given["step_tokens"] or defaults["step_tokens"],
        max_num_seqs=given["max_requests"] or defaults["requests"], async_scheduling=async_scheduling,
    )  # fmt: skip
    shape = SIZES[size]
    ways = machine.tried_ways(shape, device, dtype, part.block_size)
    way = attention or machine.fastest(ways, dtype)
    click.echo(f"attention: {way}; " + ", ".join(f"{name} {_told(one)}" for name, one in ways.items()))
    gpu = machine.measured_gpu(device, dtype)
    if device == "cuda":
        torch().cuda.empty_cache()
    model = Transformer(shape, seed=seed, device=device, dtype=dtype)
    blocks = machine.kv_blocks(model, part.block_size, gib=given["kv_gib"])
    store = BlockStore(model, blocks, part.block_size)
    context = int(np.median(part.input_length))
    probed = probe(model, store, scheduler, context, way, clock=CLOCKS[clock])
    click.echo(
        f"{gpu['name']}: {1e6 * probed.token_s:.1f} us a prompt token, {1e6 * probed.output_s:.1f} us an output token"
    )
    left = budget_s - (time.perf_counter() - begin)
    if left <= 0:
        raise UsageError("--budget-s is spent before the first request. Raise it, or use a smaller --model-size.")
    trace, stretch, estimate_s = to_budget(part, probed.seconds, budget_s=left, load=load)
    click.echo(f"{len(trace):,} requests of {part.block_size}-token blocks, {blocks:,} blocks, times x {stretch:.3g}")
    done = serve(trace, model, store, scheduler, way=way, clock=CLOCKS[clock], estimate_s=estimate_s, budget_s=left)
    hardware = machine.described(device)
    note = "Measured on a CPU: no figure of a GPU follows from it." if device == "cpu" else "Measured on a GPU."
    meta = {
        "schema_version": 1, "model": f"random-{size}", "note": note, "device": device, "clock": clock,
        "engine": "experiments.recording of kvtrace: a transformer of random weights, eager PyTorch",
        "scheduler": f"the rules of vllm {scheduler.version}",
        "engine_kwargs": {
            "model": f"random-{size}", "tensor_parallel_size": 1, "max_num_seqs": scheduler.max_num_seqs,
            "max_num_batched_tokens": scheduler.max_num_batched_tokens, "async_scheduling": async_scheduling,
            "max_model_len": longest, "dtype": dtype, "seed": seed,
        },
        "dataset_path": f"{Path(trace_name).name}, {minutes:g} minutes, lengths / {shrink}, times x {stretch:.6g}",
        "num_requests": len(done.trace),
        "left_out": {"too_long": too_long, "rejected": done.rejected, "after_budget": done.left_out},
        "started_at": started.isoformat(), "finished_at": datetime.now(UTC).isoformat(), "tick_seconds": 1.0,
        "kv_cache": {  # as vLLM counts, with one block that is never used
            "num_gpu_blocks": blocks + 1, "block_size": part.block_size, "enable_prefix_caching": True,
            "num_kv_tokens": blocks * part.block_size,
        },
        "hardware": hardware, "attention": {"way": way, "tried": ways},
        "wall_s": done.wall_s, "busy_s": sum(step.seconds for step in done.steps), "steps": len(done.steps),
    }  # fmt: skip
    write_folder(output, done, meta=meta, config=config_of(shape, dtype), gpu=gpu, slots=blocks)
    outcomes = done.outcomes
    cached = outcomes["cached"].sum() / done.trace.input_length.sum()
    click.echo(
        f"{output}: {len(done.trace):,} requests, {len(done.steps):,} steps, {meta['busy_s']:.1f} s of steps in "
        f"{done.wall_s:.1f} s, {cached:.0%} of prompt tokens cached, {outcomes['preempted'].sum():,} preemptions. {note}"
    )


def _trace_file(name: str) -> Path:
    """The file of a trace: a name that prepare.sh has prepared or KVTRACE_SHARED holds, or a path."""
    prepared = PREPARED / f"{name}.jsonl"
    if prepared.exists():
        return prepared
    if name in SHARED and "KVTRACE_SHARED" in os.environ:
        return Path(os.environ["KVTRACE_SHARED"], SHARED[name])
    if name in ("conversation", "agents"):
        raise UsageError(f"{prepared} does not exist. experiments/recording/README.md says how to prepare it.")
    return Path(name)


def _told(one):
    return one.get("failed") or f"{1e6 * one['seconds']:.0f} us (error {one['error']:.1e})"


if __name__ == "__main__":
    try:
        main()
    except KvtraceError as error:
        raise SystemExit(f"error: {error}") from None
