"""Requests hit in our model of LMCache's store what they hit in LMCache's own, request by request.

KVTRACE_CLIENTS names a folder of environments (see test_load.py); `lmcache` needs `pip install --no-deps lmcache` and
`pip install torch numpy numba sortedcontainers pyyaml prometheus_client msgspec psutil pyzmq opentelemetry-sdk
cachetools nvtx`. `KVTRACE_CLIENTS=... python -m tests.clients.test_lmcache_cache` writes the vectors anew.
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from kvtrace.cache.simulation import Setting
from kvtrace.cache.tiers import Tier
from kvtrace.serving.instances import simulate_instances
from kvtrace.trace.building import toy
from tests.cache.test_engine_lmcache import POLICIES, VECTORS, drawn, made, serve, vector_trace

PYTHON = Path(os.environ.get("KVTRACE_CLIENTS", "no-such-folder")) / "lmcache/bin/python"
needs_lmcache = pytest.mark.skipif(not PYTHON.exists(), reason="no environment lmcache in KVTRACE_CLIENTS")
KINDS = [*((policy, "off") for policy in POLICIES), ("lru", "on")]

DRAWN = {  # name -> prompts of full chunks
    "a new root goes before its children": ["0 1 2", "3", "0 1 2"],
    "a hit makes the root the most recent": ["0 1 2", "0 1 2", "3", "0 1 2"],
    "chunks behind a gap are stored twice": ["0 1 2", "3 4", "0 1 2", "3 4", "0 1 2"],
    "a prompt exceeds the store": ["0 1 2 3 4", "0 1 2 3 4", "5", "0 1 2"],
    "what was hit goes for the rest": ["0 1", "0 1 2", "0 1 2", "0 3 4"],
    "each order takes another one": ["0", "1", "2", "2", "1", "0", "3", "4", "0", "1", "2", "3"],
}


def wanted(vector, policy, watermark, capacity):
    """The case in the words of lmcache_cache.py."""
    requests = [
        {"chunks": path, "arrival": when} for path, when in zip(vector["prompts"], vector["timestamp"], strict=True)
    ]
    return {"capacity": capacity, "policy": policy, "watermark": watermark == "on", "requests": requests}


def served(cases, folder):
    """What LMCache's own code says of each case."""
    path = folder / "cases.jsonl"
    path.write_text("".join(json.dumps(case) + "\n" for case in cases))
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [PYTHON, Path(__file__).parent / "lmcache_cache.py", path]
    done = subprocess.run(command, capture_output=True, text=True, env=plain)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@needs_lmcache
def test_random_traces_hit_as_in_lmcache(tmp_path):
    seed = int(np.random.default_rng().integers(1 << 32))
    rng = np.random.default_rng(seed)
    tried = []
    for number in range(10):
        vector = made(str(number), rng, rows=60)
        tried += [(vector, (*kind, int(rng.integers(1, 60)))) for kind in KINDS]
    real = served([wanted(vector, *case) for vector, case in tried], tmp_path)
    for (vector, (policy, watermark, capacity)), found in zip(tried, real, strict=True):
        ours = serve(vector_trace(vector), capacity, policy, watermark).hits.tolist()
        assert ours == found["hits"], f"seed {seed}: {policy}, watermark {watermark}, {capacity} chunks"


@needs_lmcache
def test_the_vectors_are_what_lmcache_says(tmp_path):
    cases = [(vector, case) for vector in VECTORS["vectors"] for case in vector["cases"]]
    asked = [wanted(v, *(case[name] for name in ("policy", "watermark", "capacity"))) for v, case in cases]
    for (_, case), real in zip(cases, served(asked, tmp_path), strict=True):
        assert (case["hits"], VECTORS["version"]) == (real["hits"], real["version"])


def pooled(rng):
    """A case of instances with a remote store that they share, which has room for all that is stored."""
    count, rows, said = int(rng.integers(1, 4)), [], [[]]
    while len(rows) < 50:
        path = said[int(rng.integers(len(said)))]
        path = [*path[: int(rng.integers(len(path) + 1))], *rng.integers(10**6, size=int(rng.integers(1, 4))).tolist()][
            :6
        ]
        said.append(path)
        rows.append({"chunks": path, "instance": int(rng.integers(count)), "arrival": 0})
    return {
        "capacity": int(rng.choice([16, 24, 40])),
        "policy": "lru",
        "watermark": False,
        "pool": 100_000,
        "requests": rows,
    }


@needs_lmcache
def test_instances_with_a_remote_store_hit_what_a_shared_pool_has(tmp_path):
    seed = int(np.random.default_rng().integers(1 << 32))
    cases = [pooled(np.random.default_rng(seed + number)) for number in range(4)]
    for case, real in zip(cases, served(cases, tmp_path), strict=True):
        names = {}
        prompts = [
            " ".join(
                str(names.setdefault(tuple(row["chunks"][: i + 1]), len(names))) for i in range(len(row["chunks"]))
            )
            for row in case["requests"]
        ]
        tiers = (Tier("dram", case["capacity"]), Tier("pool", 100_000, scope="cluster", block_tokens=256))
        setting = Setting(case["capacity"])
        done = simulate_instances(toy(*prompts, block_size=256), 3, setting=setting, schedule="serial", tiers=tiers)
        hits, local = np.array(real["hits"]).T
        assert done.hit_blocks.tolist() == hits.tolist(), f"seed {seed}"
        assert (local <= hits).all() and local.sum() < hits.sum()


def make_vectors(folder):
    """Every order and the watermark, on drawn traces and on made ones, with what LMCache says of each."""
    rng = np.random.default_rng(5)
    vectors = [drawn(name, prompts, gap_ms=700) for name, prompts in DRAWN.items()]
    vectors += [made(f"conversations {number}", rng, rows=50) for number in (1, 2)]
    version = None
    for vector in vectors:
        sizes = range(1, 6) if vector["name"] in DRAWN else (1, 7, 15, 30, 60)
        cases = [(*kind, size) for kind in KINDS for size in sizes]
        real = served([wanted(vector, *case) for case in cases], folder)
        vector["cases"] = [
            dict(zip(("policy", "watermark", "capacity"), case, strict=True)) | {"hits": found["hits"]}
            for case, found in zip(cases, real, strict=True)
        ]
        version = real[0]["version"]
    return {
        "engine": "lmcache",
        "version": version,
        "store": "LocalCPUBackend; watermark: L1Manager",
        "vectors": vectors,
    }


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        found = make_vectors(Path(name))
    text = json.dumps(found).replace('{"name"', '\n{"name"').replace('{"policy"', '\n {"policy"')
    (Path(__file__).parent.parent / "vectors/engine_lmcache.json").write_text(text + "\n")
