"""SGLang's workers of one kind: a decode worker reserves pages for a prompt, and receives its KV cache."""

import cython
from cython.cimports.kvtrace.cache.core.radix import ROOT
from cython.cimports.kvtrace.serving.core.apart import RESERVED
from cython.cimports.kvtrace.serving.core.instance import DECODES, PREFILLS, Requests
from cython.cimports.kvtrace.serving.core.sglang_prefill import SglangPrefill

# SGLang 0.5.23 (srt/disaggregation/decode.py, srt/disaggregation/prefill.py). Each turn of a decode worker begins
# with its queues: retracted requests come back from host memory; requests get pages for their prompts, in order of
# arrival, while the next outputs of all active ones keep room (DecodePreallocQueue); those whose KV cache has come
# (DecodeTransferQueue) join the batch, with the first token from the prefill worker, while it has seats.
#
# A prompt is computed once the decode worker has its pages. Its KV cache is sent chunk by chunk, and the prefill
# worker's pages and seat are free when the last one has arrived. A decode worker has a radix cache only with
# --disaggregation-decode-enable-radix-cache: then it receives what does not hit.
#
# These rules are read from that code; SGLang itself was not driven.


FEW = cython.declare(cython.longlong, 32)  # seats, up to which a decode worker has three times as many places for KV


class SglangApart(SglangPrefill):
    """What a worker of one kind does beside its batches."""

    def join(self, group, prefills):
        SglangPrefill.join(self, group, prefills)
        self.incoming, self.come, self.joining, self.offloaded = [], [], [], []
        self.coming = 0
        if self.role == DECODES and self.limits.seats <= FEW:
            self.vacant += 2 * self.limits.seats

    def receive(self, reserve, keeps):
        """The options of a decode worker: num_reserved_decode_tokens, and whether it has a radix cache."""
        self.reserve, self.keeps = reserve, keeps

    def active(self):
        active: cython.longlong = SglangPrefill.active(self)
        return active + len(self.incoming) + len(self.offloaded) if self.role == DECODES else active

    def computed_tokens(self, row):
        return self.prefix[row] if self.limits.overlap else self.end[row]

    def moved(self, row, at):
        """The KV cache of a request has been received: here, or by its decode worker, so that its pages are free."""
        if self.role == PREFILLS:
            self._release(row)
        else:
            self.come.append(row)
        return self.wake(at)

    def _wait(self, row):
        if self.role != DECODES:
            return SglangPrefill._wait(self, row)
        if self.retracted[row]:
            self.offloaded.append(row)
        else:
            self.incoming.append(row)
        return 0

    def _has_news(self):
        """Whether the next turn may do more than decode."""
        return self.incoming or self.come or self.joining or self.offloaded

    def _receive(self):
        """The queues of a decode worker, before it plans a batch."""
        if self.offloaded:
            self._resume()
        if not self.offloaded:
            if self.incoming:
                self._reserve_incoming()
            self.coming -= len(self.come)
            self.joining.extend(self.come)
            self.come = []
        return self._join() if self.joining else 0

    def _resume(self):
        """Retracted requests get pages again, in order, while they fit."""
        row: cython.Py_ssize_t
        tokens: cython.longlong
        while self.offloaded and self.vacant > 0:
            row = self.offloaded[0]
            tokens = self._known(row) - 1
            if self._paged(tokens) + self.reserve > self._budget(-1):
                break
            del self.offloaded[0]
            self.cache.make_room(self._pages(tokens))
            self._take_pages(self._pages(tokens))
            self.held[row], self.seated[row], self.retracted[row] = tokens, True, False
            self.vacant -= 1
            self.live += 1
            self.prefill -= min(tokens, self.requests.tokens[row])
            self.joining.append(row)
        return 0

    def _reserve_incoming(self):
        """Requests get pages for their prompts, in order, while they fit."""
        requests: Requests = self.requests
        row: cython.Py_ssize_t
        i: cython.int
        node: cython.int = ROOT
        hits: cython.longlong = 0
        need: cython.longlong
        retractable: cython.longlong = 0
        taken: cython.Py_ssize_t = 0
        for i in range(self.count):
            retractable += self._known(self.running[i])
        if self.limits.by_priority:
            self.incoming.sort(key=self._order)
        for item in self.incoming:
            row = item
            if self.vacant <= 0:
                break
            if self.keeps:
                node = self.cache.match(row, self.cache.pages_of(requests.tokens[row]))
                hits = self.cache.matched
                self.cache.lock(node, ROOT)
            need = (self._pages(requests.tokens[row]) - hits) * self.page
            if max(
                need + self.reserve,
                requests.tokens[row] - hits * self.page + self._clip(self.limit[row]) - retractable,
            ) > self._budget(retractable):  # fmt: skip
                if self.keeps:
                    self.cache.unlock(node)
                break
            taken += 1
            self.cache.make_room(need // self.page)
            self._take_pages(need // self.page)
            self.locked[row], self.owned[row] = node, hits
            self.held[row], self.seated[row] = requests.tokens[row], True
            self.vacant -= 1
            self.live += 1
            self.coming += 1
            self.prefill -= requests.tokens[row]
            requests.cached[row] = min(hits * self.page, requests.tokens[row])
            self.cache.hit[row] = cython.cast(cython.int, requests.cached[row] // self.cache.block_size)
            self.group_of_workers.tell(RESERVED, row, self.now)
        del self.incoming[:taken]
        return 0

    def _order(self, row):
        return self._rank(row)

    def _budget(self, retractable):
        """Tokens that can be given out: free ones, less what active requests need. `retractable`: -1 = not counted."""
        i: cython.int
        row: cython.Py_ssize_t
        longest: cython.longlong = 0
        available: cython.longlong = self.cache.free + (self.cache.evictable if self.keeps else 0)
        active: cython.longlong = self.count + self.coming + len(self.joining)
        if retractable >= 0 and self.count:
            for i in range(self.count):
                row = self.running[i]
                longest = max(longest, self._clip(self.limit[row]) + self.requests.tokens[row])
            longest -= retractable
        return available * self.page - max(self.reserve * active, longest)

    def _join(self):
        """Requests with their KV cache and first token join the batch, in order, while it has seats."""
        requests: Requests = self.requests
        row: cython.Py_ssize_t
        seats: cython.longlong = self.limits.seats - self.count
        joined: list = self.joining[: max(seats, 0)]
        del self.joining[: len(joined)]
        for item in joined:
            row = item
            if self.outputs[row] == 0:
                self.outputs[row] = 1
                requests.started[row] = requests.first[row] = self.now
            if self.keeps:
                self._publish(row, self.held[row])
            if self.outputs[row] == requests.output[row] or self.outputs[row] >= self.limit[row]:
                self._end(row)
            else:
                self.running[self.count] = cython.cast(cython.int, row)
                self.count += 1
                self.settled = False
        return 0

    def _end(self, row):
        """A request has its last token; the event loop defines it."""
        return 0
