"""What a trace of KV events lacks: python -m benchmarks.kv_event_trace.

The conversation trace runs through an LRU cache that frees as vLLM's does, at several capacities. Each request that
stores blocks publishes them, as vLLM does, and `KvPublisher` makes the rows. Prompts only: the trace does not say what
answers are. For each capacity: the share of requests and of prompt blocks that no row has, the share of stores that
joined another's row, and the mean and the largest difference in points between the curves of the rows and of the
requests, in the block hit rate.
"""

from __future__ import annotations

import numpy as np

import kvtrace
from kvtrace._base.arrays import offsets_of
from kvtrace.ingest.logs.kv_events import KvPublisher
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace

from .inputs import conversations

SHARES = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)  # of the working set: the capacity of the engine
CURVE = np.geomspace(0.002, 1, 25)  # of the working set: the capacities that curves are compared at


def main() -> None:
    trace = whole_blocks(conversations())
    working_set = len(np.unique(trace.hash_ids))
    capacities = sorted({max(1, round(share * working_set)) for share in CURVE})
    true = kvtrace.analysis.hit_curve(trace).hits(capacities)
    print(f"{len(trace):,} requests, {len(trace.hash_ids):,} blocks, {working_set:,} of them distinct")
    print(f"{'capacity':>9}{'hits':>8}{'requests':>10}{'blocks':>8}{'joined':>8}{'curve':>8}{'signed':>8}")
    for share in SHARES:
        capacity = max(round(share * working_set), int(np.diff(trace.offsets).max()))
        hit = hits_of(trace, capacity)
        rows = rows_of(trace, hit)
        seen = kvtrace.analysis.hit_curve(rows).hits(capacities)
        differences = [100 * (one.block_hit_rate - other.block_hit_rate) for one, other in zip(seen, true, strict=True)]
        stored = hit < np.diff(trace.offsets)
        worst = max(differences, key=abs)
        print(
            f"{capacity:9,}{hit.sum() / len(trace.hash_ids):8.1%}{1 - stored.mean():10.1%}"
            f"{1 - np.diff(trace.offsets)[stored].sum() / len(trace.hash_ids):8.1%}"
            f"{1 - len(rows) / stored.sum():8.1%}{np.abs(differences).mean():8.2f}{worst:+8.2f}"
        )


def whole_blocks(trace: Trace) -> Trace:
    """The trace without partial blocks and empty prompts."""
    full = trace.input_length // trace.block_size
    prompts = [trace.prompt(row)[: full[row]] for row in range(len(trace)) if full[row]]
    return trace_of(trace.timestamp[full > 0], prompts, trace.block_size)


def trace_of(timestamp, prompts, block_size) -> Trace:
    """A trace of prompts of full blocks."""
    counts = np.array([len(prompt) for prompt in prompts])
    columns = Columns(
        np.asarray(timestamp, dtype=float), counts * block_size, np.zeros(len(counts), dtype=np.int64),
        np.concatenate(prompts), offsets_of(counts),
    )  # fmt: skip
    return Trace.from_columns(columns, block_size=block_size)


def hits_of(trace: Trace, capacity: int) -> np.ndarray:
    """Leading blocks of each request that the cache has: LRU, and a prompt's tail goes first."""
    cache, hits = {}, np.zeros(len(trace), dtype=np.int64)
    for row in range(len(trace)):
        path = trace.prompt(row).tolist()
        hits[row] = next((i for i, block in enumerate(path) if block not in cache), len(path))
        for block in path:
            cache.pop(block, None)
        cache.update(dict.fromkeys(reversed(path)))
        while len(cache) > capacity:
            del cache[next(iter(cache))]
    return hits


def rows_of(trace: Trace, hits: np.ndarray) -> Trace:
    """The trace of the rows that the events of these requests make; a block has one token, its number."""
    publisher, rows = KvPublisher(), []
    for row, hit in enumerate(hits.tolist()):
        path = trace.prompt(row).tolist()
        if hit < len(path):
            parent = path[hit - 1] if hit else None
            event = ["BlockStored", path[hit:], parent, path[hit:], 1]
            rows += publisher.add([float(trace.timestamp[row]) / 1000, [event]])
    rows += publisher.rest()
    rows.sort(key=lambda row: row["timestamp"])
    prompts = [np.array(row["prompt_token_ids"]) for row in rows]
    return trace_of([1000 * row["timestamp"] for row in rows], prompts, trace.block_size)


if __name__ == "__main__":
    main()
