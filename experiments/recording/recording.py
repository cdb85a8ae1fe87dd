"""One recording, from a trace to its folder: choose, try, cut to the budget, serve, describe, write."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from experiments.model import Transformer
from experiments.paged import BlockStore
from experiments.pytorch import torch
from kvtrace._base.errors import UsageError
from kvtrace.formats.reading import read
from kvtrace.serving.schedulers.vllm import VllmScheduler
from kvtrace.trace.trace import Trace

from . import machine
from .cutting import cut, new_tokens, shrunk, to_budget
from .folder import write_folder
from .recorder import Recorded, probe, serve
from .sizes import SIZES, config_of

CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
TRIAL = 0.08  # of the budget is a trial that corrects the estimates, and warms up
NOTES = {
    "cpu": "Measured on a CPU: no figure of a GPU follows from it.",
    "cuda": "Measured on a GPU.",
}


@dataclass(frozen=True)
class Wanted:
    """What to record."""

    trace: Path
    device: str
    model_size: str
    dtype: str
    clock: str  # of CLOCKS
    scheduler: VllmScheduler
    minutes: float = 60.0  # of the trace
    budget_s: float = 480.0
    load: float = 0.9
    shrink: int | None = None  # None: to blocks of `block_size`
    block_size: int | None = None  # None: as in the trace
    max_tokens: int = 32_768
    kv_gib: float | None = None
    attention: str | None = None
    threads: int = 1
    seed: int = 0


def record(wanted: Wanted, folder: str | Path, tell: Callable[[str], None] = lambda text: None) -> Recorded:
    """Record, and write the folder; `tell` receives a line on each stage.

    Raises:
        UsageError: An option is not valid, there is no GPU, or the budget is too small.
    """
    begin, started = time.perf_counter(), datetime.now(UTC)
    _require_device(wanted)
    part, shrink, too_long = _part_of(wanted)
    shape, scheduler = SIZES[wanted.model_size], wanted.scheduler
    ways = machine.tried_ways(shape, wanted.device, wanted.dtype, part.block_size, only=wanted.attention)
    way = machine.fastest(ways, wanted.dtype)
    tell(f"attention: {way}; " + ", ".join(f"{name} {_told(one)}" for name, one in ways.items()))
    gpu = machine.measured_gpu(wanted.device, wanted.dtype, CLOCKS[wanted.clock])
    if wanted.device == "cuda":
        torch().cuda.empty_cache()
    model = Transformer(shape, seed=wanted.seed, device=wanted.device, dtype=wanted.dtype)
    blocks = machine.kv_blocks(model, part.block_size, gib=wanted.kv_gib)
    store = BlockStore(model, blocks, part.block_size)
    options = {"way": way, "clock": CLOCKS[wanted.clock]}
    estimate = _tried(wanted, part, model, store, options, tell)
    left = wanted.budget_s - (time.perf_counter() - begin)
    if left <= 0:
        raise UsageError("--budget-s is spent before the first request. Raise it, or use a smaller --model-size.")
    trace, stretch, seconds = to_budget(part, estimate.seconds, budget_s=left / estimate.waits, load=wanted.load)
    tell(f"{len(trace):,} requests of {part.block_size}-token blocks, {blocks:,} blocks, times x {stretch:.3g}")
    done = serve(
        trace, model, store, scheduler, estimate_s=seconds * estimate.waits, budget_s=left, **options
    )  # fmt: skip
    meta = {
        "schema_version": 1, "model": f"random-{wanted.model_size}", "note": NOTES[wanted.device],
        "device": wanted.device, "clock": wanted.clock,
        "engine": "experiments.recording of kvtrace: a transformer of random weights, eager PyTorch",
        "scheduler": f"the rules of vllm {scheduler.version}",
        "engine_kwargs": _engine_options(wanted),
        "dataset_path": f"{wanted.trace.name}, {wanted.minutes:g} minutes, lengths / {shrink}, times x {stretch:.6g}",
        "num_requests": len(done.trace),
        "left_out": {"too_long": too_long, "rejected": done.rejected, "after_budget": done.left_out},
        "started_at": started.isoformat(), "finished_at": datetime.now(UTC).isoformat(), "tick_seconds": 1.0,
        "kv_cache": {  # as vLLM counts, with one block that is never used
            "num_gpu_blocks": blocks + 1, "block_size": part.block_size, "enable_prefix_caching": True,
            "num_kv_tokens": blocks * part.block_size,
        },
        "hardware": machine.described(wanted.device), "attention": {"way": way, "tried": ways},
        "wall_s": done.wall_s, "busy_s": done.busy_s, "steps": len(done.steps),
    }  # fmt: skip
    write_folder(folder, done, meta=meta, config=config_of(shape, wanted.dtype), gpu=gpu, slots=blocks)
    return done


@dataclass(frozen=True)
class Estimate:
    """The seconds of requests, as two steps and a trial show them."""

    seconds: Callable[[np.ndarray, np.ndarray], np.ndarray]  # of new prompt tokens and output tokens
    waits: float  # wall-clock seconds per second of the recording's clock


def _tried(wanted: Wanted, part: Trace, model, store, options, tell) -> Estimate:
    """Time two steps, serve a few requests, and compare."""
    context = int(np.mean(part.input_length))
    probed = probe(model, store, wanted.scheduler, context, **options)
    tell(f"{1e6 * probed.token_s:.1f} us a prompt token, {1e6 * probed.output_s:.1f} us an output token")
    budget_s = TRIAL * wanted.budget_s
    few, _, seconds = to_budget(part, probed.seconds, budget_s=budget_s, load=wanted.load)
    trial = serve(few, model, store, wanted.scheduler, estimate_s=seconds, budget_s=2 * budget_s, **options)
    expected = probed.seconds(new_tokens(trial.trace), trial.trace.output_length).sum()
    slower = trial.busy_s / expected
    tell(f"a trial of {len(trial.trace):,} requests took {slower:.2g} times as long as these steps imply")
    return Estimate(lambda new, output: slower * probed.seconds(new, output), trial.wall_s / trial.busy_s)


def _require_device(wanted):
    if wanted.device == "cuda" and not torch().cuda.is_available():
        raise UsageError("PyTorch finds no GPU. Use --device cpu.")
    if wanted.device == "cpu":
        torch().set_num_threads(wanted.threads)


def _part_of(wanted) -> tuple[Trace, int, int]:
    """The part of the trace that fits, the divisor of its lengths, and the requests that are too long."""
    trace = read(wanted.trace, extra="ignore")
    shrink = wanted.shrink or max(trace.block_size // (wanted.block_size or trace.block_size), 1)
    part, too_long = cut(shrunk(trace, shrink), minutes=wanted.minutes, longest=wanted.max_tokens)
    return part, shrink, too_long


def _engine_options(wanted) -> dict[str, Any]:
    """The settings as vLLM names them."""
    scheduler = wanted.scheduler
    return {
        "model": f"random-{wanted.model_size}", "tensor_parallel_size": 1, "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens, "async_scheduling": scheduler.async_scheduling,
        "max_model_len": wanted.max_tokens, "dtype": wanted.dtype, "seed": wanted.seed,
    }  # fmt: skip


def _told(one):
    return one.get("failed") or f"{1e6 * one['seconds']:.0f} us (error {one['error']:.1e})"
