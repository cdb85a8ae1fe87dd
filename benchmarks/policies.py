"""Eviction orders beside libCacheSim's, on one-block requests by Zipf's law: nanoseconds a request, and equal hits.

The rival is libCacheSim's wheel in an environment of its own: KVTRACE_CLIENTS names a folder, `libcachesim` is the
environment in it. Where there is none, ours stands alone. Run alone: python -m benchmarks.policies [requests [rounds]].
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from kvtrace.cache.core.pool import Pool
from kvtrace.cache.policies import make as policy
from kvtrace.cache.policies.base import Context

from .apart import apart
from .table import Claim, show

RIVAL = Path(os.environ.get("KVTRACE_CLIENTS", "no-such-folder")) / "libcachesim/bin/python"
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


def claims(folder: str, requests: int, rounds: int) -> list[Claim]:
    """Nanoseconds a request beside the rival's, which must be four times as many; nothing where there is no rival."""
    if not RIVAL.exists():
        return []
    found = measured(folder, requests, rounds)
    for name, (ours, theirs, _, _) in found.items():
        if ours != theirs:
            raise SystemExit(f"{name}: {ours:,} hits, libCacheSim finds {theirs:,}")
    return [
        Claim(
            f"{name} / libCacheSim, {ours:,} hits each",
            1e9 * here / requests, 1e9 * there / requests, "ns/request", 0.25,
        )
        for name, (ours, _, here, there) in found.items()
    ]  # fmt: skip


def measured(folder: str, requests: int, rounds: int) -> dict[str, tuple]:
    """Our hits and the rival's (None where it is missing), our median seconds and its, for each policy."""
    apart(make, folder, requests)
    found = {}
    for name in NAMES:
        ours, theirs = [], []
        for _ in range(rounds):  # in turn: what else the machine does meets both
            ours.append(apart(run, folder, name))
            theirs.append(rival(folder, name, requests))
        found[name] = (
            ours[0][0], theirs[0][0], statistics.median(s for _, s in ours), statistics.median(s for _, s in theirs)
        )  # fmt: skip
    return found


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
    if RIVAL.exists():
        records = np.zeros(requests, dtype=RECORD)
        records["time"], records["id"], records["size"], records["next"] = np.arange(requests) // 1000, ids, 1, -2
        records["id"] += 1
        records.tofile(os.path.join(folder, "ids.bin"))


def run(folder: str, name: str) -> tuple[int, float]:
    """Our hits and seconds: one request at a time, all blocks count, a flat pool."""
    ids = np.load(os.path.join(folder, "ids.npy"))
    requests, capacity = len(ids), _capacity(len(ids))
    one, no, none = np.ones(requests, np.int32), np.zeros(requests, np.int8), np.zeros(requests, np.int32)
    demand = SimpleNamespace(
        ids=ids, start=np.arange(requests), full=one, tail=no, limit=one, grown=none, grown_tail=no, fresh=none,
        grows=False, arrival=np.zeros(requests),
    )  # fmt: skip
    context = Context(int(ids.max()) + 1, capacity, None, demand)
    engine = Pool(context, demand, policy(name, context))
    start = time.perf_counter()
    engine.advance(requests)
    seconds = time.perf_counter() - start
    engine.close()
    return int(engine.hits.sum()), seconds


def rival(folder: str, name: str, requests: int) -> tuple[int | None, float]:
    """The rival's hits and seconds."""
    if not RIVAL.exists():
        return None, float("nan")
    path, capacity = os.path.join(folder, "ids.bin"), str(_capacity(requests))
    command = [str(RIVAL), "-c", SIMULATE, path, NAMES[name], capacity, str(requests)]
    hits, seconds = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    )
    return hits, seconds


def _capacity(requests: int) -> int:
    return round(requests * SHARES[0] * SHARES[1])


if __name__ == "__main__":
    asked_for = [int(text) for text in sys.argv[1:]]
    requests, rounds = (*asked_for, *(REQUESTS, 3)[len(asked_for) :])
    with tempfile.TemporaryDirectory() as folder:
        if RIVAL.exists():
            show(claims(folder, requests, rounds))
        else:
            for name, (hits, _, seconds, _) in measured(folder, requests, rounds).items():
                print(f"{name:8}{requests / seconds / 1e6:8.2f} M requests/s{hits:15,} hits")
