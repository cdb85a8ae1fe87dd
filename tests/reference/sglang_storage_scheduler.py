"""SGLang's scheduler over HiCache with a storage backend that instances share: sglang_hicache_scheduler.py with L3.

`serve(case)` takes the cases of tests/clients/sglang_storage_scheduler.py and returns what that returns, without its
version. U unified_radix_cache.py, T unified_tree_core.py, C cache_controller.py, R storage_prefetch.py, S scheduler.py.

* A request that enters the queue is matched, and the backend is asked for its next pages, if they have
  prefetch_threshold tokens and the match ends on the host (S:3342, U:2081). Requests that are asked for may have half
  of the host's tokens (C:1279). Until all is over, the match's last node stays on the host.
* Four threads work beside the scheduler: one asks whether pages exist, one reads pages in batches, one writes them in
  batches, each one operation after another (C:1165, C:1330). The scheduler sees their results when it plans (U:2980).
* What exists is read if it has the threshold: the host makes room for all of it, or takes a part of it (U:3104).
* A plan looks at a request only when its prefetch is over (S:4241): when all is read, or its policy ends it
  (best_effort: at once, timeout: so long after the first look). What is read is then inserted (T:2395).
* What a query did not find, or what found no room, is asked for again after retry_interval plans, up to retry_attempts
  times in a row, but not for the first of the queue (R:45); also when the match of a request became shorter (S:3426).
* A copy that has reached the host is written to the backend (U:1803); its node stays on the host until then.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import nextafter

from tests.reference import sglang_scheduler
from tests.reference.radix import shared
from tests.reference.sglang_hicache import Node
from tests.reference.sglang_hicache_scheduler import HostedScheduler, HostedTree

NEVER = 1e300


@dataclass(eq=False)
class StoredNode(Node):
    """A node that operations of the backend keep on the host: those in `keepers`."""

    keepers: set = field(default_factory=set)
    store: list | None = None  # the nodes of a copy to the host that has not ended

    @property
    def kept(self):
        return self.pins > 0 or bool(self.keepers)


class Pool:
    """An LRU of pages that instances share, two links to it, and what happens next."""

    def __init__(self, case):
        self.storage, self.size = case["storage"], case["settings"]["page_size"]
        self.pages, self.free, self.events, self.order = OrderedDict(), {True: 0.0, False: 0.0}, [], count()
        self.names = {}

    def chain(self, before, pages):
        """Names of pages that follow others, of which `before` is the name of the last: equal with equal beginnings."""
        names = []
        for page in pages:
            before = self.names.setdefault((before, page), len(self.names))
            names.append(before)
        return names

    def leading(self, names):
        return next((at for at, name in enumerate(names) if name not in self.pages), len(names))

    def transfer(self, at, is_load, pages, then):
        seconds = pages * self.size * self.storage["fetch_s" if is_load else "store_s"]
        self.free[is_load] = end = max(at, self.free[is_load]) + (self.storage["latency_s"] + seconds)
        self.wait(end, then)

    def wait(self, end, then):
        heappush(self.events, (end, next(self.order), then))

    def reach(self, now):
        while self.events and self.events[0][0] <= now:
            end, _, then = heappop(self.events)
            then(end)


class Fetch:
    """A prefetch of a request."""

    def __init__(self, request, anchor, names, pages, start, assumed):
        self.request, self.anchor, self.names, self.pages, self.start = request, anchor, names, pages, start
        self.assumed, self.requested = assumed, len(pages)
        self.reserved = None  # pages of the host that it has, None = not yet
        self.found = self.read = 0  # pages that exist, and that the scheduler knows to be read
        self.terminated = self.expired = False


class Threads:
    """What the threads of an instance do."""

    def __init__(self, pool):
        self.pool = pool
        self.queries, self.reads, self.writes = deque(), deque(), deque()
        self.busy = {"query": False, "read": False, "write": False}
        self.hits, self.acks, self.written = deque(), deque(), deque()  # for the scheduler

    def query(self, fetch, at):
        self.queries.append(fetch)
        if not self.busy["query"]:
            self.next_query(at)

    def next_query(self, at):
        self.busy["query"] = False
        while self.queries:
            fetch = self.queries.popleft()
            if fetch.terminated or fetch.assumed:
                fetch.found = 0 if fetch.terminated else len(fetch.names)
                self.hits.append(fetch)
                continue
            self.busy["query"] = True
            self.pool.wait(at + self.pool.storage["latency_s"], lambda end, fetch=fetch: self.answer(fetch, end))
            return

    def answer(self, fetch, end):
        fetch.found = self.pool.leading(fetch.names)
        self.hits.append(fetch)
        self.next_query(end)

    def read(self, fetch, at):
        self.reads.append(fetch)
        if not self.busy["read"]:
            self.next_read(at)

    def next_read(self, at):
        self.busy["read"] = False
        if self.reads:
            self.busy["read"] = True
            self.read_batch(self.reads.popleft(), 0, at)

    def read_batch(self, fetch, done, at):
        batch = fetch.names[done : fetch.reserved][: self.pool.storage["batch"]]
        if fetch.terminated or not batch:
            self.acks.append((fetch, None))
            self.next_read(at)
            return

        def ended(end):
            there = self.pool.leading(batch)
            for name in batch[:there]:
                self.pool.pages.move_to_end(name)
            read = 0 if fetch.terminated else there
            self.acks.append((fetch, done + read))
            if read < len(batch):
                self.acks.append((fetch, None))
                self.next_read(end)
            else:
                self.read_batch(fetch, done + read, end)

        self.pool.transfer(at, True, len(batch), ended)

    def write(self, node, names, at):
        self.writes.append((node, names))
        if not self.busy["write"]:
            self.next_write(at)

    def next_write(self, at):
        self.busy["write"] = False
        if self.writes:
            self.busy["write"] = True
            self.write_batch(*self.writes.popleft(), 0, at)

    def write_batch(self, node, names, done, at):
        batch = names[done : done + self.pool.storage["batch"]]
        if not batch:
            self.written.append((node, names))
            self.next_write(at)
            return
        new = sum(name not in self.pool.pages for name in batch)

        def ended(end):
            for name in batch:
                if name not in self.pool.pages and len(self.pool.pages) == self.pool.storage["capacity"]:
                    self.pool.pages.popitem(last=False)
                self.pool.pages[name] = None
                self.pool.pages.move_to_end(name)
            self.write_batch(node, names, done + len(batch), end)

        if new:
            self.pool.transfer(at, False, new, ended)
        else:
            ended(at)

    def idle(self):
        return not any(self.busy.values())


class StoredTree(HostedTree):
    kind = StoredNode

    def pages(self, tokens):
        """As before; outputs are named by their rows of the whole case."""
        rows = self.scheduler.case["requests"]
        return super().pages([(rows[one[0]]["row"], one[1]) if isinstance(one, tuple) else one for one in tokens])

    def split(self, child, length):
        upper = super().split(child, length)
        upper.keepers, upper.store = set(child.keepers), child.store
        if child.store is not None:
            place = child.store.index(child)
            child.store[place : place + 1] = [upper, child]
        return upper

    def store(self, node):
        if self.threshold is not None:
            node.store = [node]
        super().store(node)

    def stored(self, node):
        nodes, node.store = node.store or [node], None
        for each in nodes:
            each.store = None
            if each.host:
                names = self.scheduler.pool.chain(self.name(each.parent), each.run)
                each.keepers.add(names := tuple([object(), *names]))
                self.scheduler.threads.write(each, names[1:], self.scheduler.now)
                self.writing.append((each, names))

    writing = None

    def name(self, node):
        """The name of a node's last page."""
        if node is self.root:
            return None
        return self.scheduler.pool.chain(self.name(node.parent), node.run)[-1]

    def let_go(self, node, keeper):
        while keeper in node.keepers:
            node.keepers.discard(keeper)
            node = node.parent

    def see_copies(self):
        """As before; then what the threads have done since the last plan."""
        scheduler, threads = self.scheduler, self.scheduler.threads
        hits, acks, written, freed = len(threads.hits), len(threads.acks), len(threads.written), scheduler.freed
        super().see_copies()
        for _ in range(hits):
            scheduler.answered(threads.hits.popleft())
        for _ in range(acks):
            scheduler.acknowledged(*threads.acks.popleft())
        for _ in range(written):
            threads.written.popleft()
            self.let_go(*self.writing.pop(0))
        self.host_free += freed
        scheduler.freed -= freed

    def insert_host(self, anchor, pages):
        """Pages that were read become findable on the host after a node; (pages that it had, whether all are)."""
        node, done, had = anchor, 0, 0
        node.used = next(self.clock)
        while done < len(pages) and pages[done] in node.children:
            node = node.children[pages[done]]
            node.used = next(self.clock)
            same = shared(node.run, pages, done)
            if same < len(node.run):
                node = self.split(node, same)
            if self.threshold is None or node.host:
                had += same
            else:
                node.host = True
            done += same
        if done < len(pages):
            if node is not self.root and not node.host and self.threshold is not None:
                return had, False
            self.leaf(node, pages[done:], device=False, host=True)
        return had, True


class StoredScheduler(HostedScheduler):
    tiers, looks_twice = StoredTree, True

    def __init__(self, case, pool):
        super().__init__(case)
        self.storage, self.pool, self.threads = case["storage"], pool, Threads(pool)
        self.tree.writing = []
        self.fetching, self.waits, self.retries, self.came = {}, {}, {}, {}  # by row
        self.attempts, self.last_match, self.span = {}, {}, {}
        self.passes_seen = self.occupied = self.freed = 0
        self.most_occupied = int(0.5 * case["host"])
        self.retracting = False
        self.from_storage = [0] * len(case["requests"])

    # a turn

    def begin_turn(self):
        self.pool.reach(self.now)

    def plan(self):
        self.tree.see_copies()
        self.retry()
        return sglang_scheduler.Scheduler.plan(self)

    def spins(self):
        is_due = self.under_way() and self.pool.events and self.pool.events[0][0] <= self.now
        return bool(is_due or (self.retries and self.waiting) or self.freed)

    def under_way(self):
        return self.fetching or self.tree.writing or not self.threads.idle()

    def next_copy(self):
        ends = [copy.end for copy in (*self.tree.storing, *self.tree.loads)]
        if self.under_way():
            ends += [end for end, *_ in self.pool.events[:1]]
        for row in self.fetching:
            if row in self.waits and not self.waits[row][2]:
                begin, limit, _ = self.waits[row]
                end = begin + limit
                while not end - begin > limit:
                    end = nextafter(end, NEVER)
                ends.append(end)
        return min((end for end in ends if end > self.now), default=None)

    # entering the queue, and asking again

    def retract(self, batch):
        self.retracting = True
        super().retract(batch)
        self.retracting = False

    def add(self, request):
        if self.retracting:
            self.attempts[request.row], self.last_match[request.row] = 0, None
        self.prefetch(request)
        super().add(request)

    def prefetch(self, request, hit_end=None):
        row, size, tree = request.row, self.size, self.tree
        self.look_up(request)
        start = request.prefix + request.host_hit * size
        self.last_match[row] = start
        anchor = request.best
        if not (anchor is tree.root or anchor.host):
            return
        self.retries.pop(row, None)
        if (row in self.waits and self.waits[row][2]) or row in self.fetching:
            return
        tokens = request.tokens()[:-1]
        assumed = hit_end is not None and start < hit_end <= len(tokens)
        pages = tree.pages(tokens[: hit_end if assumed else None])[start // size :]
        assumed = assumed and start + len(pages) * size == hit_end
        if len(pages) * size < self.storage["prefetch_threshold"]:
            return
        if self.occupied >= self.most_occupied:
            self.retries[row] = [hit_end, None]
            return
        fetch = Fetch(request, anchor, self.pool.chain(tree.name(anchor), pages), pages, start, assumed)
        if anchor is not tree.root:
            anchor.keepers.add(fetch)
        self.fetching[row] = fetch
        self.occupied += len(pages) * size
        self.threads.query(fetch, self.now)

    def retry(self):
        """Ask again for the pages of requests whose time has come."""
        self.passes_seen += 1
        if not self.waiting or not self.retries:
            return
        self.retries.pop(self.waiting[0].row, None)
        if not any(due is None or due <= self.passes_seen for _, due in self.retries.values()):
            return
        ready = []
        for request in self.waiting:
            retry = self.retries.get(request.row)
            if retry is None:
                continue
            if (
                self.attempts.get(request.row, 0) >= self.storage["retry_attempts"]
                or self.storage["retry_interval"] <= 0
            ):
                del self.retries[request.row]
                continue
            if retry[1] is None:
                retry[1] = self.passes_seen + self.storage["retry_interval"]
            if retry[1] <= self.passes_seen:
                del self.retries[request.row]
                ready.append((request, retry[0]))
        for request, hit_end in ready:
            self.attempts[request.row] = self.attempts.get(request.row, 0) + 1
            self.prefetch(request, hit_end)

    # what the threads have done

    def revoke(self, row):
        """A prefetch ends before it has a place on the host."""
        fetch = self.fetching.pop(row, None)
        if fetch is not None:
            self.tree.let_go(fetch.anchor, fetch)
            self.occupied -= fetch.requested * self.size

    def answered(self, fetch):
        row, threshold = fetch.request.row, self.storage["prefetch_threshold"]
        if row not in self.fetching:
            return
        if fetch.terminated or fetch.found * self.size < threshold:
            if not (fetch.terminated and fetch.expired):
                self.retries[row] = [None, None]
            self.revoke(row)
            return
        if self.tree.host_free < fetch.found:
            self.tree.evict_host(fetch.found)
        pages = min(fetch.found, self.tree.host_free)
        if pages < fetch.found and pages * self.size < threshold:
            self.revoke(row)
            self.retries[row] = [fetch.start + fetch.found * self.size, None]
            return
        self.tree.host_free -= pages
        fetch.reserved = pages
        self.threads.read(fetch, self.now)

    def acknowledged(self, fetch, done):
        """Pages were read; None: all that will be."""
        is_current = self.fetching.get(fetch.request.row) is fetch
        if done is not None:
            fetch.read = done if is_current else fetch.read
            return
        if is_current:
            self.insert(fetch)
        self.freed += fetch.reserved - fetch.read

    def insert(self, fetch):
        row = fetch.request.row
        had, inserted = self.tree.insert_host(fetch.anchor, fetch.pages[: fetch.read])
        if inserted:
            self.tree.host_free += had
        else:
            self.freed += fetch.read
        loaded = fetch.read - had if inserted else 0
        del self.fetching[row]
        self.tree.let_go(fetch.anchor, fetch)
        self.occupied -= fetch.requested * self.size
        self.came[row] = (loaded * self.size, fetch.start + had * self.size)

    # admission

    def ready(self, request):
        """Whether the request's prefetch is over, or is ended now."""
        row, fetch = request.row, self.fetching.get(request.row)
        if fetch is not None:
            if not self.may_end(fetch):
                if self.storage["policy"] == "timeout" and row not in self.waits:
                    per_page = self.size / 1024 * self.storage["timeout_per_ki_token"]
                    self.waits[row] = [self.now, self.storage["timeout_base"] + fetch.requested * per_page, False]
                return False
            if self.storage["policy"] == "timeout":
                fetch.expired, self.waits[row][2] = True, True
                self.retries.pop(row, None)
            fetch.terminated = True
            if fetch.reserved is None:
                if not fetch.expired:
                    self.retries[row] = [None, None]
                self.revoke(row)
            else:
                self.insert(fetch)
        loaded, start = self.came.pop(row, (0, 0))
        if loaded:
            self.span[row] = (start, start + loaded)
        return True

    def may_end(self, fetch):
        if self.storage["policy"] != "timeout":
            return self.storage["policy"] == "best_effort"
        if fetch.reserved is not None and fetch.read >= fetch.reserved:
            return False
        begin, limit, expired = self.waits.get(fetch.request.row, (NEVER, 0, False))
        return expired or self.now - begin > limit

    def lost(self, request):
        row, now = request.row, request.prefix + request.host_hit * self.size
        if not self.last_match.get(row) or now >= self.last_match[row]:
            return False
        if self.attempts.get(row, 0) >= self.storage["retry_attempts"]:
            self.last_match[row] = now
            return False
        self.attempts[row] = self.attempts.get(row, 0) + 1
        self.prefetch(request)
        return True

    def admitted(self, requests):
        for request in requests:
            self.retries.pop(request.row, None)
            self.waits.pop(request.row, None)

    def launch(self, batch, begin, seconds):
        for request, before, _ in batch.parts:
            if request.row not in self.first_loads and request.row in self.span:
                first, end = self.span[request.row]
                self.from_storage[request.row] = max(0, min(before, end) - first)
        super().launch(batch, begin, seconds)


def serve(case):
    """The steps of each instance, and of its requests the times, and the tokens from the host and the storage."""
    pool = Pool(case)
    case = case | {"requests": [row | {"row": number} for number, row in enumerate(case["requests"])]}
    schedulers, going, answers = [], {}, {}
    for number in range(1 + max(row["instance"] for row in case["requests"])):
        own = case | {"requests": [row for row in case["requests"] if row["instance"] == number]}
        schedulers.append(StoredScheduler(own, pool))
        going[number] = sglang_scheduler.turns(own, schedulers[-1])
        next(going[number])
    while going:
        number = min(going, key=lambda number: (schedulers[number].now, number))
        try:
            next(going[number])
        except StopIteration as done:
            answers[number] = done.value
            del going[number]
    instances = []
    for number, scheduler in enumerate(schedulers):
        loads = zip(answers[number]["requests"], scheduler.loaded, scheduler.from_storage, strict=True)
        rows = [[*row, loaded, stored] for row, loaded, stored in loads]
        instances.append({"steps": answers[number]["steps"], "requests": rows})
    return {"instances": instances}
