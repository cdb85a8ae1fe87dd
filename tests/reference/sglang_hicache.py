"""SGLang's HiCache over nodes and lists: the definition of the compiled tree with a host tier (cache/core/hicache.py).

A node of the tree has its blocks on the device, on the host, or on both. Device nodes have device parents. `threshold`
requests of a node copy it to the host (write_through 1, write_through_selective 2), or its eviction does (write_back).
An evicted node with a copy stays in the tree. A request loads the host nodes of its match back, if they have 10 tokens
or more. The host evicts leaves that are not on the device; write_back first frees the copies of nodes that are on both.

`HostTier` has these rules. A subclass says what a transfer does: in `HiCache` each one ends before the next request is
looked at; sglang_hicache_scheduler.py has times.

A pool (SGLang's storage backend) is one LRU of blocks that instances share: what is copied to a host is copied to it,
and a request's next blocks come from it to the host before the request is matched.
A node's copy in the pool keeps the host's until it is written.
"""

from collections import OrderedDict
from dataclasses import dataclass

from tests.reference import radix

THRESHOLD = {"write_through": 1, "write_through_selective": 2, "write_back": None}
LOAD_BACK_TOKENS = 10
LOWEST = -(1 << 63) + 1


@dataclass(eq=False)
class Node(radix.Node):
    device: bool = True
    host: bool = False
    pins: int = 0  # transfers that read or write its copy on the host

    @property
    def kept(self):
        """Whether its copy on the host has to stay."""
        return self.pins > 0


class Pool:
    """An LRU of so many blocks, None = all; a block is used when it is written again and when it is read."""

    def __init__(self, capacity):
        self.capacity, self.blocks = capacity, OrderedDict()

    def leading(self, blocks):
        """The number of leading blocks that are here."""
        return next((at for at, block in enumerate(blocks) if block not in self.blocks), len(blocks))

    def read(self, blocks):
        for block in blocks:
            self.blocks.move_to_end(block)

    def write(self, blocks):
        for block in blocks:
            if block not in self.blocks and len(self.blocks) == self.capacity:
                self.blocks.popitem(last=False)
            self.blocks[block] = True
            self.blocks.move_to_end(block)


class HostTier(radix.Radix):
    kind = Node

    def add_host(self, host, write_policy, block_tokens):
        self.host_free, self.threshold, self.block_tokens = host, THRESHOLD[write_policy], block_tokens
        self.root.priority = LOWEST
        self.twice = {}  # write_back: nodes that came to be on both tiers, the first one first; some no longer are

    # the tree

    def find(self, path):
        """The nodes of the longest resident prefix of a path: those on the device, and those on the host alone."""
        nodes = self.match(path) if path else []
        return [node for node in nodes if node.device], [node for node in nodes if not node.device]

    def split(self, node, length):
        upper = super().split(node, length)
        self.track(upper)
        return upper

    def insert(self, path, priority=0, inserted=0):
        """(Blocks that were on the device, the last node). What was only on the host is computed anew."""
        self.root.priority = max(self.root.priority, priority)
        node, resident, done = self.root, 0, 0
        for node in self.walk(path):
            done += len(node.run)
            node.priority = max(node.priority, priority)
            resident += len(node.run) if node.device else 0
            if not node.device:
                node.device = True
                self.track(node)
            if done > inserted:
                self.count(node)
        if done < len(path):
            node = self.leaf(node, path[done:], priority=priority)
            if len(path) > inserted:
                self.count(node)
        return resident, node

    def count(self, node):
        """Count a request of a node; at the threshold it is copied to the host, after its ancestors."""
        if self.threshold is None:
            return
        node.hits += 1
        if node.host or node.hits < self.threshold:
            return
        chain = [node]
        while chain[-1].parent is not self.root and not chain[-1].parent.host:
            chain.append(chain[-1].parent)
        for each in reversed(chain):
            if not self.copy(each):
                return

    def copy(self, node):
        """Copy a node to the host if that has room; returns whether it had."""
        need = len(node.run) - self.host_free
        if need > 0 and self.evict_host(need) < need:
            return False
        self.host_free -= len(node.run)
        node.host = True
        self.store(node)
        return True

    def load(self, node):
        """Load the blocks of a path that are on the host alone, and lock it; their number, 0 if too few or no room."""
        last, loaded = node, []
        while not node.device:
            loaded.append(node)
            node = node.parent
        blocks = sum(len(each.run) for each in loaded)
        if blocks * self.block_tokens < LOAD_BACK_TOKENS:
            return 0
        self.lock(last)
        self.make_room(blocks)
        if self.free < blocks:
            self.unlock(last)
            return 0
        self.free -= blocks
        for each in loaded:
            each.device = True
            each.pins += 1
        return blocks

    def track(self, node):
        """With write_back, list a node that is on both tiers."""
        if self.threshold is None and node.device and node.host:
            self.twice.setdefault(node)

    # eviction

    def device_leaf(self, node):
        return node.device and not node.locks and not any(child.device for child in node.children.values())

    def host_leaf(self, node):
        return node.host and not node.device and not node.locks and not node.kept and not node.children

    def remove(self, node):
        super().remove(node)
        self.twice.pop(node, None)

    def evict_host(self, blocks):
        """Free at least so many blocks of the host, if it has them to free; returns how many."""
        freed = self.free_copies(blocks) if self.threshold is None else 0
        while freed < blocks and (leaves := [node for node in self.nodes() if self.host_leaf(node)]):
            victim = min(leaves, key=self.key)
            self.remove(victim)
            self.host_free += len(victim.run)
            freed += len(victim.run)
        return freed

    def free_copies(self, blocks):
        """Free host copies of nodes that are on the device too; those of its leaves, which it evicts next, are last."""
        freed, gone = 0, set()
        for spare in (True, False):
            for node in self.twice:
                if freed >= blocks:
                    break
                if not (node.device and node.host):
                    gone.add(node)
                elif not (spare and self.device_leaf(node)) and not node.kept:
                    node.host = False
                    gone.add(node)
                    self.host_free += len(node.run)
                    freed += len(node.run)
        for node in gone:
            del self.twice[node]
        return freed

    def evictable(self):
        return sum(len(node.run) for node in self.nodes() if node.device and not node.locks)

    def make_room(self, blocks):
        """Evict device leaves until so many blocks are free, or none is left that can go."""
        kept = set()
        while self.free < blocks:
            leaves = [node for node in self.nodes() if self.device_leaf(node) and node not in kept]
            if not leaves:
                return
            victim = min(leaves, key=self.key)
            if not victim.host and self.threshold is None:
                if self.copy(victim):
                    self.track(victim)
                elif any(node.kept or node.locks for node in self.nodes(victim)):
                    kept.add(victim)
                    continue
                else:
                    self.host_free += sum(len(node.run) for node in self.nodes(victim))
                    for node in [*self.nodes(victim)]:
                        self.twice.pop(node, None)
            if not victim.host:
                self.remove(victim)
            victim.device = False
            self.free += len(victim.run)
            self.evictions += len(victim.run)


class HiCache(HostTier):
    """Transfers end before the next request is looked at."""

    def __init__(self, device, host, policy, write_policy, block_tokens, pool=None, prefetch_tokens=256):
        super().__init__(device, policy)
        self.add_host(host, write_policy, block_tokens)
        self.pool, self.prefetch_tokens = pool, prefetch_tokens
        self.pinned = []  # nodes whose copies are being written to the pool, or loaded

    def split(self, node, length):
        upper = super().split(node, length)
        self.pinned += [upper] * node.pins
        return upper

    def store(self, node):
        """What is copied to the host is copied to the pool."""
        if self.pool is not None:
            self.pool.write(node.run)
            node.pins += 1
            self.pinned.append(node)

    def settle(self):
        """All transfers have ended."""
        for node in self.pinned:
            node.pins -= 1
        self.pinned = []

    def room(self, blocks):
        if blocks > self.free + self.evictable():
            return False
        self.make_room(blocks)
        while self.free < blocks:  # copies that are being stored keep the host full
            self.settle()
            self.make_room(blocks)
        self.free -= blocks
        return True

    # requests

    def fetch(self, request):
        """Bring the blocks after a request's match from the pool to the host; (their number, the first one)."""
        path = request.path[: request.limit]
        nodes = [node for part in self.find(path) for node in part]
        node, matched = (nodes or [self.root])[-1], sum(len(node.run) for node in nodes)
        if node is not self.root and not node.host:
            return 0, 0
        least = max(-(-self.prefetch_tokens // self.block_tokens), 1)
        blocks = path[matched:]
        if len(blocks) < least or (hit := self.pool.leading(blocks)) < least:
            return 0, 0
        node.pins += 1
        if self.host_free < hit:
            self.evict_host(hit)
        node.pins -= 1
        hit = min(hit, self.host_free)
        if hit < least:
            return 0, 0
        self.pool.read(blocks[:hit])
        self.host_free -= hit
        node.used = next(self.clock)
        self.leaf(node, blocks[:hit], priority=node.priority, device=False, host=True)
        return hit, matched

    def admit(self, row, request):
        """Hit blocks by source (device, host, pool), or None if there is no room."""
        fetched, first = self.fetch(request) if self.pool is not None else (0, 0)
        device, host = self.find(request.path[: request.limit])
        hit = sum(len(node.run) for node in device)
        node, need = (device or [self.root])[-1], len(request.path) + request.tail - hit
        self.lock(node)
        if need > self.free + self.evictable():
            self.unlock(node)
            return None
        loaded = self.load(host[-1]) if host else 0
        if loaded:
            self.unlock(node)
            node = host[-1]
            self.pinned += host
        assert self.room(need - loaded)
        self.settle()
        for each in reversed(host) if loaded else ():
            self.track(each)
        self.held[row] = node
        self.free += self.publish(row, request.path, request.priority, inserted=0) - hit - loaded
        self.settle()
        from_pool = max(0, min(hit + loaded, first + fetched) - first) if fetched else 0
        return hit, loaded - from_pool, from_pool

    def grow(self, row, request):
        done = super().grow(row, request)
        self.settle()
        return done

    def finish(self, row, request, grown):
        super().finish(row, request, grown)
        self.settle()


def serve(requests, tiers, policy="lru", write_policy="write_through", block_tokens=512, grows=False, **schedule):
    """As `radix.serve`, with tiers (device, host) and hits of each request by source."""
    return radix.serve_with(HiCache(*tiers, policy, write_policy, block_tokens), requests, grows, **schedule)
