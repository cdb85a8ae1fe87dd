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
from tests.reference.sglang_hicache import LOAD_BACK_TOKENS, THRESHOLD
from tests.reference.sglang_scheduler import Adder, Node, Scheduler, Tree, shared


@dataclass(eq=False)
class HostedNode(Node):
    device: bool = True
    host: bool = False
    hits: int = 0
    loading: object = None  # the node whose path is loaded
    pinned: bool = False  # it is about to be loaded


@dataclass
class Copy:
    """Copies that were submitted together."""

    end: float
    nodes: list


class HostedTree(Tree):
    node = HostedNode

    def __init__(self, scheduler, pages, size, host, write_policy):
        super().__init__(pages, size)
        self.root = self.node([], None, next(self.clock))
        self.scheduler, self.host_free, self.threshold = scheduler, host, THRESHOLD[write_policy]
        self.twice = {}
        self.to_store, self.to_load = [], []  # (node, pages) that are not submitted
        self.storing, self.loads = [], []
        self.best, self.host_hit = self.root, 0  # of the last match

    def match(self, pages):
        """(Leading pages on the device, their last node)."""
        done, node = super().match(pages)
        self.best, self.host_hit = node, 0
        while not node.device:
            self.host_hit += len(node.pages)
            node = node.parent
        return done - self.host_hit, node

    def split(self, child, at):
        upper = type(child)(
            child.pages[:at], child.parent, next(self.clock), {child.pages[at]: child}, child.locks,
            child.device, child.host, child.hits, child.loading,
        )  # fmt: skip
        child.parent.children[child.pages[0]] = upper
        child.pages, child.parent, child.used = child.pages[at:], upper, next(self.clock)
        self.track(upper)
        return upper

    def insert(self, pages, owned=0, inserted=0):
        """(Pages beyond `owned` that the device had, the last node). Nodes beyond `inserted` pages count a request."""
        node, done, twice = self.root, 0, 0
        node.used = next(self.clock)
        while done < len(pages) and pages[done] in node.children:
            node = node.children[pages[done]]
            node.used = next(self.clock)
            same = shared(node.pages, pages, done)
            if same < len(node.pages):
                node = self.split(node, same)
            if node.device:
                twice += max(0, done + same - max(done, owned))
            else:
                self.arrive(node)
                self.track(node)
            done += same
            if done > inserted:
                self.count(node)
        if done < len(pages):
            leaf = self.node(pages[done:], node, next(self.clock))
            node.children[pages[done]] = leaf
            self.evictable += len(leaf.pages)
            node = leaf
            if len(pages) > inserted:
                self.count(node)
        return twice, node

    def arrive(self, node):
        node.device = True
        if node.locks == 0:
            self.evictable += len(node.pages)

    def count(self, node):
        if self.threshold is None:
            return
        node.hits += 1
        if node.host or node.hits < self.threshold:
            return
        chain = [node]
        while chain[-1].parent is not self.root and not chain[-1].parent.host:
            chain.append(chain[-1].parent)
        for each in reversed(chain):
            if not self.room_on_host(len(each.pages)):
                return
            self.host_free -= len(each.pages)
            each.host = True
            self.to_store.append((each, len(each.pages)))
            self.lock(each)

    def track(self, node):
        if self.threshold is None and node.device and node.host and node.loading is None:
            self.twice.setdefault(node)

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
            self.lock(node, -1)
            self.stored(node)
        for node in loaded:
            self.lock(node, -1)
            each = node
            while each is not self.root:
                if each.loading is node:
                    each.loading = None
                    self.track(each)
                each = each.parent

    def stored(self, node):
        """A copy to the host has ended."""

    def ended(self, copies):
        nodes = []
        while copies and copies[0].end <= self.scheduler.now:
            nodes += copies.pop(0).nodes
        return nodes

    def load_back(self, request):
        """Load the request's match on the host; pages loaded."""
        pages = request.host_hit
        if pages * self.size < LOAD_BACK_TOKENS:
            return 0
        request.best.pinned = True
        self.make_room(pages * self.size)
        request.best.pinned = False
        if self.free < pages:
            return 0
        self.take(pages)
        node = request.best
        while not node.device:
            self.arrive(node)
            node.loading = request.best if self.threshold is None else None
            node = node.parent
        self.to_load.append((request.best, pages))
        self.lock(request.best)
        return pages

    # eviction

    def nodes(self, node=None):
        for child in (node or self.root).children.values():
            yield child
            yield from self.nodes(child)

    def device_leaf(self, node):
        return node.device and not node.locks and not any(child.device for child in node.children.values())

    def host_leaf(self, node):
        return node.host and not node.device and not node.locks and not node.pinned and not node.children

    def drop(self, node):
        del node.parent.children[node.pages[0]]
        self.twice.pop(node, None)

    def make_room(self, tokens):
        kept = set()
        while self.available() < tokens:
            leaves = [node for node in self.nodes() if self.device_leaf(node) and node not in kept]
            if not leaves:
                return
            victim = min(leaves, key=lambda node: node.used)
            if not victim.host and self.threshold is None:
                if self.room_on_host(len(victim.pages)):
                    self.host_free -= len(victim.pages)
                    victim.host = True
                    self.scheduler.now = max(
                        self.scheduler.now, self.submit([(victim, len(victim.pages))], "store_s").end
                    )
                    self.stored(victim)
                    self.track(victim)
                elif any(node.pinned or node.locks for node in self.nodes(victim)):
                    kept.add(victim)
                    continue
                else:
                    self.host_free += sum(len(node.pages) for node in self.nodes(victim))
                    for node in [*self.nodes(victim)]:
                        self.twice.pop(node, None)
            if not victim.host:
                self.drop(victim)
            victim.device = False
            self.free += len(victim.pages)
            self.evictable -= len(victim.pages)

    def room_on_host(self, pages):
        if self.host_free >= pages:
            return True
        need = pages - self.host_free
        return self.evict_host(need) >= need

    def evict_host(self, pages):
        freed = self.free_copies(pages) if self.threshold is None else 0
        while freed < pages and (leaves := [node for node in self.nodes() if self.host_leaf(node)]):
            victim = min(leaves, key=lambda node: node.used)
            self.drop(victim)
            self.host_free += len(victim.pages)
            freed += len(victim.pages)
        return freed

    def free_copies(self, pages):
        freed, gone = 0, set()
        for spare in (True, False):
            for node in self.twice:
                if freed >= pages:
                    break
                if not (node.device and node.host):
                    gone.add(node)
                elif not (spare and self.device_leaf(node)) and node.loading is None and not node.pinned:
                    node.host = False
                    gone.add(node)
                    self.host_free += len(node.pages)
                    freed += len(node.pages)
        for node in gone:
            del self.twice[node]
        return freed


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

    def drop(self, request, others):
        super().drop(request, others)
        request.inserted = 0

    def publish(self, request, upto):
        if upto <= 0:
            return
        pages = self.tree.pages(request.tokens()[:upto])
        twice, node = self.tree.insert(pages, request.protected // self.size, request.inserted)
        self.tree.free += twice
        request.inserted = max(request.inserted, len(pages))
        prompt = len(self.tree.pages(request.prompt))
        if 0 < prompt < len(pages):
            self.tree.insert(pages[:prompt], prompt, prompt)
        self.tree.unlock(request.locked)
        self.tree.lock(node)
        request.locked, request.protected = node, len(pages) * self.size


def serve(case):
    """What sglang_scheduler's `serve` returns, with the loaded tokens of each request."""
    scheduler = HostedScheduler(case)
    answer = sglang_scheduler.serve(case, scheduler)
    return answer | {"loaded": scheduler.loaded}
