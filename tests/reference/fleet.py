"""Several LRU caches behind a router, in plain Python: one request at a time, or each live for a known time."""

import hashlib


class Cache:
    """An LRU cache whose capacity counts live and idle blocks. A request's blocks are released tail first."""

    def __init__(self, capacity):
        self.capacity, self.idle, self.pins = capacity, [], {}  # idle: the next victim first

    def peek(self, prompt):
        hit = 0
        while hit < len(prompt) and (prompt[hit] in self.pins or prompt[hit] in self.idle):
            hit += 1
        return hit

    def admit(self, prompt):
        """Hit blocks; None if there is no room."""
        hit = self.peek(prompt)
        missing = [block for block in prompt if block not in self.pins and block not in self.idle]
        held = set(self.pins) | {block for block in prompt if block in self.idle}
        if len(held) + len(missing) > self.capacity:
            return None
        for block in prompt:
            if block in self.idle:
                self.idle.remove(block)
            self.pins[block] = self.pins.get(block, 0) + 1
        while len(self.idle) + len(self.pins) > self.capacity:
            self.idle.pop(0)
        return hit

    def finish(self, prompt):
        for block in reversed(prompt):
            self.pins[block] -= 1
            if not self.pins[block]:
                del self.pins[block]
                self.idle.append(block)


def key_of(trace, row):
    """The key of a sticky router."""
    prompt = trace.prompt(row).tolist()
    key = prompt[min(1, len(prompt) - 1)] if prompt else row
    if trace.session is not None and trace.session[row] >= 0:
        key = int(trace.session[row])
    return int(hashlib.sha256(str(key).encode()).hexdigest(), 16) % 2**32


def fleet(trace, count, router, capacity, ms_per_token=None):
    """(hit blocks, instance) of each request; with `ms_per_token` a request is live that long per output token."""
    caches, live = [Cache(capacity) for _ in range(count)], []  # live: (end, row, instance)
    sent, hits, instances = [0] * count, [], []
    for row in range(len(trace)):
        prompt, now = trace.prompt(row).tolist(), float(trace.timestamp[row])
        for one in sorted(live):
            if one[0] <= now:
                live.remove(one)
                caches[one[2]].finish(trace.prompt(one[1]).tolist())
        tokens = int(trace.input_length[row])
        costs = []
        for number, cache in enumerate(caches):
            load = sum(int(trace.input_length[r]) for _, r, i in live if i == number)
            batch = sum(i == number for _, _, i in live)
            hit = cache.peek(prompt)
            costs.append({
                "round-robin": 0 if number == row % count else 1,
                "sticky": 0 if number == key_of(trace, row) % count else 1,
                "overlap": -hit,
                "least-loaded": (load, sent[number]),
                "kv-aware": max(0, tokens / trace.block_size - hit) + load / trace.block_size,
                "lmetric": max(0, tokens - hit * trace.block_size) * (batch + 1),
            }[router])  # fmt: skip
        chosen = min(range(count), key=costs.__getitem__)
        sent[chosen] += 1
        while (hit := caches[chosen].admit(prompt)) is None:
            oldest = min((r, e) for e, r, i in live if i == chosen)
            live.remove((oldest[1], oldest[0], chosen))
            caches[chosen].finish(trace.prompt(oldest[0]).tolist())
        hits.append(hit)
        instances.append(chosen)
        if ms_per_token is None:
            caches[chosen].finish(prompt)
        else:
            live.append((now + ms_per_token * int(trace.output_length[row]), row, chosen))
    return hits, instances
