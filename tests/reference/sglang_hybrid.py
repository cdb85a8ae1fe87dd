"""SGLang's tree for models with sliding windows, over nodes and lists: it defines cache/core/window_radix.py.

There are two pools: pages of the layers of full attention, and pages of the layers with a window. Each node has pages
of the first; it has pages of the second, or has lost them. A request can resume at a node if the last `window` pages up
to its end have both. A request locks its path, and the pages of windows of as many nodes as hold the last window.
"""

from dataclasses import dataclass
from math import inf

from tests.reference.radix import Node, Radix


@dataclass(eq=False)
class WindowNode(Node):
    windows: bool = False  # whether it has its pages of windows
    window_locks: int = 0


def depth(node):
    return len(node.run) + depth(node.parent) if node.parent else 0


class WindowRadix(Radix):
    def __init__(self, capacity, second, window, policy):
        super().__init__(capacity, policy)
        self.free_second, self.window = second, window
        self.live = {}  # request -> pages that the tree has of it (protected, inserted), and of windows freed
        self.recent = []  # nodes with pages of windows, the most recent first

    def split(self, node, length):
        upper = WindowNode(
            node.run[:length], node.parent, next(self.clock), node.created, node.hits, node.priority, node.locks,
            [node], node.windows, node.window_locks,
        )  # fmt: skip
        if node.windows:
            self.recent.insert(self.recent.index(node) + 1, upper)
        node.used = next(self.clock)
        node.parent.children[node.parent.children.index(node)] = upper
        node.run, node.parent = node.run[length:], upper
        return upper

    def next(self, node, path):
        """(The child that continues the path, how much of its run is on the path), or None."""
        child = self.child(node, path[0]) if path else None
        if not child:
            return None
        same = 0
        while same < len(child.run) and path[same : same + 1] == [child.run[same]]:
            same += 1
        return child, same

    def match(self, path):
        """(The nodes up to the last at which a request can resume, resident pages of the path in the first pool)."""
        node, nodes, resident, behind, best = self.root, [], 0, inf, 0
        while step := self.next(node, path[resident:]):
            node, same = step
            whole = same == len(node.run)
            node = node if whole else self.split(node, same)
            resident += same
            nodes.append(node)
            behind = behind + same if node.windows else 0
            if node.windows and behind >= self.window:
                best = len(nodes)
            if not whole:
                break
        if best:
            self.refresh(nodes[best - 1])
        for node in nodes[:best]:
            node.used = next(self.clock)
        return nodes[:best], resident

    def refresh(self, node):
        """Make the nodes of the last window, and a page more, the most recent, the deepest first."""
        passed, front = 0, 0
        while node is not self.root and passed < self.window + 1:
            if node.windows:
                self.recent.remove(node)
                self.recent.insert(front, node)
                front += 1
            passed += len(node.run)
            node = node.parent

    def attach(self, node):
        """Give a node its pages of windows."""
        node.windows = True
        self.recent.insert(0, node)

    def lock_window(self, node):
        """Lock the nodes that hold the last window; returns the depth at which they begin."""
        covered, end = 0, depth(node)
        while node is not self.root and covered < self.window:
            node.window_locks += 1
            covered += len(node.run)
            node = node.parent
        return end - covered

    def unlock_window(self, node, start):
        position = depth(node)
        while position > start:
            node.window_locks -= 1
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
        nodes = list(self.nodes())
        if pages > self.free + sum(len(node.run) for node in nodes if not node.locks):
            return False
        if pages > self.free_second + sum(len(n.run) for n in nodes if n.windows and not n.window_locks):
            return False
        while self.free < pages:
            self.evict(min((node for node in self.nodes() if not node.locks and not node.children), key=self.key))
        while self.free_second < pages:
            victim = next(node for node in reversed(self.recent) if not node.window_locks)
            if victim.locks or victim.children:
                self.lose(victim)
            else:
                self.evict(victim)
        self.free -= pages
        self.free_second -= pages
        return True

    def lose(self, node):
        """Free a node's pages of windows."""
        node.windows = False
        self.recent.remove(node)
        self.free_second += len(node.run)

    def evict(self, node):
        """Free a leaf with all its pages."""
        if node.windows:
            self.lose(node)
        node.parent.children.remove(node)
        self.free += len(node.run)
        self.evictions += len(node.run)

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
                if node.windows:
                    self.free_second += max(0, done - max(first, protected))
                elif first < done:
                    if first > begin:
                        self.split(node, first - begin)
                    self.attach(node)
            node.hits += done > inserted
        if done < len(path):
            now = next(self.clock)
            leaf = WindowNode(path[done:], node, now, now, priority=priority)
            node.children.append(leaf)
            node, first = leaf, max(done, freed)
            if first < len(path):
                if first > done:
                    self.split(leaf, first - done)
                if len(leaf.run) > self.window:  # a lock shall hold one window only
                    self.attach(self.split(leaf, len(leaf.run) - self.window))
                self.attach(leaf)
        if node is not self.root:
            self.refresh(node)
        node.hits += done < len(path)
        self.drop(self.held[row])
        self.held[row] = self.hold(node)
        state["protected"] = state["inserted"] = len(path)

    def admit(self, row, request):
        """Hit pages, or None if there is no room."""
        nodes, resident = self.match(request.path[: request.limit]) if request.limit else ([], 0)
        hit, node = sum(len(node.run) for node in nodes), (nodes or [self.root])[-1]
        held = self.hold(node)
        if not self.room(len(request.path) + request.tail - hit):
            self.drop(held)
            return None
        self.held[row] = held
        self.live[row] = {"protected": hit, "freed": 0, "inserted": 0}
        if resident > hit:  # publish up to the end of what is shared, so that the next request can resume there
            self.free_outside(row, resident, partial=False)
            self.publish(row, request.path[:resident], request.priority)
            self.free_outside(row, len(request.path), partial=request.tail)
        else:
            self.free_outside(row, len(request.path), partial=request.tail)
            self.publish(row, request.path, request.priority)
        return hit

    def finish(self, row, request, grown):
        self.publish(row, request.path, request.priority)
        self.drop(self.held.pop(row))
        del self.live[row]
        self.free += request.tail
        self.free_second += request.tail
