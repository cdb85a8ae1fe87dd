"""SGLang's prefill and decode workers, step by step, in plain Python: the rules of 0.5.23 for full attention, one rank.

`serve(case)` takes the cases of tests/clients/sglang_apart.py and returns what that returns, without the version.

Files: P prefill.py, D decode.py, M decode_schedule_batch_mixin.py (srt/disaggregation), S scheduler.py (srt/managers).

* A request comes to both workers when it arrives. On the prefill worker it waits (P:488) until the decode worker has
  pages for it; then it takes one of 2 x seats metadata buffers, which it keeps until it has left, and enters the queue.
* A prefill is planned as elsewhere, with an output of one token, nobody running, and no flag `full` (P:640). A request
  keeps its pages and its row until all is sent; that is seen at the end of a turn, and inserts the prompt anew (P:1190).
* What is sent (P:1504, P:1456): when a pass begins, all of a request that is cached or was computed before it, if that
  ends at a page; when a chunk is known (with overlap one turn later, without when the next pass is planned), whole
  pages of it; when the prompt is known, the rest. What the decode worker holds is not sent.
* A turn of a decode worker begins with its queues (D:3458): retracted requests get pages again, in order, while the
  reserve of all active ones and their own fits (D:1021). If none is left: requests get pages for their prompts, in
  order (by priority if that is on), while there are rows (seats + extra ones, D:171) and 2 x seats metadata buffers
  (D:1333). A request needs its pages and the reserve, or its prompt and its largest output less all that runs, which
  could be retracted. The budget is what is free (and evictable), less the reserve of each active request, or less what
  the longest running one may still need if all others were retracted (D:2083). Requests that have ended in the last
  turn still count as running. Then those whose KV has come enter the waiting queue, in the order of their reservation.
* Waiting requests join the batch while it has seats (D:3375). The first token is known then; a request that ends with
  it leaves at once. All that run decode; no request sits out, so with overlap an ended one runs one step more (S:4446).
* Without a radix cache on the decode worker nothing is inserted or hit. With one, a request hits all pages of its
  prompt that are cached, holds them, and inserts its prompt when it joins. A retracted request is copied to the host.
"""

from __future__ import annotations

import heapq

from tests.reference.sglang_scheduler import Batch, Scheduler, request_of
from tests.reference.vllm_scheduler import step_seconds

NEVER = 1e300
PATIENCE = 3  # turns in which an idle worker finds nothing, until it waits for an event
SMALL_BATCH = 32  # up to so many seats, a decode worker has three times as many rows


class Worker(Scheduler):
    """`live` yields the time until which the others go on before this worker does."""

    def __init__(self, case, net):
        super().__init__(case)
        self.case, self.net = case, net
        self.inbox, self.steps, self.idle_turns = [], [], 0
        self.buffers = 2 * self.seats
        count = len(case["requests"])
        self.cached, self.began, self.known, self.ended, self.retractions = (
            [-1] * count, [None] * count, [None] * count, [None] * count, [0] * count
        )  # fmt: skip
        self.at, self.life = 0.0, self.live()

    def wake(self, at):
        self.idle_turns = 0
        if self.at >= NEVER:
            self.at = max(self.now, at)

    def resume(self):
        self.now = max(self.now, self.at)
        self.at = next(self.life)

    def live(self):
        while True:
            yield NEVER if self.idle_turns >= PATIENCE else self.now
            batch = self.turn()
            if batch is not None:
                self.begin(batch)
                self.idle_turns = 0
            if self.last is not None if self.overlap else batch is not None:
                old, known, end = self.in_flight.popleft()
                yield max(self.now, end)
                self.learn(old, known)
            elif batch is None:
                self.idle_turns += 1
            self.after()
            self.last = batch

    def begin(self, batch):
        begin = max(self.free, self.now)
        work = [(len(one.prompt), before, chunk) for one, before, chunk in batch.parts]
        self.launch(batch, begin, step_seconds(self.case["cost"], work))
        gone, self.dropped = sorted(one.row for one in self.dropped), []
        self.steps.append([begin, batch.kind, [[one.row, *part] for one, *part in batch.parts], gone])
        for one, before, _ in batch.parts:
            if self.began[one.row] is None:
                self.cached[one.row], self.began[one.row] = before, begin
        for row in gone:
            self.retractions[row] += 1
        self.in_flight.append((Batch(batch.requests, batch.kind), batch.requests, self.free))

    def end(self, request):
        request.finished, self.ended[request.row] = True, self.now
        self.publish(request, min(request.held, len(request.prompt) + request.out))
        self.release(request)

    def after(self):
        """The end of a turn."""


class Prefill(Worker):
    def __init__(self, case, net):
        super().__init__(case, net)
        self.bootstrapping, self.leaving = [], []

    def turn(self):
        for row in self.inbox:
            request = request_of(self.case, row)
            request.limit, request.sent, request.told = 1, 0, 0
            self.bootstrapping.append(request)
        self.inbox = []
        stay = []
        for request in self.bootstrapping:
            reserved = self.net.reserved[request.row]
            if reserved is None or reserved > self.now or self.buffers == 0:
                stay.append(request)
                continue
            self.buffers -= 1
            request.sent = self.net.held[request.row]
            self.add(request)
        self.bootstrapping = stay
        self.running.full = False
        if self.chunked is not None:
            self.checkpoint(self.chunked)
            self.chunked.told = self.chunked.end
            if not self.overlap:
                self.send(self.chunked, self.chunked.end)
        return self.prefill()

    def launch(self, batch, begin, seconds):
        for one, before, _ in batch.parts:
            if before > one.sent and before % self.size == 0:
                self.send(one, before, at=begin)
        super().launch(batch, begin, seconds)

    def send(self, request, end, last=False, at=0.0):
        end -= 0 if last else end % self.size
        if end > request.sent or last:
            self.net.send(request.row, end - request.sent, max(at, self.now), self.now)
            request.sent = end

    def learn(self, batch, requests):
        for request in requests:
            if request.middle > 0:
                request.middle -= 1
                if self.overlap:
                    self.send(request, request.told)
                continue
            request.out, self.known[request.row] = 1, self.now
            self.checkpoint(request)
            self.leaving.append(request)
            self.send(request, len(request.prompt), last=True)

    def after(self):
        for request in [one for one in self.leaving if self.net.has_arrived(one.row, self.now)]:
            self.leaving.remove(request)
            self.end(request)
            self.buffers += 1


class Decode(Worker):
    def __init__(self, case, net):
        super().__init__(case, net)
        settings = case["settings"]
        self.reserve = settings.get("num_reserved_decode_tokens", 512)
        self.keeps = settings.get("disaggregation_decode_enable_radix_cache", False)
        self.rows += 2 * self.seats if self.seats <= SMALL_BATCH else 0
        self.clip = self.constant["SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION"]
        self.queue, self.retracted, self.coming = [], [], []

    def publish(self, request, upto):
        if self.keeps:
            super().publish(request, upto)

    def add(self, request):
        """A request was retracted."""
        self.retracted.append(request)

    def turn(self):
        self.queue += [request_of(self.case, row) for row in self.inbox]
        self.inbox = []
        self.take_back()
        if not self.retracted:
            self.reserve_pages()
            come = [one for one in self.coming if self.net.has_arrived(one.row, self.now)]
            self.coming = [one for one in self.coming if one not in come]
            for request in come:
                request.out = 1
                self.buffers += 1
                self.enter(request)
        self.join()
        self.running.filter()
        return self.decode(self.running) if self.running.requests else None

    def enter(self, request):
        request.entered = next(self.entries)
        self.waiting.append(request)

    def finishing(self, batch):
        return []  # this loop has no request sit out

    def budget(self, retractable=None, more=0):
        available = self.tree.with_evictable() if self.keeps else self.tree.available()
        active = len(self.running.requests) + len(self.coming) + len(self.waiting) + more
        need = 0
        if retractable is not None and self.running.requests:
            need = max(min(one.limit, self.clip) + len(one.prompt) for one in self.running.requests) - retractable
        return available - max(self.reserve * active, need)

    def place(self, request, tokens, prefix=0):
        """Pages and a row."""
        pages = (self.paged(tokens) - prefix) // self.size
        self.tree.make_room(pages * self.size)
        self.tree.take(pages)
        request.held, request.has_row = tokens, True
        self.rows -= 1

    def take_back(self):
        """Retracted requests get pages again."""
        back = []
        for request in self.retracted:
            tokens = len(request.prompt) + request.out - 1
            if self.rows <= 0 or self.paged(tokens) + self.reserve > self.budget(more=len(back)):
                break
            self.place(request, tokens)
            request.retracted = False
            back.append(request)
        self.retracted = self.retracted[len(back) :]
        self.waiting += back

    def reserve_pages(self):
        """Requests get pages for their prompts, and the prefill worker is told."""
        retractable = sum(len(one.prompt) + one.out for one in self.running.requests)
        if self.by_priority:
            self.queue.sort(key=lambda one: one.priority * self.sign)
        while self.queue and self.buffers > 0 and self.rows > 0:
            request, prefix, node = self.queue[0], 0, None
            tokens = len(request.prompt)
            if self.keeps:
                pages, node = self.tree.match(self.tree.pages(request.prompt))
                prefix = pages * self.size
                self.tree.lock(node)
            need = max(
                self.paged(tokens) - prefix + self.reserve,
                tokens - prefix + min(request.limit, self.clip) - retractable,
            )
            if need > self.budget(retractable):
                self.tree.unlock(node)
                break
            self.place(request, tokens, prefix)
            request.locked, request.protected = node, prefix
            self.queue.pop(0)
            self.buffers -= 1
            self.coming.append(request)
            self.net.reserve(request.row, prefix, self.now)

    def join(self):
        """Waiting requests join the batch, and their first token is known."""
        if self.by_priority and self.waiting:
            self.waiting.sort(key=lambda one: (one.priority * self.sign, one.entered))
        seats = max(self.seats - len(self.running.requests), 0)
        joined, self.waiting = self.waiting[:seats], self.waiting[seats:]
        for request in joined:
            self.publish(request, request.held)
        for request in joined:
            self.note(request)
        self.running.requests = self.running.requests + [one for one in joined if not one.finished]

    def note(self, request):
        if self.known[request.row] is None:
            self.known[request.row] = self.now
        if request.out == request.output or request.out >= request.limit:
            self.end(request)

    def learn(self, batch, requests):
        for request in requests:
            if not request.retracted and not request.finished:
                request.out += 1
                self.note(request)


class Net:
    """The workers, the links, and what happens between them."""

    def __init__(self, case):
        self.case, count = case, len(case["requests"])
        self.events, self.pushed = [], 0
        self.held, self.left = [0] * count, [row["tokens"] for row in case["requests"]]
        self.reserved, self.begun, self.arrived = [None] * count, [None] * count, [None] * count
        prefill, decode = case["workers"]
        self.out, self.into = [0.0] * prefill, [0.0] * decode
        self.prefill = [Prefill(case, self) for _ in range(prefill)]
        self.decode = [Decode(case | case.get("decode", {}), self) for _ in range(decode)]
        for row, data in enumerate(case["requests"]):
            self.push(data["arrival"], self.arrive, row)

    def workers_of(self, row):
        return self.decode[row % len(self.decode)], self.prefill[row % len(self.prefill)]

    def push(self, at, what, *given):
        heapq.heappush(self.events, (at, self.pushed, what, given))
        self.pushed += 1

    def arrive(self, at, row):
        for worker in self.workers_of(row):
            worker.inbox.append(row)
            worker.wake(at)

    def reserve(self, row, held, now):
        self.held[row], self.reserved[row] = held, now
        self.left[row] -= held
        self.workers_of(row)[1].wake(now)

    def send(self, row, tokens, at, now):
        """Send a part of a prompt, from a time on."""
        self.push(at, self.move, row, tokens) if at > now else self.move(at, row, tokens)

    def move(self, at, row, tokens):
        home, target = row % len(self.prefill), row % len(self.decode)
        end = max(at, self.out[home], self.into[target]) + tokens * self.case["bytes_per_token"] * self.case["byte_s"]
        self.out[home] = self.into[target] = end
        self.begun[row] = at if self.begun[row] is None else self.begun[row]
        self.left[row] -= tokens
        if self.left[row] == 0:
            self.arrived[row] = end + self.case["latency"]
            self.push(self.arrived[row], self.arrival, row)

    def arrival(self, at, row):
        for worker in self.workers_of(row):
            worker.wake(at)

    def has_arrived(self, row, now):
        return self.arrived[row] is not None and self.arrived[row] <= now

    def run(self):
        workers = [*self.prefill, *self.decode]
        while True:
            first = min(workers, key=lambda worker: worker.at)
            if self.events and self.events[0][0] <= first.at:
                at, _, what, given = heapq.heappop(self.events)
                what(at, *given)
            elif first.at >= NEVER:
                return
            else:
                first.resume()


def serve(case):
    """The steps of each worker, and the times of each request."""
    net = Net(case)
    net.run()
    requests = []
    for row in range(len(case["requests"])):
        target, home = net.workers_of(row)
        requests.append([
            home.cached[row], net.held[row], home.began[row], home.known[row], net.begun[row], net.arrived[row],
            target.known[row], target.ended[row], target.retractions[row],
        ])  # fmt: skip
    return {
        "prefill": [worker.steps for worker in net.prefill],
        "decode": [worker.steps for worker in net.decode],
        "requests": requests,
    }
