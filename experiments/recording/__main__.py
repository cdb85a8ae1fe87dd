"""Record a model that runs: `python -m experiments.recording --device cuda --model-size 8b -o FOLDER`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from kvtrace._base.errors import KvtraceError, UsageError
from kvtrace.serving.schedulers.vllm import VllmScheduler

from .attention import WAYS
from .recording import CLOCKS, NOTES, Wanted, record
from .sizes import SIZES

PREPARED = Path("build/recording")  # `prepare.sh` writes NAME.jsonl there
SHARED = {"conversation": "data/mooncake/conversation_trace.jsonl"}  # in the folder that KVTRACE_SHARED names
STEP_TOKENS, REQUESTS = {"cuda": 8192, "cpu": 512}, {"cuda": 256, "cpu": 64}
DEFAULTS: dict[str, dict[str, Any]] = {
    "cuda": {"model_size": "8b", "dtype": "bfloat16", "max_tokens": 32768, "clock": "wall"},
    "cpu": {"model_size": "tiny", "dtype": "float32", "max_tokens": 4096, "clock": "processor", "block_size": 16},
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
@click.option(
    "--attention",
    type=click.Choice(list(WAYS)),
    help="A way of attention.  [default: the fastest that is right on the device]",
)
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
def main(device, trace_name, output, step_tokens, max_requests, async_scheduling, **given):
    """Serve a trace with a model of random weights, step by step as vLLM's scheduler plans, and record all times."""
    chosen = DEFAULTS[device] | {name: value for name, value in given.items() if value is not None}
    scheduler = VllmScheduler(
        max_num_batched_tokens=step_tokens or STEP_TOKENS[device], max_num_seqs=max_requests or REQUESTS[device],
        async_scheduling=async_scheduling,
    )  # fmt: skip
    done = record(
        Wanted(trace=_trace_file(trace_name), device=device, scheduler=scheduler, **chosen), output, click.echo
    )
    cached = done.outcomes["cached"].sum() / done.trace.input_length.sum()
    click.echo(
        f"{output}: {len(done.trace):,} requests, {len(done.steps):,} steps, {done.busy_s:.1f} s of steps in "
        f"{done.wall_s:.1f} s, {cached:.0%} of prompt tokens cached, {done.outcomes['preempted'].sum():,} preemptions. "
        f"{NOTES[device]}"
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


if __name__ == "__main__":
    try:
        main()
    except KvtraceError as error:
        raise SystemExit(f"error: {error}") from None
