"""The front of a recency list as a Python list of runs, most recent first; finds every block by search."""


class LiveRecency:
    """Runs of requests, each with its blocks root first. Old runs are dropped when there is no room for a request."""

    def __init__(self, capacity, slots):
        self.capacity, self.room, self.slots = capacity, capacity + max(capacity // 4, 1), slots
        self.runs, self.used_slots, self.dropped, self.reach = [], 0, False, self.room

    @property
    def blocks(self):
        """The blocks of the list, most recent first."""
        return [block for run in self.runs for block in run]

    def request(self, path):
        """(runs that the path hits, known blocks, blocks in the list before); a run is (blocks, first rank, depth)."""
        whole, path = path, path[: self.capacity]
        if self.used_slots == self.slots:
            self._make_room(0)
        before, hits, depth = self.blocks, [], 0
        if not path:
            return hits, 0, before
        self.used_slots += 1
        while depth < len(path) and path[depth] in before:
            run = next(run for run in self.runs if path[depth] in run)
            blocks = 1
            while depth + blocks < len(path) and path[depth + blocks] in run:
                blocks += 1
            hits.append((blocks, before.index(path[depth]) + 1, depth))
            depth += blocks
        others = [[block for block in run if block not in path] for run in self.runs]
        self.runs = [run for run in [path[:depth], *others] if run]
        if len(self.blocks) + len(path) - depth > self.room:
            self._make_room(len(path) - depth)
            self.used_slots += not depth
        self.runs = [path, *self.runs[bool(depth) :]]
        if len(whole) > len(path):
            del self.runs[1:]
            self.used_slots, self.dropped, self.reach = 1, True, min(self.reach, len(path))
        return hits, depth, before

    def _make_room(self, needed):
        keep = len(self.runs)
        if len(self.blocks) + needed > self.room:
            sizes = [sum(map(len, self.runs[:count])) for count in range(len(self.runs) + 1)]
            enough = [count for count in range(len(self.runs) + 1) if sizes[count] >= self.capacity]
            keep = min(enough, default=len(self.runs))
            while sizes[keep] + needed > self.room:
                keep -= 1
        self._keep(keep)

    def _keep(self, count):
        count = min(count, self.slots // 2)
        if count < len(self.runs):
            del self.runs[count:]
            self.dropped, self.reach = True, min(self.reach, len(self.blocks))
        self.used_slots = len(self.runs)
