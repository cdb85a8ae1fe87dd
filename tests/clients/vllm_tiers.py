"""vLLM: its own TieringOffloadingManagers, of several instances that share a tier; run in vLLM's environment as CASES.

The cases are those of vllm_offloading.py with `pool`: capacity (blocks), fetch_s and store_s (seconds of a block) and
latency_s (of a transfer); each request has `instance`. It prints for each instance what vllm_offloading.py prints (the
rows are those of the instance, in order), with two more columns: loaded blocks that came from the pool, and
what the pool did: blocks read and written by each instance.

Scheduler, connector, TieringOffloadingManager, its primary tier and policies, and the AsyncLookupManager of vLLM's file
and object tiers are vLLM's, unmodified. Ours is the pool behind its SecondaryTierManager: blocks in order of their last
use, two links (in and out) that serve one transfer after another, in the order in which instances ask for them.
Of the instances the one that is furthest behind takes the next turn of its EngineCore's loop. The answer to a lookup is
there in the next turn.
"""

import json
import os
import sys
from heapq import heappop, heappush

import vllm_offloading as offloading
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.kv_offload.base import LookupResult, Medium, RequestOffloadingContext
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager, LookupPhase
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager
from vllm.v1.metrics.cache_hit_source import CacheHitSource

offloading.MOST_EMPTY = 3000  # turns without a step, after which a case is stuck
STARTS, ENDS = 1, 0  # of events at the same time, ends come first


class Pool:
    """The shared blocks, and the two links to them. What an instance asks for at a time is done in order of time."""

    def __init__(self, case):
        self.case, self.blocks, self.writing = case, {}, set()
        self.events, self.count, self.free = [], 0, {True: 0.0, False: 0.0}

    def ask(self, at, tier, job):
        self.count += 1
        heappush(self.events, (at, STARTS, tier.number, self.count, tier, job))

    def drain(self, until):
        """Begin and end the transfers up to a time."""
        while self.events and self.events[0][0] <= until:
            at, kind, *_, tier, job = heappop(self.events)
            (self.end if kind == ENDS else self.begin)(at, tier, job)

    def begin(self, at, tier, job):
        keys = job.keys
        if job.is_promotion:
            keys = keys[: next((i for i, key in enumerate(keys) if key not in self.blocks), len(keys))]
            self.use(keys)
        else:
            keys = sorted(keys, key=job.req_context.get_offload_key_position)
            keys = [key for key in keys if key not in self.blocks and key not in self.writing]
            self.writing.update(keys)
        end = at
        if keys:
            seconds = self.case["latency_s"] + len(keys) * self.case["fetch_s" if job.is_promotion else "store_s"]
            end = max(at, self.free[job.is_promotion]) + seconds
            self.free[job.is_promotion] = end
        job.moved = keys
        tier.moved[not job.is_promotion] += len(keys)
        self.count += 1
        heappush(self.events, (end, ENDS, tier.number, self.count, tier, job))

    def end(self, at, tier, job):
        if not job.is_promotion:
            self.writing.difference_update(job.moved)
            self.use(job.moved)
            while len(self.blocks) > self.case["capacity"]:
                del self.blocks[next(iter(self.blocks))]
        tier.ended.append(job)

    def use(self, keys):
        """Blocks are the last used ones, tails before heads."""
        for key in reversed(keys):
            self.blocks.pop(key, None)
            self.blocks[key] = None


class Lookups(AsyncLookupManager):
    """vLLM's thread that asks whether blocks exist."""

    def __init__(self, pool):
        self.pool = pool
        super().__init__("pool")

    def batch_lookup(self, keys, req_context):
        return [key in self.pool.blocks for key in keys]

    def answer(self):
        """Let the thread answer what was asked in this step; the answers are read in the next one."""
        self.flush()
        if any(state.phase is LookupPhase.IN_FLIGHT for state in self._lookup_state.values()):
            while self._pending_results.empty():
                pass


class PoolTier(SecondaryTierManager):
    """An instance's side of the pool."""

    medium = Medium.STORAGE

    def attach(self, server, pool, number):
        self.server, self.pool, self.number = server, pool, number
        self.lookups, self.ended, self.moved = Lookups(pool), [], [0, 0]

    def on_new_request(self, req_context):
        return RequestOffloadingContext()

    def lookup(self, key, req_context):
        found = self.lookups.lookup(key, req_context)
        return LookupResult.RETRY if found is None else LookupResult.HIT if found else LookupResult.MISS

    def submit_store(self, job):
        self.pool.ask(self.server.now, self, Asked(job))

    def submit_load(self, job):
        self.pool.ask(self.server.now, self, Asked(job))

    def get_finished_jobs(self):
        self.pool.drain(self.server.now)
        ended, self.ended = self.ended, []
        results = []
        for job in ended:
            success = not job.is_promotion or len(job.moved) == len(job.keys)
            if not success:
                self.lookups.mark_miss(job.keys[len(job.moved) :])
            results.append(JobResult(job.job_id, success, None if success else tuple(job.moved) or None))
        return results

    def on_request_finished(self, req_context):
        self.lookups.cleanup(req_context.req_id)

    def on_schedule_end(self, context):
        self.pool.drain(self.server.now)
        self.lookups.answer()

    def drain_jobs(self):
        raise NotImplementedError

    def shutdown(self):
        self.lookups.shutdown()


class Asked:
    """A TransferJob of vLLM, and the blocks of it that are moved."""

    def __init__(self, job):
        self.job_id, self.is_promotion, self.req_context = job.job_id, job.is_promotion, job.req_context
        self.keys, self.moved = list(job.keys), []


class Server(offloading.Server):
    """An instance with a primary tier, and its side of the pool."""

    def __init__(self, case, pool, number):
        with_connector = offloading.with_connector

        def with_tiers(config, one):
            config = with_connector(config, one)
            config.kv_transfer_config.engine_id = f"kvtrace-{os.getpid()}-{number}"
            config.kv_transfer_config.kv_connector_extra_config |= {
                "spec_name": "TieringOffloadingSpec",
                "secondary_tiers": [{"type": "PoolTier", "module_path": "__main__"}],
            }
            return config

        offloading.with_connector = with_tiers
        try:
            super().__init__(case)
        finally:
            offloading.with_connector = with_connector
        self.manager = self.scheduler.connector.connector_scheduler.manager
        (self.tier,) = self.manager.secondary_tiers
        self.tier.attach(self, pool, number)
        self.from_pool = [0] * len(self.rows)

    def plan(self):
        planned = super().plan()
        connector = self.scheduler.connector.connector_scheduler
        for job in planned[0].kv_connector_metadata.load_jobs.values():
            row = int(job.req_id)
            if self.begin[row] is None:
                status = connector._req_status[job.req_id]
                sources = [self.manager.get_load_source(key, status.req_context) for *_, key in status.load_key_ranges]
                self.from_pool[row] = sources.count(CacheHitSource.DISK)
        return planned


def serve(case):
    """The steps of each instance, and the times of its requests."""
    pool = Pool(case["pool"])
    count = 1 + max(row["instance"] for row in case["requests"])
    servers = [
        Server(case | {"requests": [row for row in case["requests"] if row["instance"] == number]}, pool, number)
        for number in range(count)
    ]
    going = set(range(count))
    while going:
        first = min(going, key=lambda number: (servers[number].now, number))
        try:
            if not servers[first].turn():
                going.remove(first)
        except RuntimeError:  # vLLM promotes blocks for ever: each one evicts another one that the request waits for
            for server in servers:
                server.manager.shutdown()
            return {"version": offloading.__version__, "instances": None}
    instances = []
    for server in servers:
        columns = (
            server.cached, server.begin, server.first, server.end, server.preempted, server.loaded, server.from_pool
        )  # fmt: skip
        instances.append({
            "steps": server.steps, "requests": list(map(list, zip(*columns, strict=True))), "moved": server.tier.moved,
        })  # fmt: skip
        server.manager.shutdown()
    return {"version": offloading.__version__, "instances": instances}


if __name__ == "__main__":
    init_none_hash(sha256)
    with open(sys.argv[1]) as stream:
        for line in stream:
            print(json.dumps(serve(json.loads(line))), flush=True)
