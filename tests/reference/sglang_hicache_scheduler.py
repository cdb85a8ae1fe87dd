"""SGLang's scheduler over HiCache's host tier, step by step: what sglang_scheduler.py does, and copies that take time.

`serve(case)` takes the cases of tests/clients/sglang_hicache_scheduler.py and returns what that returns, without its
version. S scheduler.py, P schedule_policy.py (srt/managers), U unified_radix_cache.py, T unified_tree_core.py,
F full.py (srt/mem_cache and unified_cache), C cache_controller.py.

* A copy to the host is decided when a node is inserted (write_through: by one request, selective: by two), and is
  submitted with others when a result was processed or a step is planned (S:5106, U:3679). It waits for the passes that
  were launched and for the copy before it (C:893). Its node is on the host at once, and locked until a plan sees that
  it has ended (U:3472).
* A request with a match on the host needs room as if that were not cached (P:1405). It is loaded when it is admitted,
  if it has 10 tokens or more and fits after eviction, else computed (P:1517, U:1857). All loads of a batch are
  submitted before its own slots are taken; the pass ends when it and they have.
* write_back copies at eviction, while the scheduler waits (U:1008); a node that finds no room on the host is dropped
  with what is below it, unless that is locked. Copies of nodes on the device that are not being loaded are freed first.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.reference import sglang_scheduler
from tests.reference.sglang_hicache import HostTier
from tests.reference.sglang_scheduler import Adder, Scheduler, Tree


@dataclass
class Copy:
    """Copies that were submitted together."""

    end: float
    nodes: list


class HostedTree(HostTier, Tree):
    """What is loaded is pinned until that has ended; what is stored at a threshold is locked."""

    def __init__(self, scheduler, pages, size, host, write_policy):
        super().__init__(pages, size)
        self.add_host(host, write_policy, size)
        self.scheduler = scheduler
        self.to_store, self.to_load = [], []  # (node, pages) that are not submitted
        self.storing, self.loads = [], []
        self.best, self.host_hit = self.root, 0  # of the last match

    def look_up(self, pages):
        """(Leading pages on the device, their last node)."""
        device, host = self.find(pages)
        node = (device or [self.root])[-1]
        self.best, self.host_hit = (host or [node])[-1], sum(len(each.run) for each in host)
        return sum(len(each.run) for each in device), node

    def track(self, node):
        if not node.pins:
            super().track(node)

    def store(self, node):
        if self.threshold is None:  # the scheduler waits
            end = self.submit([(node, len(node.run))], "store_s").end
            self.scheduler.now = max(self.scheduler.now, end)
            self.stored(node)
        else:
            self.to_store.append((node, len(node.run)))
            self.lock(node)

    # copies

    def submit(self, waiting, link):
        begin = max(self.scheduler.now, self.scheduler.free, self.scheduler.links[link])
        tokens = sum(pages for _, pages in waiting) * self.size
        self.scheduler.links[link] = end = begin + tokens * self.scheduler.case[link]
        return Copy(end, [node for node, _ in waiting])

    def flush(self):
        if self.to_store:
            self.storing.append(self.submit(self.to_store, "store_s"))
            self.to_store = []

    def start_loading(self):
        """When what the batch loads is there; 0 if it loads nothing."""
        if not self.to_load:
            return 0.0
        self.loads.append(self.submit(self.to_load, "load_s"))
        self.to_load = []
        return self.loads[-1].end

    def see_copies(self):
        """At the beginning of a plan: what has ended is no longer locked."""
        self.flush()
        stored, loaded = self.ended(self.storing), self.ended(self.loads)
        for node in stored:
            self.unlock(node)
            self.stored(node)
        for node in loaded:
            self.unlock(node)
            while node.pins:
                node.pins -= 1
                self.track(node)
                node = node.parent

    def stored(self, node):
        """A copy to the host has ended."""

    def ended(self, copies):
        nodes = []
        while copies and copies[0].end <= self.scheduler.now:
            nodes += copies.pop(0).nodes
        return nodes

    def load_back(self, request):
        """Load the request's match on the host; pages loaded."""
        pages = self.load(request.best)
        if pages:
            self.to_load.append((request.best, pages))
        return pages


class HostedAdder(Adder):
    def add(self, request):
        outputs = min(max(request.limit - request.out, 0), self.clip)
        whole = request.fill - request.prefix + outputs + self.size
        self.tree.lock(request.node)
        device = request.node
        verdict = self.fit(request, whole, request.host_hit * self.size)
        if verdict is None and request.host_hit:
            loaded = self.tree.load_back(request) * self.size
            if loaded:
                request.prefix += loaded
                request.protected, request.node, request.loaded = request.prefix, request.best, loaded
            else:
                verdict = self.fit(request, whole, 0)
        if verdict is None:
            extend, outputs, chunked = self.chosen
            request.end = request.prefix + extend
            request.locked = request.node
            self.tree.lock(request.node)
            self.requests.append(request)
            if chunked:
                self.new_chunked = request
            self.charge(extend, outputs)
            verdict = self.state()
            self.tree.unlock(device)
            return self.state() if verdict != "continue" else verdict
        self.tree.unlock(device)
        return verdict

    def fit(self, request, whole, host):
        """Why a request is not admitted, or None; `chosen` has its tokens, outputs, and whether it is cut."""
        if not whole < self.left():
            return "no token"
        extend = request.fill - request.prefix - host
        paged = self.scheduler.paged(extend)
        if self.chunk_left is None and self.requests and paged >= self.input_left:
            return "other"
        self.chosen = extend, min(request.limit, self.clip), False
        if self.chunk_left is not None and paged > self.chunk_left:
            extend = self.chunk_left // self.size * self.size
            if extend <= 0:
                return "other"
            self.chosen = extend, 0, True
        return None


class HostedScheduler(Scheduler):
    adder, tiers = HostedAdder, HostedTree

    def __init__(self, case):
        super().__init__(case)
        self.case, self.links = case, {"load_s": 0.0, "store_s": 0.0}
        pages = self.capacity // self.size
        self.tree = self.tiers(self, pages, self.size, case["host"] // self.size, case["write_policy"])
        self.loaded = [0] * len(case["requests"])
        self.first_loads = set()

    def plan(self):
        self.tree.see_copies()
        return super().plan()

    def look_up(self, request):
        super().look_up(request)
        request.best, request.host_hit, request.loaded = self.tree.best, self.tree.host_hit, 0

    def matched(self, request, pages):
        return (pages + self.tree.host_hit) * self.size

    def extend(self, batch):
        batch.loaded_at = self.tree.start_loading()
        super().extend(batch)

    def launch(self, batch, begin, seconds):
        super().launch(batch, begin, seconds)
        if batch.kind != "decode":
            self.free = max(self.free, batch.loaded_at)
        for request, _, _ in batch.parts:
            if request.row not in self.first_loads:
                self.first_loads.add(request.row)
                self.loaded[request.row] = request.loaded

    def processed(self):
        self.tree.flush()

    def next_copy(self):
        ends = [copy.end for copy in (*self.tree.storing, *self.tree.loads) if copy.end > self.now]
        return min(ends, default=None)


def serve(case):
    """What sglang_scheduler's `serve` returns, with the loaded tokens of each request."""
    scheduler = HostedScheduler(case)
    answer = sglang_scheduler.serve(case, scheduler)
    return answer | {"loaded": scheduler.loaded}
