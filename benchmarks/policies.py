"""Eviction orders beside libCacheSim's, on one-block requests by Zipf's law: nanoseconds a request, and equal hits.

The rival is libCacheSim's wheel in an environment of its own: KVTRACE_CLIENTS names a folder, `libcachesim` is the
environment in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from kvtrace.cache.core.pool import Pool
from kvtrace.cache.policies import make as policy
from kvtrace.cache.policies.base import Context

from .measuring import Line, apart, client

NAMES = {
    "lru": "LRU",
    "fifo": "FIFO",
    "lfu": "LFU",
    "sieve": "Sieve",
    "s3fifo": "S3FIFO",
    "arc": "ARC",
}  # ours -> theirs
REQUESTS, SHARES = 50_000_000, (0.1, 0.07348)  # blocks a request, capacity a block: 5 M blocks, 367,400 held
RECORD = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])  # of its oracleGeneral files
SIMULATE = """
import json, sys, time, libcachesim
path, name, capacity, requests = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
reader = libcachesim.TraceReader(path, libcachesim.TraceType.ORACLE_GENERAL_TRACE, libcachesim.ReaderInitParam())
cache = getattr(libcachesim, name)(cache_size=capacity)
start = time.perf_counter()
misses, _ = cache.process_trace(reader)
print(json.dumps([requests - round(misses * requests), time.perf_counter() - start]))
"""


def lines(folder: str, share: float) -> Iterator[Line]:
    """A request beside the rival's, which must take four times as long."""
    programs, needs = client("libcachesim")
    requests = round(REQUESTS * share)
    apart(make, folder, requests)
    for name in NAMES:
        ours, theirs = (run, folder, name), (rival, f"{programs}/python", folder, name, requests)
        yield Line(f"{name}, one-block requests / libCacheSim", "ns", ours, theirs, 0.25, needs)


def make(folder: str, requests: int) -> None:
    """Write the requests' blocks, numbered by first appearance, for us and for the rival."""
    rng, blocks = np.random.default_rng(7), int(requests * SHARES[0])
    reach = np.cumsum(1 / np.arange(1, blocks + 1))
    ranks = np.searchsorted(reach, rng.random(requests) * reach[-1])
    seen, first = np.unique(ranks, return_index=True)
    number = np.empty(blocks, dtype=np.int32)  # rank -> place in the order of first appearance
    number[seen[np.argsort(first)]] = np.arange(len(seen))
    ids = number[ranks]
    np.save(os.path.join(folder, "ids.npy"), ids)
    records = np.zeros(requests, dtype=RECORD)
    records["time"], records["id"], records["size"], records["next"] = np.arange(requests) // 1000, ids + 1, 1, -2
    records.tofile(os.path.join(folder, "ids.bin"))


def run(folder: str, name: str) -> float:
    """Our seconds a request: one request at a time, all blocks count, a flat pool."""
    return simulated(folder, name)[1]


def simulated(folder: str, name: str) -> tuple[int, float]:
    """Our hits, and our seconds a request."""
    ids = np.load(os.path.join(folder, "ids.npy"))
    requests, capacity = len(ids), _capacity(len(ids))
    one, no, none = np.ones(requests, np.int32), np.zeros(requests, np.int8), np.zeros(requests, np.int32)
    demand = SimpleNamespace(
        ids=ids, start=np.arange(requests), full=one, tail=no, limit=one, grown=none, grown_tail=no, fresh=none,
        grows=False, arrival=np.zeros(requests),
    )  # fmt: skip
    context = Context(int(ids.max()) + 1, capacity, None, demand)
    engine = Pool(context, demand, policy(name, context))
    start = time.process_time()
    engine.advance(requests)
    seconds = time.process_time() - start
    engine.close()
    return int(engine.hits.sum()), seconds / requests


def rival(python: str, folder: str, name: str, requests: int) -> float:
    """The rival's seconds a request; ValueError unless its hits are ours."""
    path, capacity = os.path.join(folder, "ids.bin"), str(_capacity(requests))
    command = [python, "-c", SIMULATE, path, NAMES[name], capacity, str(requests)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    hits, seconds = json.loads(printed.splitlines()[-1])
    if hits != (ours := simulated(folder, name)[0]):
        raise ValueError(f"{ours:,} hits, libCacheSim finds {hits:,}")
    return seconds / requests


def _capacity(requests: int) -> int:
    return round(requests * SHARES[0] * SHARES[1])
