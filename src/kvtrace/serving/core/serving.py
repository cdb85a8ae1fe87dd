"""Routers, and the simulations of several caches or instances behind one."""

from heapq import heappop, heappush

import cython
import numpy as np
from cython.cimports.kvtrace._native.mixing import mix
from cython.cimports.kvtrace.cache.core.engine import SERIAL, Engine
from cython.cimports.kvtrace.cache.core.lower_tier import DynamoClient
from cython.cimports.kvtrace.cache.core.places import Places
from cython.cimports.kvtrace.serving.core.instance import Instance, Requests, SessionLanes
from cython.cimports.libc.math import nextafter

# Routing: sends each request to one of several engines, in turn, by prefix overlap, or by load.
#
# The caller (a Fleet or a Serving) keeps each engine's load up to date. The router reads the loads and the caches.


KINDS = {"round-robin": TURNS, "sticky": KEYED, "overlap": OVERLAP, "least-loaded": LOADED, "kv-aware": AWARE,
         "lmetric": METRIC}  # fmt: skip


class Router:
    """Sends requests to engines. The caller keeps four counts of each engine up to date:

    `load` (prompt tokens of requests that have not ended), `waiting` (prompt tokens still to compute), `blocks` (live
    blocks) and `active` (requests that have not ended).
    """

    def __init__(self, engines, kind, key, tokens, size):
        count = len(engines)
        self.engines, self.count, self.kind, self.size = engines, count, KINDS[kind], size
        self.key = np.ascontiguousarray(key, dtype=np.int64)
        self.tokens = np.ascontiguousarray(tokens, dtype=np.int64)
        self.load = np.zeros(count, dtype=np.int64)
        self.waiting = np.zeros(count, dtype=np.int64)
        self.sent = np.zeros(count, dtype=np.int64)
        self.active = np.zeros(count, dtype=np.int64)
        self.blocks = np.zeros(count)
        self.turn, self.last_turn, self.place = 0, -1, 0
        self.takers, self.taking, self.first = np.arange(count, dtype=np.int32), count, count
        self.change_at, self.change_of, self.change_takes = np.zeros(0), np.zeros(0, np.int32), np.zeros(0, np.int8)
        self.changed = 0

    def change_fleet(self, first, at, of, takes):
        """Follow a schedule. The first engines take requests at time 0; then, at each of some times in seconds, one
        engine begins to take requests (1) or ends (0)."""
        self.first, self.taking = first, first
        self.change_at, self.change_of, self.change_takes = at, of, takes

    def follow(self, now):
        """Make the changes of the schedule that are due. Engines that take requests are in order of their numbers."""
        i: cython.int
        k: cython.int
        while self.changed < self.change_at.shape[0] and self.change_at[self.changed] <= now:
            i = self.change_of[self.changed]
            if self.change_takes[self.changed]:
                k = self.taking
                while k > 0 and self.takers[k - 1] > i:
                    self.takers[k] = self.takers[k - 1]
                    k -= 1
                self.takers[k] = i
                self.taking += 1
                self.meet(i)
            else:
                self.taking -= 1
                k = 0
                while self.takers[k] != i:
                    k += 1
                while k < self.taking:
                    self.takers[k] = self.takers[k + 1]
                    k += 1
                self.forget(i)
            self.changed += 1
        return 0

    def meet(self, i):
        """An engine takes requests from now on."""
        return 0

    def forget(self, i):
        """An engine takes no more requests."""
        return 0

    def send(self, row):
        """Route a request to the engine with the least cost. Ties: the first; least-loaded: fewest requests sent."""
        best: cython.int = 0
        i: cython.int
        k: cython.int
        cost: cython.double
        lowest: cython.double = 0
        if self.kind == TURNS:
            # the place in the list of engines moves on, also while the list changes, as Dynamo's does
            self.place = (self.place + self.turn - self.last_turn - 1) % self.taking
            best = self.takers[self.place]
            self.place += 1
            self.last_turn = self.turn
        elif self.kind == KEYED:
            best = self._keyed(row)
        else:
            for k in range(self.taking):
                i = self.takers[k]
                cost = self._cost(row, i)
                if (
                    k == 0
                    or cost < lowest
                    or (cost == lowest and self.kind == LOADED and self.sent[i] < self.sent[best])
                ):
                    best, lowest = i, cost
        self.sent[best] += 1
        return best

    def _keyed(self, row):
        """The engine of a key: its remainder. If that drains or others start, the highest random weight (Thaler and
        Ravishankar, 1998), so that only keys of engines that drain move, and keys to those that start.

        The remainder's engine has the highest weight of the first ones: it has changed places with that one.
        """
        key: cython.ulonglong = self.key[row]
        home: cython.int = cython.cast(cython.int, self.key[row] % self.first)
        best: cython.int = 0
        highest: cython.int = 0  # of the first engines
        i: cython.int
        k: cython.int
        if self.change_at.shape[0] == 0:
            return home
        for i in range(1, self.first):
            if _weight(key, i) > _weight(key, highest):
                highest = i
        for k in range(self.taking):
            i = self.takers[k]
            if k == 0 or _weight(key, _swapped(i, home, highest)) > _weight(key, _swapped(best, home, highest)):
                best = i
        return best

    def _cost(self, row, i):
        engine: Engine
        hit: cython.longlong
        size: cython.double = self.size
        if self.kind == LOADED:
            return self.load[i]
        engine = self.engines[i]
        hit = engine.peek(row)
        if self.kind == OVERLAP:
            return -hit
        if self.kind == AWARE:
            return max(0.0, (self.waiting[i] + self.tokens[row]) / size - hit) + self.blocks[i]
        return cython.cast(cython.double, max(0, self.tokens[row] - hit * self.size)) * (self.active[i] + 1)


def _weight(key, i):
    """The weight of an engine for a key."""
    return mix(key + mix(i + 1))


def _swapped(i, one, other):
    """The number, or the other one of a pair that has changed places."""
    return other if i == one else one if i == other else i


NOBODY = cython.declare(cython.int, -1)
NEVER = cython.declare(cython.double, 1e300)
ROLES = {"both": BOTH, "prefill": PREFILLS, "decode": DECODES}  # of the workers of a DynamoRouter


class DynamoRouter(Router):
    """Dynamo's KV router (ai-dynamo-runtime 1.6.1, lib/kv-router/src/scheduling/selector): the worker of least cost.

    The cost of a worker, in blocks: (prompt tokens there that wait for their prefill + prompt tokens of the request
    that do not hit) / block size + distinct full blocks of active prompts, with those of the request. Ties are drawn at
    random. The router learns of a step's blocks, first tokens and ends when the step ends; requests of one instant are
    routed before any of them is cached. After the blocks of the worker, each block that its tier has counts as three
    quarters of one.

    Of workers that only prefill, it counts no active blocks; of those that only decode, it counts all full blocks of
    active prompts, shared ones too, and nothing else. Twins: tests/reference/dynamo_times.py,
    tests/reference/dynamo_tiers.py, tests/reference/dynamo_disaggregated.py.
    """

    def __init__(self, engines, requests: Requests, blocks, size, seed=0, winner=None, role="both"):
        rows: cython.Py_ssize_t = requests.tokens.shape[0]
        Router.__init__(self, engines, "round-robin", np.zeros(rows, np.int64), requests.tokens, size)
        self.requests, self.seed = requests, seed
        self.winner = np.full(rows, -1, np.int32) if winner is None else np.ascontiguousarray(winner, np.int32)
        self.role = ROLES[role]
        self.uses = np.zeros((self.count, max(1, blocks) if self.role == BOTH else 1), np.int32)
        self.distinct, self.uncomputed = np.zeros((2, self.count), np.int64)
        self.brought, self.least = np.zeros((2, rows), np.int64)
        self.newest, self.older = np.full(self.count, -1, np.int32), np.full(rows, -1, np.int32)
        self.ties, self.tiers = 0, []
        for engine in engines:
            if hasattr(engine, "watch"):
                engine.watch()
            tier = getattr(engine, "lower", None)
            self.tiers.append(tier if isinstance(tier, DynamoClient) else None)
            if self.tiers[len(self.tiers) - 1] is not None:
                tier.watch()

    def send(self, row):
        """Route a request to the engine with the least cost."""
        best: cython.int = 0
        i: cython.int
        k: cython.int
        tied: cython.int = 0
        cost: cython.longlong
        lowest: cython.longlong = 0
        for k in range(self.taking):
            i = self.takers[k]
            self._settle(i, self.requests.arrival[row])
            cost = self._tokens(row, i)
            if k == 0 or cost < lowest:
                best, lowest, tied = i, cost, 1
            elif cost == lowest:
                tied += 1
                if i == self.winner[row] or (best != self.winner[row] and self._draw(i) < self._draw(best)):
                    best = i
        self.ties += tied > 1
        self.least[row] = lowest
        self._enter(row, best)
        self.sent[best] += 1
        return best

    def _tokens(self, row, i):
        """The cost of an engine in tokens: whole numbers, so that equal costs are equal."""
        engine: Engine = self.engines[i]
        k: cython.Py_ssize_t
        start: cython.Py_ssize_t = engine.start[row]
        blocks: cython.longlong = self.distinct[i]
        if self.role == DECODES:
            return blocks * self.size
        if self.role == PREFILLS:
            return self.uncomputed[i] + self._new_tokens(row, i)
        for k in range(start, start + engine.full[row]):
            blocks += self.uses[i, engine.ids[k]] == 0
        return self.uncomputed[i] + self._new_tokens(row, i) + blocks * self.size

    def _new_tokens(self, row, i):
        """The prompt tokens of a request that would not hit. All blocks of a prompt may hit, the last one too."""
        engine: Engine = self.engines[i]
        tier: DynamoClient = self.tiers[i]
        hits: cython.longlong = engine.peek_ended(row, self.requests.arrival[row])
        end: cython.longlong = hits
        if tier is not None:
            while end < engine.full[row] and tier.knows(engine.ids[engine.start[row] + end]):
                end += 1
        return max(0, self.tokens[row] - hits * self.size - (6 * (end - hits) * self.size + 4) // 8)

    def _draw(self, i):
        """The number that the request of this turn draws for an engine; the lowest wins a tie."""
        draw: cython.ulonglong = cython.cast(cython.ulonglong, self.turn) * self.first + i + 1
        if i >= self.first:  # that has started: the others draw what they drew without it
            draw = ~(cython.cast(cython.ulonglong, self.turn) * self.count + i)
        return mix(self.seed + mix(draw))

    def _settle(self, i, now):
        """Forget the prompts that were computed by now, and the requests that have ended."""
        requests: Requests = self.requests
        row: cython.int = self.newest[i]
        newer: cython.int = NOBODY
        while row != NOBODY:
            if requests.first[row] <= now:  # false for NaN: no token yet
                self.uncomputed[i] -= self.brought[row]
                self.brought[row] = 0
            if requests.ended[row] <= now:
                self._leave(row, i)
                if newer == NOBODY:
                    self.newest[i] = self.older[row]
                else:
                    self.older[newer] = self.older[row]
            else:
                newer = row
            row = self.older[row]
        return 0

    def _enter(self, row, i):
        """A request is active at an engine from now on."""
        engine: Engine = self.engines[i]
        k: cython.Py_ssize_t
        start: cython.Py_ssize_t = engine.start[row]
        if self.role == DECODES:
            self.distinct[i] += engine.full[row]
        else:
            self.brought[row] = self._new_tokens(row, i)
            self.uncomputed[i] += self.brought[row]
        if self.role == BOTH:
            for k in range(start, start + engine.full[row]):
                self.distinct[i] += self.uses[i, engine.ids[k]] == 0
                self.uses[i, engine.ids[k]] += 1
        self.older[row] = self.newest[i]
        self.newest[i] = cython.cast(cython.int, row)
        return 0

    def _leave(self, row, i):
        """A request has ended."""
        engine: Engine = self.engines[i]
        k: cython.Py_ssize_t
        start: cython.Py_ssize_t = engine.start[row]
        if self.role == DECODES:
            self.distinct[i] -= engine.full[row]
        if self.role != BOTH:
            return 0
        for k in range(start, start + engine.full[row]):
            self.uses[i, engine.ids[k]] -= 1
            self.distinct[i] -= self.uses[i, engine.ids[k]] == 0
        return 0


class SglangGateway(Router):
    """The policy cache_aware of SGLang's model gateway (sglang-router 0.3.2): the worker whose prompts match most.

    One radix tree holds the prompts of all workers; a node is a run of blocks. Each node knows the workers whose
    prompts reach it (`members`) and the worker that made it (`maker`). A request goes to the maker of the deepest node
    that it matches, if the match is more than a share of its tokens, else to the worker with the fewest requests in
    flight; where their numbers are uneven, always there. Sizes are tokens, where the gateway counts characters, and
    blocks that follow the same one differ from their first token on. If the maker of a node was evicted, the first of
    its members is taken; the gateway draws one. Twin: tests/reference/sglang_gateway.py.
    """

    def __init__(self, engines, ids, offsets, tokens, size, options):
        rows: cython.Py_ssize_t = len(tokens)
        Router.__init__(self, engines, "round-robin", np.zeros(rows, np.int64), tokens, size)
        blocks = int(np.max(ids, initial=-1)) + 1
        self.ids, self.offsets = np.ascontiguousarray(ids, np.int64), np.ascontiguousarray(offsets, np.int64)
        self.threshold, self.relative = options["cache_threshold"], options["balance_rel_threshold"]
        self.absolute, self.most_tokens = options["balance_abs_threshold"], options["max_tree_tokens"]
        self.interval = options["eviction_interval_secs"]
        self.next_eviction = self.interval if self.interval > 0 else NEVER
        self.maker, self.following, self.above = np.full((3, max(1, blocks)), NOBODY, np.int32)
        self.members, self.length = np.zeros(blocks, np.uint64), np.zeros(blocks, np.int32)
        self.held, self.epoch = np.zeros(self.count, np.int64), self.count
        # node -> its last use by each worker, at its last block; without evictions nobody reads it
        evicts = self.interval > 0 and blocks * size > self.most_tokens
        self.used = np.zeros((self.count, blocks if evicts else 0), np.int64)

    def change_fleet(self, first, at, of, takes):
        """Follow a schedule, as any router."""
        Router.change_fleet(self, first, at, of, takes)
        self.epoch = first

    def meet(self, i):
        """A worker has an empty prompt, which is a use of the tree."""
        self.epoch += 1
        return 0

    def follow(self, now):
        """Make the changes of the schedule that are due, and the evictions."""
        i: cython.int
        if self.next_eviction <= now:
            for i in range(self.count):
                if self.held[i] > self.most_tokens:
                    self._evict(i)
            while self.next_eviction <= now:
                self.next_eviction += self.interval
        return Router.follow(self, now)

    def send(self, row):
        """Route a request to the maker of what it matches, or to an idle worker."""
        i: cython.int
        k: cython.int
        idle: cython.int = self.takers[0]
        most: cython.longlong = self.active[idle]
        best: cython.int
        for k in range(1, self.taking):
            i = self.takers[k]
            most = max(most, self.active[i])
            if self.active[i] < self.active[idle]:
                idle = i
        best = idle
        if not (
            most - self.active[idle] > self.absolute
            and cython.cast(cython.float, most) > cython.cast(cython.float, self.active[idle]) * self.relative
        ):
            best = self._match(row, idle)
        self._insert(row, best)
        self.sent[best] += 1
        return best

    def _match(self, row, idle):
        """The maker of the deepest node that a prompt matches; the idle worker, if the match is too short."""
        k: cython.Py_ssize_t
        last: cython.int = NOBODY
        matched: cython.longlong = 0
        epoch: cython.longlong = self.epoch
        for k in range(self.offsets[row], self.offsets[row + 1]):
            if self.maker[self.ids[k]] == NOBODY:
                break
            last = cython.cast(cython.int, self.ids[k])
            matched += self.length[last]
        self.epoch += 1
        if last == NOBODY:
            return idle
        if not self._is_member(last, self.maker[last]):
            self._choose_maker(last)
        if epoch % 8 == 0 and self.used.shape[1]:
            self.used[self.maker[last], self._end_of(last)] = epoch
        if cython.cast(cython.float, matched) / cython.cast(cython.float, self.tokens[row]) > self.threshold:
            return self.maker[last]
        return idle

    def _insert(self, row, i):
        """Add a prompt of a worker."""
        k: cython.Py_ssize_t = self.offsets[row]
        stop: cython.Py_ssize_t = self.offsets[row + 1]
        block: cython.int = NOBODY
        above: cython.int = NOBODY
        self.epoch += 1
        while k < stop:
            block = cython.cast(cython.int, self.ids[k])
            if self.maker[block] == NOBODY:
                return self._add(row, k, above, i)
            while True:  # along the node, as far as the prompt goes on with it
                self._join(block, i)
                k += 1
                if k == stop or self.ids[k] != self.following[block]:
                    break
                block = cython.cast(cython.int, self.ids[k])
            if self.following[block] != NOBODY:
                self._split(block)
            above = block
        if block != NOBODY and self.used.shape[1]:
            self.used[i, block] = self.epoch - 1
        return 0

    def _add(self, row, k, above, i):
        """Make a node of the rest of a prompt, from place `k` on."""
        stop: cython.Py_ssize_t = self.offsets[row + 1]
        begin: cython.Py_ssize_t = self.offsets[row]
        block: cython.int = NOBODY
        while k < stop:
            block = cython.cast(cython.int, self.ids[k])
            self.maker[block], self.above[block] = i, above
            self.length[block] = max(1, min(self.size, self.tokens[row] - (k - begin) * self.size))
            self.members[block] = 0
            self._join(block, i)
            k += 1
            self.following[block] = cython.cast(cython.int, self.ids[k]) if k < stop else NOBODY
            above = block
        if self.used.shape[1]:
            self.used[i, block] = self.epoch - 1
        return 0

    def _join(self, block, i):
        """A prompt of a worker reaches a block."""
        if not self._is_member(block, i):
            self.members[block] |= cython.cast(cython.ulonglong, 1) << i
            self.held[i] += self.length[block]
            if self.used.shape[1]:
                self.used[i, block] = 0
        return 0

    def _split(self, block):
        """A node ends at a block; the rest of it is a node of its own."""
        k: cython.int
        end: cython.int = self._end_of(block)
        self.following[block] = NOBODY
        if self.used.shape[1]:
            for k in range(self.count):
                if self._is_member(end, k):
                    self.used[k, block] = self.used[k, end]
        return 0

    def _is_member(self, block, i):
        return self.members[block] >> i & 1

    def _begin_of(self, block):
        """The first block of a node."""
        while self.above[block] != NOBODY and self.following[self.above[block]] == block:
            block = self.above[block]
        return block

    def _end_of(self, block):
        """The last block of a node."""
        while self.following[block] != NOBODY:
            block = self.following[block]
        return block

    def _choose_maker(self, block):
        """Give a node whose maker is no longer a member the first one that is."""
        i: cython.int = 0
        while not self._is_member(block, i):
            i += 1
        block = self._begin_of(block)
        while block != NOBODY:
            self.maker[block] = i
            block = self.following[block]
        return 0

    def forget(self, i):
        """A worker takes no more requests: the tree forgets it."""
        block: cython.Py_ssize_t
        for block in range(self.members.shape[0]):
            if self._is_member(block, i):
                self._remove(block, i)
        self.held[i] = 0
        return 0

    def _remove(self, block, i):
        """A worker leaves a block. Without members the block is not in the tree."""
        self.members[block] &= ~(cython.cast(cython.ulonglong, 1) << i)
        if self.members[block] == 0:
            self.maker[block] = self.following[block] = NOBODY
        return 0

    def _evict(self, i):
        """Take the least recently used leaves from a worker with too many tokens. Of equal ones the first block's."""
        block: cython.int
        begin: cython.int
        above: cython.int
        below = np.zeros(self.members.shape[0], np.int32)  # block -> nodes of the worker below it
        heap: list = []
        for block in range(self.members.shape[0]):
            above = self.above[block]
            if self._is_member(block, i) and above != NOBODY and self.following[above] != block:
                below[above] += 1
        for block in range(self.members.shape[0]):
            if self._is_member(block, i) and self.following[block] == NOBODY and below[block] == 0:
                heappush(heap, (self.used[i, block], block))
        while self.held[i] > self.most_tokens and heap:
            block = heappop(heap)[1]
            begin = self._begin_of(block)
            above = self.above[begin]
            while True:
                self.held[i] -= self.length[block]
                self._remove(block, i)
                if block == begin:
                    break
                block = self.above[block]
            if above != NOBODY:
                below[above] -= 1
                if below[above] == 0:
                    heappush(heap, (self.used[i, above], above))
        return 0


class EngineBalancer(Router):
    """An engine's own balancer of its data-parallel ranks, which knows what they report, when they report it."""

    def __init__(self, instances, requests: Requests):
        engines = [instance.engine for instance in instances]
        rows: cython.Py_ssize_t = requests.tokens.shape[0]
        Router.__init__(self, engines, "round-robin", np.zeros(rows, np.int64), requests.tokens, 1)
        self.instances, self.requests = instances, requests
        self.heard = np.zeros(self.count, np.int64)
        for instance in instances:
            instance.listen()

    def _next_report(self, i, before):
        """The next report of a rank, None if it has not sent one before this time."""
        instance: Instance = self.instances[i]
        if self.heard[i] == len(instance.reports):
            return None
        report: tuple = instance.reports[self.heard[i]]
        return report if report[0] < before else None


INTERVAL_MS = cython.declare(cython.longlong, 100)  # between two publications of counts that have changed
HEARTBEAT_MS = cython.declare(cython.longlong, 5000)  # and of others
STEP_MS = cython.declare(cython.longlong, 50)  # in which all ranks in lockstep report of a step
START_S = cython.declare(cython.double, 2.5)  # the coordinator runs before time 0, halfway between two heartbeats


class VllmBalancer(EngineBalancer):
    """vLLM's balancer (0.33.0, v1/engine/core_client.py and v1/engine/coordinator.py): the rank of the lowest score.

    Of equal ranks it takes the first after a place that moves on with each request. A score is the larger of the
    requests in flight and those that the rank had when its counts were published; with more than half of its KV cache
    in use, waiting requests count more. A coordinator publishes the counts: at most every 100 ms if they have changed,
    so at once after a pause. Each API server balances by itself, and multiplies what it has in flight by their number;
    which one a request comes to is drawn. Times are whole milliseconds where vLLM's are.

    Of ranks in lockstep the coordinator publishes the counts that all had before the last step that has changed some,
    and else waits for 50 ms until all ranks have reported.
    """

    def __init__(self, instances, requests: Requests, clients, seed=0, lockstep=False):
        EngineBalancer.__init__(self, instances, requests)
        self.clients, self.seed, self.client = clients, seed, np.zeros(requests.tokens.shape[0], np.int32)
        self.reported, self.published = np.zeros((self.count, 3)), np.zeros((clients, self.count, 3))
        self.in_flight = np.zeros((clients, self.count), np.int64)
        self.first_rank = (self.count * np.arange(clients) // clients).astype(np.int32)
        self.newest, self.older = NOBODY, np.full(requests.tokens.shape[0], NOBODY, np.int32)
        self.due, self.published_ms, self.changed = 0, 0, False
        self.lockstep, self.has_step, self.before = lockstep, False, np.zeros((self.count, 3))
        self.last_wave = self.last_step = -1

    def send(self, row):
        """Route a request to the rank of the lowest score."""
        client: cython.int = cython.cast(
            cython.int, mix(self.seed + mix(self.turn)) % cython.cast(cython.ulonglong, self.clients)
        )
        i: cython.int
        k: cython.int
        best: cython.int = 0
        lowest: cython.double = NEVER
        self._publish_until(self.requests.arrival[row] + START_S)
        self._settle(self.requests.arrival[row])
        for k in range(self.count):
            i = (self.first_rank[client] + k) % self.count
            if self._score(client, i) < lowest:
                best, lowest = i, self._score(client, i)
        self.published[client, best, 1] += self.clients
        self.in_flight[client, best] += 1
        self.first_rank[client] = (self.first_rank[client] + 1) % self.count
        self.older[row], self.newest = self.newest, cython.cast(cython.int, row)
        self.client[row] = client
        self.sent[best] += 1
        return best

    def _score(self, client, i):
        waiting: cython.double = self.published[client, i, 1]
        in_flight: cython.double = self.clients * self.in_flight[client, i]
        score: cython.double = max(in_flight, waiting + self.published[client, i, 0])
        if waiting:
            score += waiting * 6.0 * max(0.0, self.published[client, i, 2] - 0.5)
        return score

    def _publish_until(self, now):
        """Let the coordinator take reports and publish, up to a time of its clock."""
        i: cython.int
        first: cython.int
        client: cython.int
        at: cython.double
        report: tuple
        while True:
            at, first = NEVER, 0
            for i in range(self.count):
                report = self._next_report(i, now - START_S)
                if report is not None and report[0] + START_S < at:
                    at, first = report[0] + START_S, i
            if min(at, self.due) >= now:
                return 0
            if at <= self.due:
                report = self._next_report(first, now)
                self.heard[first] += 1
                if len(report) > 1:  # else a wave begins or ends
                    self._hear(first, report)
            else:
                at = self.due
                self.published_ms = cython.cast(cython.longlong, at * 1000)
                for client in range(self.clients):
                    self.published[client, :, :] = self.before if self.has_step else self.reported
                self.changed, self.has_step = self.changed and self.has_step, False
            self.due = at + self._wait_ms(at) / 1000

    def _hear(self, i, report):
        """Take the counts of a rank; in lockstep, the first ones of a step keep those of all ranks before it."""
        k: cython.int
        wave: cython.longlong
        step: cython.longlong
        if self.lockstep:
            wave, step = report[4], report[5]
            if wave > self.last_wave or (wave == self.last_wave and step > self.last_step):
                if self.changed:
                    self.before[:, :] = self.reported
                    self.has_step = True
                self.last_wave, self.last_step = wave, step
        for k in range(3):
            self.reported[i, k] = report[1 + k]
        self.changed = True
        return 0

    def _wait_ms(self, at):
        """The milliseconds that the coordinator waits for a report before it publishes."""
        interval: cython.longlong = INTERVAL_MS if self.changed else HEARTBEAT_MS
        least: cython.longlong = STEP_MS if self.lockstep and not self.has_step else 0
        return max(least, interval - (cython.cast(cython.longlong, at * 1000) - self.published_ms))

    def _settle(self, now):
        """Forget the requests that have ended."""
        row: cython.int = self.newest
        newer: cython.int = NOBODY
        while row != NOBODY:
            if self.requests.ended[row] <= now:  # false for NaN: it has not ended
                self.in_flight[self.client[row], self.requests.instance[row]] -= 1
                if newer == NOBODY:
                    self.newest = self.older[row]
                else:
                    self.older[newer] = self.older[row]
            else:
                newer = row
            row = self.older[row]
        return 0


REFRESH_S = cython.declare(cython.double, 0.02)


class SglangController(EngineBalancer):
    """SGLang's controller (0.5.23, srt/managers/data_parallel_controller.py): the rank with the fewest requests, or
    tokens; of equal ones the first, by tokens that with the fewest requests.

    It reads what the ranks have reported when a request comes, at most every 20 ms, and adds what it sent since then.
    """

    def __init__(self, instances, requests: Requests, by_tokens):
        EngineBalancer.__init__(self, instances, requests)
        self.by_tokens, self.refreshed = by_tokens, -1
        self.budget_requests, self.budget_tokens = np.zeros((2, self.count), np.int64)

    def send(self, row):
        """Route a request to the rank with the least."""
        best: cython.int = 0
        i: cython.int
        self._refresh(self.requests.arrival[row])
        for i in range(1, self.count):
            if self.by_tokens and self.budget_tokens[i] != self.budget_tokens[best]:
                best = i if self.budget_tokens[i] < self.budget_tokens[best] else best
            elif self.budget_requests[i] < self.budget_requests[best]:
                best = i
        self.budget_requests[best] += 1
        if self.by_tokens:
            self.budget_tokens[best] += self.tokens[row]
        self.sent[best] += 1
        return best

    def _refresh(self, now):
        """Read the last report of each rank, if it is new."""
        i: cython.int
        report: tuple
        if now - self.refreshed < REFRESH_S:
            return 0
        self.refreshed = now
        for i in range(self.count):
            report = self._next_report(i, now)
            while report is not None:
                self.heard[i] += 1
                self.budget_requests[i], self.budget_tokens[i] = report[1] + report[2], report[3]
                report = self._next_report(i, now)
        return 0


class Fleet:
    """Several caches behind a router; requests run one at a time, or each is live for a known time.

    `places` are lower tiers, which they may share.

    Twin: tests/reference/fleet.py.
    """

    def __init__(self, engines, router, held, places: Places = None):
        self.engines, self.router, self.places = engines, router, places
        self.held = np.ascontiguousarray(held, dtype=np.int64)
        self.instance = np.full(len(held), -1, dtype=np.int32)
        self.row = 0

    @property
    def instances(self):
        """The index of each request's engine."""
        return np.asarray(self.instance)

    def advance(self, rows):
        """Run the next `rows` requests."""
        row: cython.Py_ssize_t
        stop: cython.Py_ssize_t = min(self.row + rows, self.instance.shape[0])
        chosen: cython.int
        engine: Engine
        first: Engine = self.engines[0]
        while self.row < stop:
            row = self.row
            self._retire(row, first)
            self._update_router()
            self.router.follow(first.arrival[row] / 1000)
            self.router.turn = row
            chosen = self.router.send(row)
            engine = self.engines[chosen]
            engine.context.request = engine.context.order = row
            engine.context.now = engine.arrival[row]
            self.instance[row] = chosen
            self.router.load[chosen] += self.held[row]
            before = engine.early_frees
            if self.places is None:
                engine.serve(row)
            else:
                self.places.serve(chosen, row, engine)
            if engine.early_frees != before:
                self._recount_load(chosen)
            if first.kind == SERIAL:
                self._end(row)
            self.row = row + 1

    def close(self):
        """Finish all live requests and self-check each engine."""
        for engine in self.engines:
            engine.close()
        if self.places is not None:
            self.places.close()

    def _retire(self, row, first):
        """Finish the requests that end before a request arrives, on all engines."""
        ending: cython.Py_ssize_t
        engine: Engine
        while first.ended < first.by_end.shape[0]:
            ending = first.by_end[first.ended]
            if first.end[ending] > first.arrival[row] or ending >= row:
                break
            first.ended += 1
            engine = self.engines[self.instance[ending]]
            if engine.admitted[ending]:
                self._end(ending)

    def _end(self, row):
        engine: Engine = self.engines[self.instance[row]]
        self.router.load[self.instance[row]] -= self.held[row]
        engine._end(row)
        if self.places is not None:
            self.places.ended(self.instance[row], row)

    def _recount_load(self, chosen):
        """Recount the live tokens of an engine that freed requests early."""
        engine: Engine = self.engines[chosen]
        live = (np.asarray(engine.admitted) == 1) & (np.asarray(self.instance) == chosen)
        self.router.load[chosen] = int(np.asarray(self.held)[live].sum())

    def _update_router(self):
        """Update the router's counts. No request waits here, and live blocks are estimated from their prompts."""
        i: cython.int
        engine: Engine
        router: Router = self.router
        for i in range(router.count):
            engine = self.engines[i]
            router.active[i] = engine.live
            router.blocks[i] = router.load[i] / cython.cast(cython.double, router.size)


class Serving:
    """Serving simulation: instances, each with a scheduler and a prefix cache, behind a router.

    Hits shorten prefills, which changes when requests end, which changes the hits; the simulation follows this loop
    event by event. A request is routed at its arrival, when all instances have taken the steps that began before it.
    """

    def __init__(self, instances, router: Router, requests: Requests, capacity):
        self.instances, self.router, self.requests, self.capacity = instances, router, requests, capacity
        self.row = 0

    @property
    def busy(self):
        """Seconds of computing of each instance."""
        return [cython.cast(Instance, instance).busy for instance in self.instances]

    def advance(self, rows):
        """Let the next `rows` requests arrive."""
        instance: Instance
        requests: Requests = self.requests
        stop: cython.Py_ssize_t = min(self.row + rows, requests.tokens.shape[0])
        while self.row < stop:
            for instance in self.instances:
                instance.run(requests.arrival[self.row])
            self._arrive(self.row)

    def _arrive(self, row):
        """A request arrives: it is routed. False if it is rejected, because it does not fit any instance."""
        instance: Instance
        chosen: cython.int
        requests: Requests = self.requests
        fits: cython.bint = requests.need[row] <= self.capacity
        if fits:
            self._update_router(requests.arrival[row])
            self.router.follow(requests.arrival[row])
            self.router.turn = self.row
            chosen = self.router.send(row)
            requests.instance[row] = chosen
            instance = self.instances[chosen]
            instance.send(row)
        self.row += 1
        return fits

    def close(self):
        """Run all instances until no request is left, then self-check each cache."""
        instance: Instance
        for instance in self.instances:
            instance.run(NEVER)
        for instance in self.instances:
            instance.engine.close()

    def _update_router(self, now):
        """Update the router's counts of each instance: those after the last step that has ended."""
        i: cython.int
        instance: Instance
        router: Router = self.router
        for i in range(router.count):
            instance = self.instances[i]
            if instance.now > now:  # in a step
                router.load[i], router.waiting[i] = instance.load_before, instance.prefill_before
                router.blocks[i], router.active[i] = instance.blocks_before, instance.active_before
            else:
                router.load[i], router.waiting[i] = instance.load, instance.prefill
                router.blocks[i], router.active[i] = instance.blocks, instance.active()


IN_FLIGHT = cython.declare(cython.longlong, 2)  # steps that can have begun whose tokens are not counted yet


class ClosedServing(Serving):
    """Serving simulation in a closed loop: the ends of requests decide when others arrive.

    No instance runs past an arrival that an end can still cause. One instance runs up to the next arrival that is
    known, and its ends can only bring that forward. Of several, the one that is furthest behind runs, up to its first
    end or to the first arrival that another one can cause: an end there, after the steps that its tokens still need,
    and then a delay. So routers see what they see in the open loop with the same arrivals.
    """

    def __init__(self, instances, router: Router, requests: Requests, capacity, loop: SessionLanes):
        Serving.__init__(self, instances, router, requests, capacity)
        self.loop, self.over = loop, False
        self.horizon, self.looked = np.full((2, len(instances)), -1.0)
        self.newest = np.full(len(instances), NOBODY, dtype=np.int32)
        self.older = np.full(requests.tokens.shape[0] if loop.several else 0, NOBODY, dtype=np.int32)
        for instance in instances:
            instance.loop = loop

    def advance(self, rows):
        """Let the next `rows` requests arrive; `over` is true after the last one."""
        row: cython.Py_ssize_t
        while rows > 0 and not self.over:
            self._reach_next_arrival()
            if self.loop.next_arrival() >= NEVER:
                self.over = True
                break
            row = self.loop.take()
            if not self._arrive(row):  # who waits for a rejected request goes on at once
                self.loop.complete(row, self.requests.arrival[row])
            elif self.loop.several:
                self._watch(row)
            rows -= 1

    def _reach_next_arrival(self):
        """Run all steps that begin before the next arrival, which may be one that these steps cause."""
        i: cython.int
        behind: cython.int
        begin: cython.double
        earliest: cython.double = 0
        bound: cython.double  # before which no other instance causes an arrival
        following: cython.double
        instance: Instance
        while earliest < NEVER:
            earliest = bound = NEVER
            behind = 0
            for i in range(len(self.instances)):
                instance = self.instances[i]
                begin = instance.next_turn()
                following = begin
                if self.loop.several and begin < NEVER:
                    following = self._horizon(i, instance, begin)
                if begin < earliest:
                    bound = min(bound, self.horizon[behind]) if earliest < NEVER else bound
                    earliest, behind = begin, i
                else:
                    bound = min(bound, following)
            if self.loop.settle(earliest):
                earliest = 0
            elif earliest >= self.loop.next_arrival():
                return 0
            else:
                instance = self.instances[behind]
                instance.run(min(self.loop.next_event(), max(bound, nextafter(earliest, NEVER))))
        return 0

    def _horizon(self, i, instance, begin):
        """The time before which an instance causes no arrival. It is computed anew when that has passed."""
        row: cython.int = self.newest[i]
        newer: cython.int = NOBODY
        steps: cython.longlong
        if self.horizon[i] > begin or self.looked[i] == begin:
            return self.horizon[i]
        self.looked[i], self.horizon[i] = begin, NEVER
        while row != NOBODY:
            if self.requests.ended[row] == self.requests.ended[row]:  # not NaN: it has ended
                if newer == NOBODY:
                    self.newest[i] = self.older[row]
                else:
                    self.older[newer] = self.older[row]
            else:
                steps = max(0, instance.steps_left(row) - IN_FLIGHT)
                self.horizon[i] = min(self.horizon[i], begin + steps * instance.least_step_s + self.loop.lead[row])
                newer = row
            row = self.older[row]
        return self.horizon[i]

    def _watch(self, row):
        """A request was sent to an instance."""
        i: cython.int = self.requests.instance[row]
        instance: Instance = self.instances[i]
        at: cython.double = self.requests.arrival[row]
        steps: cython.longlong = max(0, self.requests.output[row] - IN_FLIGHT)
        self.older[row], self.newest[i] = self.newest[i], cython.cast(cython.int, row)
        self.horizon[i] = min(self.horizon[i], at + steps * instance.least_step_s + self.loop.lead[row])
        self.looked[i] = -1
        return 0
