"""SGLang: its own Scheduler over HiCache with a storage backend, under a clock of ours; run in SGLang's environment.

A case is one of sglang_hicache_scheduler.py that also has storage, and whose requests have an instance: storage has
capacity (pages), prefetch_threshold (tokens), policy (SGLang's --hicache-storage-prefetch-policy), timeout_base and
timeout_per_ki_token (seconds), retry_interval, retry_attempts, batch (pages in a transfer; SGLang has 128), latency_s
(of a query and of a transfer), and fetch_s and store_s (seconds a token).

SGLang's, unmodified, beside what sglang_hicache_scheduler.py names: HybridCacheController with the functions of its
four storage threads, the prefetches, retries and time limits of UnifiedRadixCache. Ours: threads take turns; a backend,
an LRU of pages that instances share, with two links that serve one transfer after another in the order in which they
are asked for; and of the instances the one that is furthest behind takes the next turn of its event loop. An idle
instance takes turns without time while a retry or pages to be freed are pending, else waits for the next end of a copy,
transfer or time limit. Prints for each instance its steps and for each of its requests what sglang_scheduler.py prints,
the tokens that were loaded from the host, and those of them and of the device that came from storage for it.
"""

import atexit
import json
import sys
import threading
from collections import OrderedDict, deque
from heapq import heappop, heappush
from math import nextafter
from queue import Empty, Queue

import sglang_hicache_scheduler as hosted  # the file beside this one
import torch
from sglang.srt.managers import cache_controller
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage
from sglang.srt.mem_cache.hybrid_cache import hybrid_cache_controller
from sglang.srt.utils import poll_timer

plain = hosted.plain
NEVER = 1e300
here = None  # the server whose turn it is


class Clock:
    def perf_counter(self):
        return here.now


poll_timer.time = Clock()


class Worker:
    """One of SGLang's threads, which goes on only when it is told to."""

    def __init__(self, target, mailbox):
        self.at, self.idle, self.done = 0.0, False, False
        self.go, self.parked = threading.Semaphore(0), threading.Semaphore(0)
        self.target, mailbox.worker = target, self
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.worker = self
        self.thread.start()
        self.parked.acquire()

    def run(self):
        try:
            self.target()
        finally:
            self.done = True
            self.parked.release()

    def park(self):
        self.parked.release()
        self.go.acquire()

    def resume(self, at):
        self.at = at
        self.go.release()
        self.parked.acquire()

    def start(self):
        pass

    def join(self, timeout=None):
        self.thread.join(timeout)

    def is_alive(self):
        return self.thread.is_alive()


class Mailbox:
    """A queue whose reader is a Worker."""

    def __init__(self):
        self.queue, self.worker = deque(), None

    def put(self, item):
        self.queue.append(item)
        if self.worker is not None and self.worker.idle and not self.worker.done:
            self.worker.idle = False
            writer = getattr(threading.current_thread(), "worker", None)
            self.worker.resume(here.now if writer is None else writer.at)

    put_nowait = put

    def get(self, block=True, timeout=None):
        if not self.queue:
            self.worker.idle = True
            self.worker.park()
        if not self.queue:
            raise Empty
        return self.queue.popleft()

    def empty(self):
        return not self.queue

    def qsize(self):
        return len(self.queue)


def start_threads(controller):
    """HiCacheController._start_storage_threads with our threads."""
    for name in ("prefetch_hit_queue", "ack_prefetch_queue", "ack_backup_queue", "host_mem_release_queue"):
        setattr(controller, name, Queue())
    for name in ("prefetch_queue", "backup_queue", "prefetch_buffer", "prefetch_sync_queue"):
        setattr(controller, name, Mailbox())
    controller.prefetch_thread = Worker(controller.prefetch_thread_func, controller.prefetch_queue)
    controller.prefetch_io_aux_thread = Worker(controller.prefetch_io_aux_func, controller.prefetch_buffer)
    controller.prefetch_sync_thread = Worker(controller.prefetch_sync_thread_func, controller.prefetch_sync_queue)
    controller.backup_thread = Worker(controller.backup_thread_func, controller.backup_queue)


cache_controller.HiCacheController._start_storage_threads = start_threads


class Pool:
    """The pages that instances share, and the two links to them."""

    def __init__(self, case):
        self.storage, self.page = case["storage"], case["settings"]["page_size"]
        self.pages, self.free, self.events, self.count = OrderedDict(), {True: 0.0, False: 0.0}, [], 0

    def wait(self, end):
        worker = threading.current_thread().worker
        self.count += 1
        heappush(self.events, (end, self.count, worker))
        worker.park()

    def query(self):
        self.wait(threading.current_thread().worker.at + self.storage["latency_s"])

    def transfer(self, is_load, pages):
        seconds = pages * self.page * self.storage["fetch_s" if is_load else "store_s"]
        begin = max(threading.current_thread().worker.at, self.free[is_load])
        self.free[is_load] = end = begin + (self.storage["latency_s"] + seconds)
        self.wait(end)

    def reach(self, now):
        while self.events and self.events[0][0] <= now:
            end, _, worker = heappop(self.events)
            worker.resume(end)


class Backend(HiCacheStorage):
    """The pool behind SGLang's interface."""

    pool = None

    def __init__(self, config, kwargs):
        pass

    def register_mem_pool_host(self, mem_pool_host):
        self.host = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool, host_pool_name):
        pass

    def batch_exists(self, keys, extra_info=None):
        self.pool.query()
        return next((at for at, key in enumerate(keys) if key not in self.pool.pages), len(keys))

    def batch_get(self, keys, target_locations=None, target_sizes=None):
        self.pool.transfer(True, len(keys))
        there = next((at for at, key in enumerate(keys) if key not in self.pool.pages), len(keys))
        for key in keys[:there]:
            self.pool.pages.move_to_end(key)
        return target_locations[:there] + [None] * (len(keys) - there)

    def batch_set(self, keys, values=None, target_locations=None, target_sizes=None):
        new = sum(key not in self.pool.pages for key in keys)
        if new:
            self.pool.transfer(False, new)
        for key in keys:
            if key not in self.pool.pages and len(self.pool.pages) == self.pool.storage["capacity"]:
                self.pool.pages.popitem(last=False)
            self.pool.pages[key] = None
            self.pool.pages.move_to_end(key)
        return True

    def exists(self, key):
        raise NotImplementedError

    get = set = exists


class Turns:
    """Whose turn it is: that of the instance that is furthest behind."""

    def __init__(self):
        self.going, self.lock = [], threading.Condition()

    def first(self):
        return min(self.going, key=lambda server: (server.now, server.number), default=None)

    def wait(self, server):
        global here
        with self.lock:
            self.lock.notify_all()
            self.lock.wait_for(lambda: self.first() is server)
        here = server

    def leave(self, server):
        with self.lock:
            self.going.remove(server)
            self.lock.notify_all()


class Server(hosted.Server):
    """An instance with its host memory, and its side of the pool."""

    def __init__(self, case, pool, number, turns):
        global here
        here = self
        self.pool, self.number, self.turns = pool, number, turns
        storage = case["storage"]
        cache_controller.STORAGE_BATCH_SIZE = storage["batch"]
        Backend.pool = pool
        extra = {
            "backend_name": "pool", "module_path": Backend.__module__, "class_name": "Backend", "interface_v1": 0,
            "prefetch_threshold": storage["prefetch_threshold"], "prefetch_timeout_base": storage["timeout_base"],
            "prefetch_timeout_per_ki_token": storage["timeout_per_ki_token"],
        }  # fmt: skip
        case["settings"] |= {
            "hicache_storage_backend": "dynamic", "hicache_storage_backend_extra_config": json.dumps(extra),
            "hicache_storage_prefetch_policy": storage["policy"],
            "hicache_storage_prefetch_retry_poll_interval": storage["retry_interval"],
            "hicache_storage_prefetch_retry_max_attempts": storage["retry_attempts"],
        }  # fmt: skip
        self.now = 0.0
        super().__init__(case)
        atexit.unregister(self.tree_cache.shutdown)  # it waits for threads that take no turn then
        self.enable_hicache_storage = True
        self.from_storage = [0] * len(self.rows)
        turns.going.append(self)

    def token(self, req):
        """As before, named by the row of the whole case: equal prompts have different outputs."""
        token = super().token(req)
        return token if token == plain.STOP else token + (self.rows[req.row]["row"] - req.row) * 1_000_000

    def pools(self, capacity):
        plain.runtime_context.get_parallel().override_permanently(tp_rank=0, tp_size=1, pp_size=1)
        super().pools(capacity)
        self.tree_cache.cache_controller.storage_host_pool.pin_memory = False

    def ingest_requests(self, stop_at_pause=False):
        self.turns.wait(self)
        self.pool.reach(self.now)
        return super().ingest_requests(stop_at_pause)

    def run_batch(self, batch, pp_proxy_tensors=None):
        for req, prefix in zip(batch.reqs, batch.prefix_lens or (), strict=False):
            if batch.forward_mode.is_extend() and self.cached[req.row] < 0 and req.storage_hit_start is not None:
                self.from_storage[req.row] = req.fulfilled_storage_hit_len(prefix)
        return super().run_batch(batch, pp_proxy_tensors)

    def copies_until(self):
        """When the copies, transfers and time limits end that are under way."""
        ends, tree = super().copies_until(), self.tree_cache
        if self.is_moving():
            ends += [end for end, *_ in self.pool.events[:1]]
        for request in tree.ongoing_prefetch:
            wait = tree._storage_prefetch_wait.get(request)
            if wait is not None and not wait.expired:
                end = wait.timer.started_at + wait.timeout_s
                while not end - wait.timer.started_at > wait.timeout_s:
                    end = nextafter(end, NEVER)
                ends.append(end)
        return [end for end in ends if end > self.now]

    def is_moving(self):
        """Whether something is under way to or from the storage."""
        tree, controller = self.tree_cache, self.tree_cache.cache_controller
        boxes = (controller.prefetch_queue, controller.backup_queue, controller.prefetch_buffer)
        return tree.ongoing_prefetch or tree.ongoing_backup or not all(box.worker.idle for box in boxes)

    def on_idle(self):
        tree = self.tree_cache
        is_empty = not self.running_batch.reqs and self.chunked_req is None and not self.waiting_queue
        retries = tree.storage_prefetch_retries._pending and self.waiting_queue
        is_due = self.is_moving() and self.pool.events and self.pool.events[0][0] <= self.now
        if is_due or retries or tree.cache_controller.host_mem_release_queue.qsize():
            if is_empty:
                self.new_token_ratio_tracker.reset()
        elif not is_empty and not self.retried:
            self.retried = True
        else:
            super().on_idle()

    def check(self):
        """All that was lent has come back."""
        self.pool.reach(NEVER)
        tree, controller = self.tree_cache, self.tree_cache.cache_controller
        for _ in range(3):
            tree.check_hicache_events()
        assert not (tree.ongoing_prefetch or tree.ongoing_backup or tree.storage_prefetch_retries._pending)
        assert controller.prefetch_tokens_occupied == 0 and tree.protected_size() == 0
        free = self.token_to_kv_pool_allocator.available_size()
        assert tree.evictable_size() + free == self.case["capacity"]
        controller._stop_storage_threads()


def loop(server, failed):
    try:
        with torch.inference_mode():
            server.event_loop_overlap() if server.enable_overlap else server.event_loop_normal()
    except BaseException as error:  # the other instances must not wait for this one
        failed.append(error)
    server.turns.leave(server)


def serve(case):
    """The steps of each instance, and the times of its requests."""
    global here
    pool, turns, failed = Pool(case), Turns(), []
    count = 1 + max(row["instance"] for row in case["requests"])
    servers = []
    for number, row in enumerate(case["requests"]):
        row["row"] = number
    for number in range(count):
        rows = [row for row in case["requests"] if row["instance"] == number]
        servers.append(Server(case | {"requests": rows, "settings": dict(case["settings"])}, pool, number, turns))
    threads = [threading.Thread(target=loop, args=(server, failed)) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:  # SGLang would end, or abort a request
        return {"version": plain.version("sglang"), "instances": None, "failed": repr(failed[0])}
    instances = []
    for server in servers:
        here = server
        if server.plans_left:
            server.check()
        columns = (server.cached, *server.times, server.retractions, server.loaded, server.from_storage)
        instances.append({"steps": server.steps, "requests": list(map(list, zip(*columns, strict=True)))})
    return {"version": plain.version("sglang"), "instances": instances}


if __name__ == "__main__":
    assert hybrid_cache_controller
    sys.modules["sglang_storage_scheduler"] = sys.modules["__main__"]
    Backend.__module__ = "sglang_storage_scheduler"
    with open(sys.argv[1]) as stream:
        for line in stream:
            print(json.dumps(serve(json.loads(line))), flush=True)
