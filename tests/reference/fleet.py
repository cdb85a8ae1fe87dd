"""Several LRU caches behind a router, in plain Python: one request at a time, or each live for a known time."""

import hashlib

from tests.reference.dynamo_times import MASK, mix
from tests.reference.sglang_gateway import Gateway


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


def sticky(key, first, taking):
    """The instance of a key: its remainder among the first ones, if nothing has changed; else the highest weight.

    The instance of the remainder has the highest weight of the first ones: the two change places.
    """
    weights = {number: mix((key + mix(number + 1)) & MASK) for number in {*range(first), *taking}}
    home, highest = key % first, max(range(first), key=lambda number: (weights[number], -number))
    weights[home], weights[highest] = weights[highest], weights[home]
    return max(taking, key=lambda number: (weights[number], -number))


def text_of(trace, row):
    """A prompt as SGLang's gateway sees it: a block is a run of one character for each of its tokens."""
    prompt, size = trace.prompt(row).tolist(), trace.block_size
    last = max(1, min(size, int(trace.input_length[row]) - (len(prompt) - 1) * size))
    return "".join(chr(0x4E00 + block) * (size if at + 1 < len(prompt) else last) for at, block in enumerate(prompt))


def fleet(trace, count, router, capacity, ms_per_token=None, spans=None):
    """(hit blocks, instance) of each request; with `ms_per_token` a request is live that long per output token.

    `spans` has (takes from, drains), in seconds, of each instance of a fleet that begins with `count`.
    """
    spans = spans or [(0.0, float("inf"))] * count
    caches, live = [Cache(capacity) for _ in spans], []  # live: (end, row, instance)
    sent, hits, instances, place = [0] * len(spans), [], [], 0
    gateway = Gateway(range(count))
    for row in range(len(trace)):
        at = float(trace.timestamp[row]) / 1000
        taking = [number for number, (takes, drains) in enumerate(spans) if takes <= at < drains]
        turn = taking[place % len(taking)]
        place = place % len(taking) + 1
        prompt, now = trace.prompt(row).tolist(), float(trace.timestamp[row])
        for one in sorted(live):
            if one[0] <= now:
                live.remove(one)
                caches[one[2]].finish(trace.prompt(one[1]).tolist())
        tokens = int(trace.input_length[row])
        if router == "sglang-cache-aware":
            for number in sorted({*taking} - {*gateway.workers}):
                gateway.add(number)
            for number in sorted({*gateway.workers} - {*taking}):
                gateway.remove(number)
            gateway.workers.sort()
            gateway.load = {number: sum(i == number for _, _, i in live) for number in taking}
            best = gateway.send(text_of(trace, row))
        costs = {}
        for number in taking:
            cache = caches[number]
            load = sum(int(trace.input_length[r]) for _, r, i in live if i == number)
            batch = sum(i == number for _, _, i in live)
            hit = cache.peek(prompt)
            costs[number] = {
                "round-robin": 0 if number == turn else 1,
                "sticky": 0 if number == sticky(key_of(trace, row), count, taking) else 1,
                "sglang-cache-aware": 0 if router == "sglang-cache-aware" and number == best else 1,
                "overlap": -hit,
                "least-loaded": (load, sent[number]),
                "kv-aware": max(0, tokens / trace.block_size - hit) + load / trace.block_size,
                "lmetric": max(0, tokens - hit * trace.block_size) * (batch + 1),
            }[router]  # fmt: skip
        chosen = min(taking, key=costs.__getitem__)
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
