"""SGLang's radix cache over nodes and lists: the definition of the compiled tree (cache/core/radix.py).

A node is a run of block ids. A match refreshes each node on its path and splits the last one at the end of the match;
the upper part is the new node. A lock applies to a node and all its ancestors. Eviction removes whole unlocked leaves,
smallest key first; a parent becomes a leaf when its last child is evicted.

`unified` is SGLang's UnifiedRadixCache, else its RadixCache: they differ in the times of use and of creation.
"""

from copy import copy
from dataclasses import dataclass, field
from itertools import chain, count

KEYS = {
    "lru": lambda node: (node.used, 0),
    "mru": lambda node: (-node.used, 0),
    "fifo": lambda node: (node.created, 0),
    "filo": lambda node: (-node.created, 0),
    "lfu": lambda node: (node.hits, node.used),
    "slru": lambda node: (node.hits >= 2, node.used),
    "priority": lambda node: (node.priority, node.used),
}


@dataclass
class Request:
    """The demand of one request: the hashed blocks of its prompt, and the blocks of its output."""

    path: list
    limit: int  # maximum number of them that may hit
    tail: int = 0  # 1 if a block without a hash follows
    grown: list = field(default_factory=list)  # hashed blocks that the output adds
    grown_tail: int = 0
    priority: int = 0


@dataclass(eq=False)
class Node:
    run: list
    parent: "Node | None"
    used: int
    created: int
    hits: int = 0
    priority: int = 0
    locks: int = 0
    children: dict = field(default_factory=dict)  # first block -> node


class Radix:
    kind = Node

    def __init__(self, capacity, policy, unified=True):
        self.free, self.key, self.unified = capacity, KEYS[policy], unified
        self.clock = count(1)  # each value is used once
        self.root = self.kind([], None, 0, 0)
        self.evictions = 0
        self.held = {}  # live request -> (node it locks, blocks without a hash)

    def nodes(self, node=None):
        """All nodes below one, or of the tree, as a list."""
        nodes = [node or self.root]
        for each in nodes:
            nodes.extend(each.children.values())
        return nodes[1:]

    def split(self, node, length):
        """Move the first `length` blocks of a node to a new parent node, else like it; returns that."""
        upper = copy(node)
        upper.run, upper.children, upper.used = node.run[:length], {node.run[length]: node}, next(self.clock)
        if self.unified:
            node.used = next(self.clock)
        else:
            upper.created = upper.used
        node.run, node.parent = node.run[length:], upper
        upper.parent.children[upper.run[0]] = upper
        return upper

    def leaf(self, parent, run, **values):
        """A new node below another one."""
        now = next(self.clock)
        node = parent.children[run[0]] = self.kind(run, parent, now, now, **values)
        return node

    def walk(self, path):
        """The nodes of the longest resident prefix of a path. Refreshes each, and splits the last one at its end."""
        now, node, nodes, done = next(self.clock), self.root, [], 0
        while done < len(path) and path[done] in node.children:
            node = node.children[path[done]]
            node.used = next(self.clock) if self.unified else now
            same = shared(node.run, path, done)
            done += same
            if same < len(node.run):
                node = self.split(node, same)
            nodes.append(node)
        return nodes

    def match(self, path):
        """The nodes of the longest resident prefix of a path, which are used now, the deepest last."""
        nodes = self.walk(path)
        for node in nodes if self.unified else ():
            node.used = next(self.clock)
        return nodes

    def insert(self, path, priority=0, inserted=0):
        """Insert a path; (its resident blocks, its last node). Nodes beyond `inserted` blocks count a hit."""
        node, done = self.root, 0
        for node in self.walk(path):
            done += len(node.run)
            node.priority = max(node.priority, priority)
            node.hits += done > inserted
        if done < len(path):
            node = self.leaf(node, path[done:], hits=int(len(path) > inserted), priority=priority)
        return done, node

    def lock(self, node, step=1):
        while node is not self.root:
            node.locks += step
            node = node.parent

    def unlock(self, node):
        if node is not None:
            self.lock(node, -1)

    def evictable(self):
        return sum(len(node.run) for node in self.nodes() if not node.locks)

    def remove(self, node):
        """Remove a leaf from the tree."""
        del node.parent.children[node.run[0]]

    def evict(self, leaf):
        self.remove(leaf)
        self.free += len(leaf.run)
        self.evictions += len(leaf.run)

    def make_room(self, blocks):
        """Evict leaves until so many blocks are free, or no leaf is left."""
        while self.free < blocks:
            leaves = [node for node in self.nodes() if not node.locks and not node.children]
            if not leaves:
                return
            self.evict(min(leaves, key=self.key))

    def room(self, blocks):
        """Take `blocks` blocks, evicting leaves if needed. False, and nothing evicted, if there are too few."""
        if blocks > self.free + self.evictable():
            return False
        self.make_room(blocks)
        self.free -= blocks
        return True

    def publish(self, row, path, priority, inserted, prompt=()):
        """Insert a live request's path and lock all of it; returns the number of its resident blocks."""
        resident, node = self.insert(path, priority, inserted)
        if 0 < len(prompt) < len(path):  # so that the output is evicted before the prompt
            self.insert(prompt, priority + 1, inserted=len(prompt))
        if not self.unified:
            self.match(path)
        self.unlock(self.held[row])
        self.lock(node)
        self.held[row] = node
        return resident

    def admit(self, row, request):
        """Hit blocks, or None if there is no room."""
        nodes = self.match(request.path[: request.limit]) if request.limit else []
        hit, node = sum(len(node.run) for node in nodes), (nodes or [self.root])[-1]
        self.lock(node)
        if not self.room(len(request.path) + request.tail - hit):
            self.unlock(node)
            return None
        self.held[row] = node
        self.free += self.publish(row, request.path, request.priority, inserted=0) - hit  # duplicates
        return hit

    def grow(self, row, request):
        return self.room(len(request.grown) + request.grown_tail - request.tail)

    def finish(self, row, request, grown):
        path = request.path + request.grown if grown else request.path
        resident = self.publish(row, path, request.priority, inserted=len(request.path), prompt=request.path)
        assert resident == len(request.path)
        self.unlock(self.held.pop(row))
        self.free += request.grown_tail if grown else request.tail


def shared(run, path, begin):
    """How many leading blocks are those of path[begin:]."""
    same = 0
    while same < len(run) and begin + same < len(path) and run[same] == path[begin + same]:
        same += 1
    return same


def serve(requests, capacity, policy="lru", grows=False, concurrency=1, arrival=None, end=None, unified=True):
    """(hits of each request, evicted blocks, requests freed early). With `end`, request r ends at end[r]."""
    return serve_with(Radix(capacity, policy, unified), requests, grows, concurrency, arrival, end)


def serve_with(cache, requests, grows=False, concurrency=1, arrival=None, end=None):
    """As `serve`, with a cache of one's own."""
    hits, early = run([cache], [0] * len(requests), requests, grows, concurrency, arrival, end)
    return hits, cache.evictions, early


def run(caches, instance, requests, grows=False, concurrency=1, arrival=None, end=None):
    """(hits of each request, requests freed early) of several caches; request r is served by instance[r]."""
    running, hits, early = [[] for _ in caches], [], 0

    def finish(row):
        running[instance[row]].remove(row)
        caches[instance[row]].finish(row, requests[row], grows)

    for row, request in enumerate(requests):
        cache, live = caches[instance[row]], running[instance[row]]
        if end is None:
            for ended in sorted(chain(*running))[: 1 - concurrency or None]:
                finish(ended)
        else:
            for ended in sorted(chain(*running), key=lambda row: (end[row], row)):
                if end[ended] <= arrival[row]:
                    finish(ended)
        hit = cache.admit(row, request)
        while hit is None:
            finish(live[0])
            early += 1
            hit = cache.admit(row, request)
        hits.append(hit)
        while grows and not cache.grow(row, request):
            finish(live[0])
            early += 1
        live.append(row)
    return hits, early
