"""LMCache: its own engine and stores serve requests; run in LMCache's environment as CASES (a JSON file).

A case says capacity (chunks), policy, watermark and requests: chunks (numbers) and arrival (ms). Prints, a case a line,
each request's hit chunks. With `pool` (chunks), requests have `instance`: each has an engine with its LocalCPUBackend,
and a RemoteBackend to one store that they share, the LRU of LMCache's MockConnector without its waiting; of each
request it prints the hits in the local store too.

Without the watermark the engine, its backends, orders and allocator are LMCache's, unmodified, and a request makes the
calls of LMCache's adapter for vLLM: look up and pin, load, unpin, store what was not hit. With it the L1 manager, its
memory, order and eviction loop are LMCache's, and a request makes the calls of its lookup and transfer modules. Ours
are the schedule, each request ending before the next, the clock, and the GPU that is not there.
"""

import importlib.abc
import importlib.machinery
import importlib.metadata
import json
import os
import sys
import time
import types
from unittest.mock import MagicMock

os.environ |= {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_LOG_LEVEL": "ERROR", "PYTHONHASHSEED": "0"}
ABSENT = {  # what LMCache imports and this does not need
    "aiofile", "aiofiles", "aiohttp", "awscrt", "blake3", "cpuinfo", "cryptography", "fastapi", "google", "grpc",
    "httpx", "huggingface_hub", "pydantic", "redis", "requests", "safetensors", "starlette", "transformers", "uvicorn",
}  # fmt: skip


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A dummy for each package that is not installed."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ABSENT:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Dummy(spec.name)

    def exec_module(self, module):
        pass


class Dummy(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


sys.meta_path.append(Absent())
import torch  # noqa: E402
from lmcache.v1.cache_engine import LMCacheEngine  # noqa: E402
from lmcache.v1.config import LMCacheEngineConfig  # noqa: E402
from lmcache.v1.metadata import LMCacheMetadata  # noqa: E402
from lmcache.v1.token_database import ChunkedTokenDatabase  # noqa: E402

TOKENS = 2  # of a chunk
BYTES = 4096  # of a chunk: what the allocators align to


class NoGpu:
    """Moves nothing."""

    def batched_from_gpu(self, *args, **kwargs):
        pass

    def batched_to_gpu(self, *args, **kwargs):
        pass


class Engine:
    """LMCacheEngine over a LocalCPUBackend of so many chunks."""

    def __init__(self, case, **options):
        config = LMCacheEngineConfig.from_defaults(
            chunk_size=TOKENS, local_cpu=True, cache_policy=case["policy"].upper(),
            max_local_cpu_size=(case["capacity"] * BYTES + BYTES / 2) / 1024**3, **options,
        )  # fmt: skip
        metadata = LMCacheMetadata(
            model_name="model", world_size=1, local_world_size=1, worker_id=0, local_worker_id=0, kv_dtype=torch.uint8,
            kv_shape=(1, 1, TOKENS, 1, BYTES // TOKENS), chunk_size=TOKENS,
        )  # fmt: skip
        self.engine = LMCacheEngine(config, metadata, ChunkedTokenDatabase(config, metadata), NoGpu(), None, None)
        self.engine.post_init()
        assert self.engine.storage_manager.local_cpu_backend.calculate_chunk_budget() == case["capacity"]
        self.served = 0

    def serve(self, chunks, arrival):
        self.served += 1
        name, tokens = str(self.served), [chunk * TOKENS + i for chunk in chunks for i in range(TOKENS)]
        hit = self.engine.lookup(tokens, lookup_id=name, pin=True)
        if hit:
            mask = self.engine.retrieve(tokens[:hit], req_id=name)
            assert int(mask.sum()) == hit
        self.engine.lookup_unpin(name)
        if hit < len(tokens):
            mask = torch.ones(len(tokens), dtype=torch.bool)
            mask[:hit] = False
            self.engine.store(tokens, mask=mask, req_id=name)
        return hit // TOKENS

    def close(self):
        self.engine.close()


REMOTE = "mock://1/?peeking_latency=0&read_throughput=100000&write_throughput=100000"


class Shared:
    """Engines with a remote store that they share."""

    def __init__(self, case):
        count = 1 + max(request["instance"] for request in case["requests"])
        self.engines = [Engine(case, remote_url=REMOTE, remote_serde="naive") for _ in range(count)]
        connectors = [self.remote(engine).connection for engine in self.engines]
        for i, connector in enumerate(connectors):
            while hasattr(connector, "_connector"):  # what counts its calls
                connector = connector._connector
            if i == 0:
                store = connector.lru_store
                store.capacity = case["pool"] * BYTES
            connector.lru_store = store

    def remote(self, engine):
        return engine.engine.storage_manager.storage_backends["RemoteBackend"]

    def serve(self, chunks, instance):
        engine = self.engines[instance]
        tokens = [chunk * TOKENS + i for chunk in chunks for i in range(TOKENS)]
        local = engine.engine.lookup(tokens, search_range=["LocalCPUBackend"]) // TOKENS
        hit = engine.serve(chunks, 0)
        while self.remote(engine).put_tasks:
            time.sleep(0.0005)
        return [hit, local]


class Server:
    """The L1 manager of the multi-process server, so many chunks large, and its eviction controller."""

    def __init__(self, case):
        from lmcache.v1.distributed.api import MemoryLayoutDesc
        from lmcache.v1.distributed.config import EvictionConfig, L1ManagerConfig, L1MemoryManagerConfig
        from lmcache.v1.distributed.l1_manager import L1Manager
        from lmcache.v1.distributed.storage_controllers import eviction_controller

        memory = L1MemoryManagerConfig(case["capacity"] * BYTES, use_lazy=False, shm_name="")
        self.manager = L1Manager(L1ManagerConfig(memory))
        self.controller = eviction_controller.L1EvictionController(self.manager, EvictionConfig("LRU"))
        self.layout = MemoryLayoutDesc([torch.Size([BYTES])], [torch.uint8])
        self.paths, self.seconds = {}, 0
        eviction_controller.time = types.SimpleNamespace(sleep=self.wait, monotonic=lambda: 0.0)

    def wait(self, seconds):
        """The loop sleeps before it looks: once it has slept, this turn is its last."""
        self.controller._stop_flag.set()

    def tick(self):
        self.controller._stop_flag.clear()
        self.controller.eviction_loop()

    def keys(self, chunks):
        """One key a prefix."""
        from lmcache.v1.distributed.api import ObjectKey

        found = []
        for i in range(len(chunks)):
            number = self.paths.setdefault(tuple(chunks[: i + 1]), len(self.paths))
            found.append(ObjectKey(number.to_bytes(8, "little"), "model", 0))
        return found

    def serve(self, chunks, arrival):
        while self.seconds < arrival // 1000:
            self.seconds += 1
            self.tick()
        keys = self.keys(chunks)
        locked = self.manager.reserve_read(keys)
        found = [locked[key][1] is not None for key in keys]
        hit = found.index(False) if False in found else len(keys)
        self.manager.finish_read([key for key, here in zip(keys[hit:], found[hit:], strict=True) if here])
        self.manager.touch_keys(keys[:hit])
        self.manager.finish_read(keys[:hit])
        if keys[hit:]:
            reserved = self.manager.reserve_write(keys[hit:], [False] * len(keys[hit:]), self.layout)
            self.manager.finish_write([key for key, (_, memory) in reserved.items() if memory is not None])
        self.manager.touch_keys(keys)
        return hit

    def close(self):
        assert self.manager.memcheck()
        self.manager.close()


def serve(case):
    """Each request's hit chunks."""
    if "pool" in case:
        shared = Shared(case)
        hits = [shared.serve(request["chunks"], request["instance"]) for request in case["requests"]]
        return {"hits": hits, "version": importlib.metadata.version("lmcache")}
    server = (Server if case["watermark"] else Engine)(case)
    hits = [server.serve(request["chunks"], request["arrival"]) for request in case["requests"]]
    server.close()
    return {"hits": hits, "version": importlib.metadata.version("lmcache")}


if __name__ == "__main__":
    with open(sys.argv[1]) as stream:
        for line in stream:
            print(json.dumps(serve(json.loads(line))), flush=True)
    os._exit(0)  # LMCache's threads would stay
