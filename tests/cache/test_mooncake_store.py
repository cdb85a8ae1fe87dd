"""The twin of Mooncake's master evicts what a real one has evicted: vectors of tests/clients/mooncake_store.py."""

import json
import random

import numpy as np
import pytest

from kvtrace.cache.simulation import Setting
from kvtrace.cache.tiers import Tier
from kvtrace.serving.instances import simulate_instances
from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.trace import Trace
from tests.conftest import ROOT
from tests.reference.mooncake_store import Store

VECTORS = json.loads((ROOT / "tests/vectors/mooncake_store.json").read_text())
PASS_MS = 5.0  # a put during a pass may find no room yet
UNDER_WAY = 4  # puts that can end while a pass counts


def store_case(rng):
    """A case of tests/clients/mooncake_store.py: bursts of reads and puts, some with a pin, and waits after them."""
    pins = rng.choice([[], [], ["soft"] * 3, ["hard"], ["soft", "hard"]])
    names, operations = [], []
    for _ in range(rng.randrange(12, 22)):
        operations += [[rng.choice(["get", "exists"]), rng.choice(names)] for _ in range(rng.randrange(12)) if names]
        for _ in range(rng.randrange(5, 36)):
            names.append(f"o{len(names)}")
            operations.append([rng.choice([*["put"] * 5, *pins]), names[-1]])
        operations.append(["wait", 60])
    return {
        "objects": 256, "lease_ms": rng.choice([100, 300, 1000]), "high": rng.choice([0.7, 0.9, 0.95]),
        "ratio": rng.choice([0.02, 0.05, 0.2]), "soft_ms": rng.choice([50, 100_000]), "operations": operations,
    }  # fmt: skip


def require_equal(case, done, name):
    """The twin answers as the master did; how many objects it evicted. When passes ran is the master's."""
    store, evicted, last, gone = Store(case), 0, -PASS_MS, set()
    for at, kind, what, *answer in done:
        if kind == "evict":
            base = len(store.deadline) - len(store.hard)
            assert base <= answer[0] <= base + UNDER_WAY, (name, at)
            victims = store.evict(at + 1, what, answer[0])
            assert len(victims) == answer[1], (name, at)
            evicted, last, gone = evicted + len(victims), at, gone | set(victims)
        elif kind == "wait":
            assert gone == set(what), (name, at)
            gone = set()
        elif kind in ("get", "exists"):
            assert store.read(at, what) == answer[0], (name, at)
        elif at - last > PASS_MS or answer[0] == 0:
            assert store.put(at, what, kind) == (answer[0] == 0), (name, at)
    return evicted


@pytest.mark.parametrize("number", range(len(VECTORS["vectors"])))
def test_the_twin_evicts_what_the_master_has_evicted(number):
    vector = VECTORS["vectors"][number]
    assert require_equal(vector["case"], vector["done"], number) > 0


@pytest.mark.parametrize("seed", range(12))
def test_a_pool_of_policy_mooncake_has_the_hits_of_the_twin(seed):
    rng = random.Random(seed)
    lease_s, size, paths, prompts, now, times = rng.choice([0, 2, 60]), 60, [[]], [], 0, []
    for _ in range(120):
        path = rng.choice(paths[-12:])
        path = [*path[: rng.randint(0, len(path))], *(rng.randrange(10**6) for _ in range(rng.randint(1, 4)))][:5]
        paths.append(path)
        prompts.append(path)
        now += rng.choice([200, 1000, 5000])
        times.append(now)
    names = {}
    blocks = [[names.setdefault(tuple(path[: i + 1]), len(names)) for i in range(len(path))] for path in prompts]
    columns = replace_columns(toy(*(" ".join(map(str, one)) for one in blocks)), timestamp=np.array(times, dtype=float))
    trace = Trace.from_columns(columns, block_size=1)
    tiers = (Tier("hbm", 0), Tier("pool", size, scope="cluster", policy=f"mooncake:{lease_s}s"))
    done = simulate_instances(trace, 1, setting=Setting(0), tiers=tiers, schedule="serial")
    store = Store({"objects": size, "lease_ms": lease_s * 1000, "high": 0.9, "ratio": 0.05, "soft_ms": 0})
    expected = []
    for at, path in zip(times, blocks, strict=True):
        while len(store.deadline) / size > store.high and store.evict(at):
            pass
        hit = 0
        for i, name in enumerate(path):
            hit += hit == i and name in store.deadline
            if not store.read(at + i * 1e-6, name):
                store.put(at + i * 1e-6, name)
        expected.append(hit)
    assert done.hit_blocks.tolist() == expected and sum(expected) > 0
