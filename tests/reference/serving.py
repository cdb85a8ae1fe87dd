"""Serving simulation, step by step: instances with a queue, an LRU cache and a batch, behind a router."""

from .fleet import Cache, key_of


class Instance:
    def __init__(self, trace, rates, limits, capacity):
        self.trace, self.rates, self.limits, self.capacity = trace, rates, limits, capacity
        self.cache, self.now, self.busy = Cache(capacity), 0.0, 0.0
        self.queue, self.prefilling, self.decoding = [], [], {}  # decoding: row -> generated tokens
        self.done, self.times, self.hits, self.sent = {}, {}, {}, 0
        self.counts_before = (0, 0, 0, 0)

    def tokens(self, row):
        return int(self.trace.input_length[row])

    def output(self, row):
        return int(self.trace.output_length[row])

    def need(self, row):
        return int(self.trace.prompt_blocks[row])

    def active(self):
        return [*self.queue, *self.prefilling, *self.decoding]

    def reserved(self):
        return sum(self.need(row) for row in [*self.prefilling, *self.decoding])

    def counts(self):
        """What a router may know: prompt tokens there, those to compute, reserved blocks, and requests."""
        load = sum(self.tokens(row) for row in self.active())
        waiting = sum(self.tokens(row) for row in self.queue)
        prefill = waiting + sum(self.tokens(row) - self.done[row] for row in self.prefilling)
        return load, prefill, self.reserved(), len(self.active())

    def counts_at(self, now):
        """The counts after the last step that has ended at a time, with the requests that came since."""
        return self.counts_before if self.now > now else self.counts()

    def take(self, row, now):
        if not self.active():
            self.now = max(self.now, now)
        self.queue.append(row)
        self.sent += 1
        load, prefill, reserved, active = self.counts_before
        self.counts_before = (load + self.tokens(row), prefill + self.tokens(row), reserved, active + 1)

    def run(self, until):
        while self.now < until and self.active():
            self.counts_before = self.counts()
            self.step()

    def look_up(self, row):
        """A request is admitted: what it finds."""
        self.hits[row] = hit = self.cache.admit(self.trace.prompt(row).tolist())
        self.done[row] = max(0, min(hit * self.trace.block_size, self.tokens(row) - 1))

    def waits(self, row):
        """Whether a request that was admitted cannot be computed yet."""
        return False

    def step(self):
        """Run a step, if there is one; returns the requests whose prompts it has computed."""
        computed = []
        while self.queue and len(self.prefilling) + len(self.decoding) < self.limits.requests:
            row = self.queue[0]
            if self.reserved() + self.need(row) > self.capacity:
                break
            self.queue.pop(0)
            self.times[row] = [self.now]
            self.look_up(row)
            self.prefilling.append(row)
        budget = max(self.limits.step_tokens - len(self.decoding), 1)
        tokens, pairs, chunks = len(self.decoding), 0, []
        cached = sum(self.tokens(row) + given for row, given in self.decoding.items())
        for row in self.prefilling:
            if budget <= 0:
                break
            if self.waits(row):
                continue
            start = self.done[row]
            chunk = min(max(self.tokens(row) - start, 1), budget)
            pairs, cached, tokens = pairs + (start + chunk) ** 2 - start**2, cached + start, tokens + chunk
            budget -= chunk
            chunks.append((row, chunk))
        if not chunks and not self.decoding:
            return computed  # all wait
        seconds = self.step_seconds(tokens, pairs, cached, len(chunks) + len(self.decoding))
        if chunks and tokens > self.rates.graph_tokens:
            seconds = max(seconds, self.rates.launch_s)
        self.now, self.busy = self.now + seconds, self.busy + seconds
        for row in list(self.decoding):
            self.decoding[row] += 1
            if self.decoding[row] >= self.output(row):
                self.end(row)
        for row, chunk in chunks:
            self.done[row] += chunk
            if self.done[row] >= self.tokens(row):
                self.prefilling.remove(row)
                self.times[row].append(self.now)
                computed.append(row)
                self.decoding[row] = 1
                if self.output(row) <= 1:
                    self.end(row)
        return computed

    def step_seconds(self, tokens, pairs, cached, running):
        rates = self.rates
        seconds = max(rates.token_s * tokens + rates.pair_s * pairs, rates.step_s + rates.read_s * cached)
        seconds += rates.overhead_s + rates.request_s * running
        seconds += rates.attention_pair_s * pairs + rates.attention_read_s * cached
        touched = 1 - (1 - rates.expert_share) ** tokens
        seconds += max(rates.expert_token_s * tokens, rates.expert_step_s * touched)
        exchange = rates.exchange_s * tokens
        if rates.bulk_exchange_s:
            bulk = rates.bulk_exchange_step_s + rates.bulk_exchange_s * tokens
            exchange = bulk if 0 < rates.bulk_exchange_tokens < tokens else min(exchange, bulk)
        seconds += rates.window_read_s * min(cached, rates.window_tokens * running)
        seconds += rates.window_pair_s * min(pairs, 2 * rates.window_tokens * tokens)
        return seconds + exchange

    def end(self, row):
        del self.decoding[row]
        self.times[row].append(self.now)
        self.cache.finish(self.trace.prompt(row).tolist())


def entered(sent, tokens, rates, servers):
    """When requests reach the engine that are sent at these times, in order: the API server takes one at a time."""
    free, times = 0.0, []
    for at, prompt in zip(sent, tokens, strict=True):
        free = max(at, free) + (rates.front_request_s + rates.front_token_s * prompt) / servers
        times.append(free + rates.front_delay_s)
    return times


def serve(trace, rates, limits, count, router, capacity):
    """Each request's instance, hit blocks, and times (admitted, first token, ended); None if it is rejected."""
    fleet = [Instance(trace, rates, limits, capacity) for _ in range(count)]
    chosen_instances = []
    arrival = entered((trace.timestamp / 1000).tolist(), trace.input_length.tolist(), rates, count)
    for row, now in enumerate(arrival):
        for one in fleet:
            one.run(now)
        if int(trace.prompt_blocks[row]) > capacity:
            chosen_instances.append(None)
            continue
        size, prompt, tokens = trace.block_size, trace.prompt(row).tolist(), int(trace.input_length[row])
        costs = []
        for number, one in enumerate(fleet):
            hit = one.cache.peek(prompt)
            load, prefill, reserved, active = one.counts_at(now)
            costs.append({
                "round-robin": 0 if number == row % count else 1,
                "sticky": 0 if number == key_of(trace, row) % count else 1,
                "overlap": -hit,
                "least-loaded": (load, one.sent),
                "kv-aware": max(0, (prefill + tokens) / size - hit) + reserved,
                "lmetric": max(0, tokens - hit * size) * (active + 1),
            }[router])  # fmt: skip
        chosen = min(range(count), key=costs.__getitem__)
        fleet[chosen].take(row, now)
        chosen_instances.append(chosen)
    for one in fleet:
        one.run(float("inf"))
    return [
        None if i is None else (i, fleet[i].hits[row], *fleet[i].times[row]) for row, i in enumerate(chosen_instances)
    ]
