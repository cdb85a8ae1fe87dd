"""The policy cache_aware of SGLang's model gateway (sglang-router 0.3.2), in plain Python, on characters.

One radix tree holds the prompts of all workers; each node knows the workers whose prompts reach it, and the worker that
made it. A request goes to the worker that made the deepest node that it matches, if the match is more than a share of
the prompt; else to the worker with the fewest requests in flight. Where the requests are uneven, it always goes there.
"""

import heapq
from itertools import count

import numpy as np

DEFAULTS = {
    "cache_threshold": 0.3, "balance_abs_threshold": 64, "balance_rel_threshold": 1.5, "max_tree_size": 2**26,
}  # fmt: skip


class Node:
    """A run of characters. `times` has each worker's last use; that of a node on the way to a leaf can be 0."""

    def __init__(self, text="", parent=None, times=None, maker=None):
        self.text, self.parent, self.maker = text, parent, maker
        self.children, self.times = {}, times or {}


class Gateway:
    """The workers, by number; those with a lower number are asked first."""

    def __init__(self, workers, **options):
        self.options = DEFAULTS | options
        self.workers, self.root = list(workers), Node()
        self.epoch = count(len(self.workers))  # each worker is inserted with an empty prompt
        self.size, self.load = dict.fromkeys(self.workers, 0), dict.fromkeys(self.workers, 0)
        self.drawn = False  # whether a choice was made that the gateway draws, or that its heap makes

    def send(self, text):
        """The worker of a prompt."""
        loads = [self.load[worker] for worker in self.workers]
        least, most = min(loads), max(loads)
        idle = self.workers[loads.index(least)]
        ratio = np.float32(self.options["balance_rel_threshold"])
        uneven = most - least > self.options["balance_abs_threshold"]
        worker = idle
        if not (uneven and np.float32(most) > np.float32(least) * ratio):
            matched, maker = self.match(text)
            if text and np.float32(matched) / np.float32(len(text)) > np.float32(self.options["cache_threshold"]):
                worker = maker
        self.insert(text, worker)
        self.load[worker] += 1
        return worker

    def end(self, worker):
        """A request of a worker has ended."""
        self.load[worker] -= 1

    def add(self, worker):
        """A worker starts."""
        self.workers.append(worker)
        self.size[worker] = self.load[worker] = 0
        next(self.epoch)

    def remove(self, worker):
        """A worker takes no more requests: the tree forgets it."""
        self.workers.remove(worker)
        nodes = [self.root]
        for node in nodes:
            nodes += node.children.values()
        for node in reversed(nodes):
            if node.times.pop(worker, None) is not None and not node.times and not node.children and node.parent:
                del node.parent.children[node.text[0]]

    def match(self, text):
        """The characters that match, and the worker that made the deepest node of them."""
        node, matched = self.root, 0
        while matched < len(text) and text[matched] in node.children:
            node = node.children[text[matched]]
            same = shared(text[matched:], node.text)
            matched += same
            if same < len(node.text):
                break
        if node.maker not in node.times and node is not self.root:
            node.maker = min(node.times)
            self.drawn |= len(node.times) > 1
        epoch = next(self.epoch)
        if epoch % 8 == 0 and node.maker in node.times:
            node.times[node.maker] = epoch
        return matched, node.maker

    def insert(self, text, worker):
        """Add a prompt of a worker."""
        node, at = self.root, 0
        while at < len(text):
            child = node.children.get(text[at])
            if child is None:
                node.children[text[at]] = Node(text[at:], node, {worker: next(self.epoch)}, worker)
                self.size[worker] += len(text) - at
                return
            same = shared(text[at:], child.text)
            if same < len(child.text):
                upper = Node(child.text[:same], node, dict(child.times), child.maker)
                child.text, child.parent = child.text[same:], upper
                upper.children[child.text[0]], node.children[text[at]] = child, upper
                child = upper
            if worker not in child.times:
                child.times[worker] = 0
                self.size[worker] += len(child.text)
            node, at = child, at + same
        node.times[worker] = next(self.epoch)

    def evict(self):
        """Take the least recently used leaves from workers with too many characters."""
        nodes = [self.root]
        for node in nodes:
            nodes += node.children.values()
        heap = [(node.times[worker], node.text[-1], worker, place) for place, node in enumerate(nodes)
                for worker in leaf_of(node) if node.parent]  # fmt: skip
        where = {node: place for place, node in enumerate(nodes)}
        heapq.heapify(heap)
        oldest = {}
        while heap:
            age, _, worker, place = heapq.heappop(heap)
            node = nodes[place]
            if self.size[worker] <= self.options["max_tree_size"]:
                self.drawn |= oldest.get(worker) == age  # a node of the same age was taken in its place
                continue
            oldest[worker] = age
            self.size[worker] -= len(node.text)
            del node.times[worker]
            if not node.children and not node.times:
                del node.parent.children[node.text[0]]
            above = node.parent
            if above.parent and worker in leaf_of(above):
                heapq.heappush(heap, (above.times[worker], above.text[-1], worker, where[above]))


def leaf_of(node):
    """The workers for which a node is a leaf."""
    return [worker for worker in node.times if not any(worker in child.times for child in node.children.values())]


def shared(one, other):
    """The characters with which two texts begin alike."""
    least = min(len(one), len(other))
    return next((place for place in range(least) if one[place] != other[place]), least)
