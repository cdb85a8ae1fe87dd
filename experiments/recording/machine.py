"""The device that is measured: its name, what it reaches, the way of attention that is right and fastest on it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from experiments.model import Shape, Transformer
from experiments.paged import BlockStore
from experiments.pytorch import torch
from kvtrace._base.errors import UsageError

from .attention import WAYS, PagedAttention
from .batch import Batch

TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 2e-2, "float16": 5e-3}  # of attention, whose values are ~1
TRIED_TOKENS = {"cpu": 40_000, "cuda": 400_000}  # of the contexts on which the ways are timed
TRIED_REQUESTS = 32


def described(device: str) -> dict[str, Any]:
    """The device and the versions, as `hardware` of a meta.json."""
    module = torch()
    versions = {"device": device, "torch_version": module.__version__, "python_version": platform.python_version()}
    if device == "cpu":
        return versions | {
            "device_name": f"CPU, {module.get_num_threads()} threads of {os.cpu_count()} processors",
            "device_total_memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        }
    gpu = module.cuda.get_device_properties(device)
    return versions | {
        "cuda_version": module.version.cuda, "device_count": 1, "device_name": gpu.name,
        "device_total_memory_bytes": gpu.total_memory, "device_capability": f"{gpu.major}.{gpu.minor}",
    }  # fmt: skip


def measured_gpu(device: str, dtype: str, clock: Callable[[], float] = time.perf_counter) -> dict[str, Any]:
    """The device as a file for `--gpu`: its peaks are what a product of matrices and a copy reach here.

    Those that were measured are reached in full, so the shares of the peaks are 1.
    """
    module, form = torch(), getattr(torch(), dtype)
    wide, long = (8192, 1 << 30) if device != "cpu" else (1024, 1 << 26)
    matrix = module.randn(wide, wide, device=device, dtype=form)
    values = module.zeros(long, device=device, dtype=module.uint8)
    flops = 2 * wide**3 / seconds_of(lambda: matrix @ matrix, device, clock)
    bandwidth = 2 * long / seconds_of(lambda: values.clone(), device, clock)
    facts = described(device)
    return {
        "name": facts["device_name"], "flops": flops, "bandwidth": bandwidth,
        "memory": float(facts["device_total_memory_bytes"]), "price_per_hour": 0.0,
        "matmul_share": 1.0, "bandwidth_share": 1.0,
    }  # fmt: skip


def seconds_of(
    run: Callable[[], Any], device: str, clock: Callable[[], float] = time.perf_counter, times: int = 5
) -> float:
    """The least seconds of a call, of several after a first one that is not counted."""
    wait = torch().cuda.synchronize if device.startswith("cuda") else (lambda: None)
    measured = []
    for _ in range(times + 1):
        wait()
        start = clock()
        run()
        wait()
        measured.append(clock() - start)
    return min(measured[1:])


def kv_blocks(model: Transformer, block_size: int, *, gib: float | None, share: float = 0.85) -> int:
    """The blocks that fit into some GiB, or into a share of the GPU's free memory."""
    shape = model.shape
    block = 2 * shape.layers * shape.kv_heads * shape.head_dim * model.dtype.itemsize * block_size
    if gib is None:
        gib = model.torch.cuda.mem_get_info()[0] * share / 2**30 if model.device.startswith("cuda") else 1.0
    return max(int(gib * 2**30 // block), 1)


def tried_ways(
    shape: Shape, device: str, dtype: str, block_size: int, *, only: str | None = None
) -> dict[str, dict[str, Any]]:
    """What each way of attention does here: its largest error, and its seconds for a layer of 32 decoding requests.

    A way that does not run has `failed`, the kind of its exception; one that is wrong has an error above TOLERANCE.
    """
    module = torch()
    tokens = TRIED_TOKENS["cpu" if device == "cpu" else "cuda"]
    blocks = max(-(-tokens // block_size), 64)
    one = SimpleNamespace(shape=replace(shape, layers=1), torch=module, dtype=getattr(module, dtype), device=device)
    exact = SimpleNamespace(**vars(one) | {"dtype": module.float32 if dtype != "float64" else module.float64})
    store, truth = BlockStore(one, blocks, block_size), BlockStore(exact, blocks, block_size)
    module.manual_seed(0)
    store.blocks.normal_()
    truth.blocks.copy_(store.blocks)
    chunks = Batch.made_up([0, 70, block_size + 5], [40, 9, 7], blocks, block_size, 9)
    steps = Batch.made_up([3, block_size, 2 * block_size + 1, 900], [1] * 4, blocks, block_size, 9)
    contexts = [tokens // TRIED_REQUESTS * (1 + row % 2) * 2 // 3 for row in range(TRIED_REQUESTS)]
    timed = Batch.made_up(contexts, [1] * TRIED_REQUESTS, blocks, block_size, 9)
    names = [only] if only else [name for name in WAYS if device != "cpu" or name == "gathered"]
    found: dict[str, dict[str, Any]] = {}
    with module.inference_mode():
        for name in names:
            way = WAYS[name]
            try:
                errors = [_error(way, store, truth, batch, shape) for batch in (chunks, steps)]
                attend, inputs = way(store, timed), _inputs(store, timed, shape)
                seconds = seconds_of(lambda attend=attend, inputs=inputs: attend(0, *inputs), device)
                found[name] = {"error": max(errors), "seconds": seconds}
            except Exception as error:  # a kernel of this PyTorch refuses the shapes, or is missing: others remain
                found[name] = {"failed": type(error).__name__}
    return found


def fastest(ways: dict[str, dict[str, Any]], dtype: str) -> str:
    """The fastest way that is right.

    >>> fastest({"a": {"error": 9.0, "seconds": 1}, "b": {"error": 0.0, "seconds": 3}, "c": {"failed": ""}}, "float32")
    'b'
    """
    right = {name: way["seconds"] for name, way in ways.items() if way.get("error", 1e9) <= TOLERANCE[dtype]}
    if not right:
        raise UsageError(f"No way of attention works on this device: {ways}. Try another --attention or --dtype.")
    return min(right, key=lambda name: right[name])


def _inputs(store, batch, shape):
    module = torch()
    made = module.Generator(store.blocks.device).manual_seed(1)
    counts = (shape.heads, shape.kv_heads, shape.kv_heads)
    options = {"generator": made, "device": store.blocks.device, "dtype": store.blocks.dtype}
    return [module.randn(len(batch.tokens), heads, shape.head_dim, **options) for heads in counts]


def _error(way: Callable[..., PagedAttention], store, truth, batch, shape) -> float:
    inputs = _inputs(store, batch, shape)
    kind = truth.blocks.dtype
    expected = WAYS["gathered"](truth, batch)(0, *(one.to(kind) for one in inputs))
    return float((way(store, batch)(0, *inputs).to(kind) - expected).abs().max())
