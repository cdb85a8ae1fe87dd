"""vLLM: its own Scheduler with its own OffloadingConnector, under a clock of ours; run in vLLM's environment as CASES.

The cases are those of vllm_scheduler.py with `tier`: capacity (blocks), fetch_s and store_s (seconds of a block), and
policy (lru or arc). It prints what vllm_scheduler.py prints, with the blocks that each request loaded from the tier
before its first step.

Scheduler, connector (both of its sides), lower tier and its policy are vLLM's, unmodified. Ours are the clock, the loop
of its EngineCore, the order of its GPU model runner (flushed stores, forward pass, loads, a look at ended transfers),
and the link: a CPUOffloadingWorker's two streams, each of which runs its transfers one after another, and begins none
before the forward passes that were launched have ended.
"""

import json
import sys
from collections import deque

import vllm_scheduler as plain
from vllm import __version__
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.kv_offload.base import TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
from vllm.v1.kv_offload.factory import OffloadingSpecFactory
from vllm.v1.outputs import KVConnectorOutput

POLL_S = 0.001  # EngineCore._process_engine_step sleeps so long when no model was executed
MOST_EMPTY = 100_000  # steps without tokens in a row, after which a case is stuck


class InOrder(dict):
    """A set that keeps the order in which requests ended; the order of a set of names differs from run to run."""

    def add(self, name):
        self[name] = None


class Link:
    """The transfers of a CPUOffloadingWorker: two queues, of stores and of loads."""

    def __init__(self, server, tier):
        self.server, self.fetch_s, self.store_s = server, tier["fetch_s"], tier["store_s"]
        self.stores, self.loads = deque(), deque()
        self.store_free = self.load_free = 0.0
        self.ends = {}

    def submit_store(self, job, source, target):
        begin = max(self.store_free, self.server.gpu, self.server.cpu)
        self.ends[job] = self.store_free = begin + len(source.block_ids) * self.store_s
        self.stores.append(job)
        return True

    def submit_load(self, job, source, target, expedited=False):
        assert not expedited
        begin = max(self.load_free, self.server.gpu, self.server.cpu)
        self.ends[job] = self.load_free = begin + len(target.block_ids) * self.fetch_s
        self.loads.append(job)
        return True

    def wait(self, jobs):
        for job in jobs:
            if job in self.ends:
                self.server.cpu = max(self.server.cpu, self.ends[job])

    def get_finished(self):
        done = []
        for queue in (self.stores, self.loads):
            while queue and self.ends[queue[0]] <= self.server.cpu:
                job = queue.popleft()
                del self.ends[job]
                done.append(TransferResult(job_id=job, success=True))
        return done


def with_connector(config, case):
    """VllmConfig's parts that the connector reads, with vLLM's defaults."""
    bytes_of_tier = case["tier"]["capacity"] * CPUOffloadingSpec.BLOCK_SIZE_ALIGNMENT  # a block of ours is smaller
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="OffloadingConnector", kv_role="kv_both",
        kv_connector_extra_config={
            "cpu_bytes_to_use": bytes_of_tier, "eviction_policy": case["tier"].get("policy", "lru"),
        },
    )  # fmt: skip
    for name, value in {
        "rank": 0, "world_size": 1, "tensor_parallel_size": 1, "data_parallel_rank_local": None,
        "distributed_executor_backend": "uni", "nnodes_within_dp": 1,
    }.items():  # fmt: skip
        setattr(config.parallel_config, name, value)
    config.cache_config.cache_dtype = "auto"
    for name in ("kv_cache_layout", "prefix_cache_retention_interval", "prefix_match_unit", "hash_block_size"):
        setattr(config.cache_config, name, None)
    config.model_config.use_mla = False
    config.model_config.dtype = "float16"
    config.model_config.model = "none"
    config.model_config.get_total_num_kv_heads = lambda: 1
    config.attention_config = plain.types.SimpleNamespace(hisparse_config=None)
    return config


class Server(plain.Server):
    """A Scheduler with its connector, and the worker's side of the connector on a link of ours."""

    def __init__(self, case):
        settings_of = plain.settings_of
        made = []

        def settings_with_connector(one):
            made.append(with_connector(settings_of(one), one))
            return made[0]

        plain.settings_of = settings_with_connector
        try:
            super().__init__(case)
        finally:
            plain.settings_of = settings_of
        cache_config = self.scheduler.kv_cache_config
        spec = OffloadingSpecFactory.create_spec(build_offloading_config(made[0], cache_config))
        assert spec.num_chunks == case["tier"]["capacity"]
        self.worker = OffloadingConnectorWorker(spec, made[0], cache_config)
        self.worker.worker = self.link = Link(self, case["tier"])
        self.scheduler.finished_req_ids = InOrder()
        self.cpu = self.gpu = 0.0  # the time of the worker's process; when all launched passes have ended
        self.idle_since = self.woke = -1.0
        self.polls = self.empty = 0
        self.loaded = [0] * len(self.rows)
        self.queue = []  # (output, parts, when it is known, what the worker says of transfers), the oldest first

    def plan(self):
        planned = super().plan()
        self.scheduler.finished_req_ids = InOrder()
        for job in planned[0].kv_connector_metadata.load_jobs.values():
            row = int(job.req_id)
            if self.begin[row] is None:
                self.loaded[row] = len(job.dst_spec.block_ids)
        return planned

    def execute(self, output, seconds, parts, preempted):
        """The worker runs a step; its output is known later."""
        meta = output.kv_connector_metadata
        self.cpu = max(self.cpu, self.now)
        self.worker.handle_preemptions(meta)
        if parts or preempted:
            self.record_at(max(self.cpu, self.gpu), parts, preempted)
        if parts:
            self.gpu = max(self.cpu, self.gpu) + seconds
        self.worker.start_kv_transfers(meta)
        self.worker.prepare_store_kv(meta)
        _, received = self.worker.get_finished(set())
        told = KVConnectorOutput(
            finished_recving=received or None, kv_connector_worker_meta=self.worker.build_connector_worker_meta()
        )
        self.queue.append((output, parts, self.gpu if parts else self.cpu, told))

    def learn(self):
        """The oldest step's output becomes known."""
        output, parts, at, told = self.queue.pop(0)
        self.now = max(self.now, at)
        update = self.scheduler.update_from_output

        def with_transfers(scheduled, result):
            result.kv_connector_output = told
            return update(scheduled, result)

        self.scheduler.update_from_output = with_transfers
        self.finish(output, parts)
        del self.scheduler.update_from_output

    def sleep(self):
        """EngineCore waits before it looks again."""
        if self.now != self.woke:
            self.idle_since, self.polls = self.now, 0
        self.polls += 1
        self.now = self.woke = self.idle_since + self.polls * POLL_S

    def run(self):
        while self.turn():
            pass

    def turn(self):
        """A turn of EngineCore's loop, with step or step_with_batch_queue; False if nothing is left."""
        self.arrive()
        executed = False
        if self.scheduler.has_requests():
            output, seconds, parts, preempted = self.plan()
            self.execute(output, seconds, parts, preempted)
            executed = bool(parts)
            self.empty = 0 if executed else self.empty + 1
            if self.empty > MOST_EMPTY:
                raise RuntimeError("stuck: a request does not fit")
            depth = 2 if self.case["settings"].get("async") else 1
            if len(self.queue) < depth and (executed or self.scheduler.has_requests()):
                if not executed and self.scheduler.has_requests():
                    self.sleep()
                return True
        elif not self.queue:
            if self.next == len(self.rows):
                return False
            self.now = max(self.now, self.rows[self.next]["arrival"])
            return True
        self.learn()
        if not executed and self.scheduler.has_requests():
            self.sleep()
        return True


def serve(case):
    """The steps of a case, and the times of each request."""
    server = Server(case)
    server.run()
    columns = (server.cached, server.begin, server.first, server.end, server.preempted, server.loaded)
    return {
        "version": __version__, "steps": server.steps, "requests": list(map(list, zip(*columns, strict=True)))
    }  # fmt: skip


if __name__ == "__main__":
    init_none_hash(sha256)
    with open(sys.argv[1]) as stream:
        for line in stream:
            print(json.dumps(serve(json.loads(line))), flush=True)
