"""SGLang's tree for models of two kinds of layers, over nodes and lists: it defines cache/core/{window,state}_radix.py.

There are two pools: pages of the layers of full attention, and pages of sliding windows, or states. Each node has pages
of the first; it has its part of the second, or has lost it. A request resumes where the second part allows it.
"""

from dataclasses import dataclass
from math import inf

from tests.reference.radix import Node, Radix, shared


@dataclass(eq=False)
class HybridNode(Node):
    kept: bool = False  # whether it has its part of the second pool
    second_locks: int = 0


def depth(node):
    return len(node.run) + depth(node.parent) if node.parent else 0


class HybridRadix(Radix):
    kind = HybridNode

    def __init__(self, capacity, second, policy):
        super().__init__(capacity, policy)
        self.free_second = second
        self.recent = []  # nodes with a part of the second pool, the most recent first

    def size(self, node):
        """What a node's part of the second pool takes there."""
        return len(node.run)

    def next(self, node, path):
        """(The child that continues the path, how much of its run is on the path), or None."""
        child = node.children.get(path[0]) if path else None
        return (child, shared(child.run, path, 0)) if child else None

    def walk(self, path):
        """(The nodes of the longest prefix that the first pool has, its pages). It uses none of them."""
        node, nodes, done = self.root, [], 0
        while step := self.next(node, path[done:]):
            node, same = step
            node = node if same == len(node.run) else self.split(node, same)
            nodes.append(node)
            done += same
        return nodes, done

    def keep(self, node):
        """Give a node its part of the second pool."""
        node.kept = True
        self.recent.insert(0, node)

    def lose(self, node):
        """Free a node's part of the second pool."""
        node.kept = False
        self.recent.remove(node)
        self.free_second += self.size(node)

    def evict(self, leaf):
        """Free a leaf with its part of the second pool."""
        if leaf.kept:
            self.lose(leaf)
        super().evict(leaf)

    def can_take(self, pages):
        return pages <= self.free + self.evictable()

    def can_take_second(self, number):
        return number <= self.free_second + sum(self.size(node) for node in self.recent if not node.second_locks)

    def take_first(self, pages):
        self.make_room(pages)
        self.free -= pages

    def take_second(self, number):
        while self.free_second < number:
            victim = next(node for node in reversed(self.recent) if not node.second_locks)
            if victim.locks or victim.children:
                self.lose(victim)
            else:
                self.evict(victim)
        self.free_second -= number


class WindowRadix(HybridRadix):
    """The second pool has pages of windows. A request resumes where the last `window` pages have both parts.

    It locks its path, and the windows of as many nodes as hold the last window.
    """

    def __init__(self, capacity, second, window, policy, step=0):
        super().__init__(capacity, second, policy)
        self.window, self.step = window, step
        self.live = {}  # request -> pages that the tree has of it (protected, inserted), and of windows freed

    def split(self, node, length):
        upper = super().split(node, length)
        if node.kept:
            self.recent.insert(self.recent.index(node) + 1, upper)
        return upper

    def match(self, path):
        """(The nodes up to the last at which a request can resume, resident pages of the path in the first pool)."""
        nodes, resident = self.walk(path)
        behind, best = inf, 0
        for place, node in enumerate(nodes):
            behind = behind + len(node.run) if node.kept else 0
            if behind >= self.window:
                best = place + 1
        if best:
            self.refresh(nodes[best - 1])
        for node in nodes[:best]:
            node.used = next(self.clock)
        return nodes[:best], resident

    def refresh(self, node):
        """Make the nodes of the last window, and a page more, the most recent, the deepest first."""
        passed, front = 0, 0
        while node is not self.root and passed < self.window + 1:
            if node.kept:
                self.recent.remove(node)
                self.recent.insert(front, node)
                front += 1
            passed += len(node.run)
            node = node.parent

    def lock_window(self, node):
        """Lock the nodes that hold the last window; returns the depth at which they begin."""
        covered, end = 0, depth(node)
        while node is not self.root and covered < self.window:
            node.second_locks += 1
            covered += len(node.run)
            node = node.parent
        return end - covered

    def unlock_window(self, node, start):
        position = depth(node)
        while position > start:
            node.second_locks -= 1
            position -= len(node.run)
            node = node.parent

    def hold(self, node):
        """Lock a path and its last window."""
        self.lock(node, 1)
        return node, self.lock_window(node)

    def drop(self, held):
        node, start = held
        self.unlock_window(node, start)
        self.lock(node, -1)

    def room(self, pages):
        """Take pages of both pools, evicting for them. False, and nothing evicted, if there are too few."""
        if not self.can_take(pages) or not self.can_take_second(pages):
            return False
        self.take_first(pages)
        self.take_second(pages)
        return True

    def free_outside(self, row, pages, partial):
        """Free the windows' pages of a request that a next token at the end of `pages` will not see."""
        state = self.live[row]
        first = max(state["freed"], state["protected"])
        last = pages - (not partial) - self.window
        if last > first:
            self.free_second += last - first
            state["freed"] = last

    def publish(self, row, path, priority):
        """Insert a request's path, from its protected part on, and lock it."""
        state, node, done = self.live[row], self.root, 0
        protected, freed, inserted = state["protected"], state["freed"], state["inserted"]
        next(self.clock)
        while step := self.next(node, path[done:]):
            node, same = step
            node.used = next(self.clock)
            if same < len(node.run):
                node = self.split(node, same)
            node.priority = max(node.priority, priority)
            begin, done = done, done + same
            if done > protected:
                first = max(begin, freed)
                self.free += done - max(begin, protected)
                if node.kept:
                    self.free_second += max(0, done - max(first, protected))
                elif first < done:
                    if first > begin:
                        self.split(node, first - begin)
                    self.keep(node)
            node.hits += done > inserted
        if done < len(path):
            node = leaf = self.leaf(node, path[done:], priority=priority)
            first = max(done, freed)
            if first < len(path):
                if first > done:
                    self.split(leaf, first - done)
                if len(leaf.run) > self.window:  # a lock shall hold one window only
                    self.keep(self.split(leaf, len(leaf.run) - self.window))
                self.keep(leaf)
        if node is not self.root:
            self.refresh(node)
        node.hits += done < len(path)
        self.drop(self.held[row])
        self.held[row] = self.hold(node)
        state["protected"] = state["inserted"] = len(path)

    def admit(self, row, request):
        """Hit pages, or None if there is no room; the next call goes on with the step that had none."""
        if row in self.live:
            return self.compute(row, request)
        nodes, resident = self.match(request.path[: request.limit]) if request.limit else ([], 0)
        hit, node = sum(len(node.run) for node in nodes), (nodes or [self.root])[-1]
        self.held[row] = self.hold(node)
        self.live[row] = {"protected": hit, "freed": 0, "inserted": 0, "resident": resident, "done": hit, "hit": hit}
        return self.compute(row, request)

    def compute(self, row, request):
        """Compute a prompt in steps and publish it after each; its hit pages, or None if a step has no room."""
        state, pages, first = self.live[row], len(request.path), True
        while first or state["done"] < pages + request.tail:
            end = min(state["done"] + (self.step or pages + request.tail), pages + request.tail)
            if not self.room(end - state["done"]):
                if state["done"] == state["hit"]:
                    self.drop(self.held.pop(row))
                    del self.live[row]
                return None
            state["done"], first = end, False
            partial, end = end > pages, min(end, pages)
            if state["protected"] < state["resident"] <= end:
                # publish up to the end of what is shared, so that the next request can resume there
                self.free_outside(row, state["resident"], partial=False)
                self.publish(row, request.path[: state["resident"]], request.priority)
                self.free_outside(row, end, partial)
            else:
                self.free_outside(row, end, partial)
                self.publish(row, request.path[:end], request.priority)
        return state["hit"]

    def finish(self, row, request, grown):
        self.publish(row, request.path, request.priority)
        self.drop(self.held.pop(row))
        del self.live[row]
        self.free += request.tail
        self.free_second += request.tail


STATES = 3  # of a live request: its own, and two that a step records in turns


class StateRadix(HybridRadix):
    """The second pool has states. A node has one or none, at its end, and requests resume where there is one."""

    def __init__(self, capacity, second, every, policy, step=0):
        super().__init__(capacity, second, policy)
        self.every, self.seats, self.step = every, second // 5, step
        self.live = {}  # request -> (hit, resident, computed) pages

    def size(self, node):
        return 1

    def split(self, node, length):
        upper = super().split(node, length)
        upper.kept, upper.second_locks = False, 0
        return upper

    def match(self, path):
        """(The nodes up to the last with a state, resident pages of the path in the first pool)."""
        nodes, resident = self.walk(path)
        best = max((place + 1 for place, node in enumerate(nodes) if node.kept), default=0)
        if best:
            self.recent.remove(nodes[best - 1])
            self.recent.insert(0, nodes[best - 1])
        for node in nodes[:best]:
            node.used = next(self.clock)
        return nodes[:best], resident

    def hold(self, node, step):
        self.lock(node, step)
        if node is not self.root:
            node.second_locks += step

    def publish(self, path, priority, protected, inserted):
        """Insert a path, whose last node gets a state; (the node, whether it has one already)."""
        node, done = self.root, 0
        next(self.clock)
        while step := self.next(node, path[done:]):
            node, same = step
            node.used = next(self.clock)
            node = node if same == len(node.run) else self.split(node, same)
            node.priority = max(node.priority, priority)
            self.free += max(0, done + same - max(done, protected))
            done += same
            node.hits += done > inserted
        if done < len(path):
            node = self.leaf(node, path[done:], hits=1, priority=priority)
            self.keep(node)
            return node, False
        node.used = next(self.clock)
        if not node.kept:
            self.keep(node)
            return node, False
        self.recent.remove(node)
        self.recent.insert(0, node)
        return node, True

    def admit(self, row, request):
        """Hit pages, or None if there is no room; the next call goes on with the step that had none."""
        if row in self.live:
            return self.compute(row, request)
        if len(self.held) >= self.seats:
            return None
        nodes, resident = self.match(request.path[: request.limit]) if request.limit else ([], 0)
        hit, node = sum(len(node.run) for node in nodes), (nodes or [self.root])[-1]
        self.hold(node, 1)
        if hit:
            self.take_second(1)
        self.held[row], self.live[row] = (node, hit, 0), (hit, resident, hit)
        return self.compute(row, request)

    def compute(self, row, request):
        """Compute a prompt in steps and publish it after each; its hit pages, or None if a step has no room."""
        hit, resident, done = self.live[row]
        pages, first = len(request.path), done == self.live[row][0]
        while first or done < pages + request.tail:
            end = min(done + (self.step or pages + request.tail), pages + request.tail)
            node, protected, inserted = self.held[row]
            if not self.can_take(end - done):
                if first:
                    self.hold(node, -1)
                    self.free_second += hit > 0
                    del self.held[row], self.live[row]
                return None
            if first:
                self.take_second(STATES - (hit > 0))
            self.take_first(end - done)
            at = resident - resident % self.every
            if not done < at <= end or (at - done) % self.every:
                at = done + (min(end, pages) - done) // self.every * self.every
            if at > done:
                self.take_second(1)
                last, has_one = self.publish(request.path[:at], request.priority, protected, inserted)
                self.free_second += has_one
                self.hold(node, -1)
                self.hold(last, 1)
                self.held[row] = last, at, at
            done, first = end, False
            self.live[row] = hit, resident, done
        return hit

    def finish(self, row, request, grown):
        node, end, _ = self.held.pop(row)
        del self.live[row]
        self.hold(node, -1)
        self.free_second += STATES
        self.free += len(request.path) - end + request.tail
