"""The pages of SGLang's requests (0.5.23): which of them the tree owns, when they are published, and given back.

A prompt becomes findable when its result is known, a chunk when the next step is planned, outputs at the end.
"""

import cython
from cython.cimports.kvtrace.cache.core.locked_tree import ROOT
from cython.cimports.kvtrace.cache.core.paged_radix import PagedRadix
from cython.cimports.kvtrace.serving.core.requests import Requests
from cython.cimports.kvtrace.serving.core.sglang_queue import SglangQueue

from kvtrace._base.errors import UsageError


class SglangPages(SglangQueue):
    """Pages are taken for tokens, inserted into the tree, and released; a retraction releases without insertion."""

    def _checkpoint(self, row):
        """The computed tokens become findable; the tree's pages replace the request's where it has them."""
        self._publish(row, min(self.end[row], self.fill[row]))
        self.prefix[row] = self.end[row]
        return 0

    def _publish(self, row, tokens):
        cache: PagedRadix = self.cache
        pages: cython.longlong = tokens // self.page
        prompt: cython.longlong = self.requests.tokens[row] // self.page
        node: cython.int = cache.insert(row, pages)
        cache.free += max(cache.matched - self.owned[row], 0)
        if 0 < prompt < pages:
            cache.insert(row, prompt)
        cache.unlock(self.locked[row])
        cache.lock(node, ROOT)
        self.locked[row], self.owned[row] = node, pages
        return 0

    def _drop(self, row, others):
        """Release a request without making it findable, and room for the next steps of the others."""
        requests: Requests = self.requests
        self.prefill += min(self.held[row], requests.tokens[row])
        self._release(row)
        self.cache.make_room(self._pages(others * self.limits.retract_steps))
        self.prefix[row] = self.owned[row] = 0
        self.middle[row], self.retracted[row] = 0, True
        requests.preempted[row] += 1
        self.dropped.append(row)
        return 0

    def _release(self, row):
        """Give back the pages that the tree does not own, the lock and the seat."""
        self.cache.free += self._pages(self.held[row]) - self.owned[row]
        self.cache.unlock(self.locked[row])
        self.locked[row], self.seated[row], self.held[row] = 0, False, 0
        self.vacant += 1
        self.live -= 1
        return 0

    def _take_pages(self, pages):
        self.cache.free -= pages
        if self.cache.free < 0:
            raise UsageError(
                "SGLang 0.5.23 would end here: its cache is too small for the next chunk of a prompt. "
                "Try a larger --capacity, fewer requests at once or a larger schedule_conservativeness."
            )
        return 0

    def _pages(self, tokens):
        return (tokens + self.page - 1) // self.page

    def _paged(self, tokens):
        """Tokens of whole pages."""
        return (tokens + self.page - 1) // self.page * self.page

    def _with_evictable(self):
        return (self.cache.free + self.cache.evictable) * self.page
