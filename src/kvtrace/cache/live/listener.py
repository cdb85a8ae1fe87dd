"""The callbacks of the live cache. They run after each change, evictions first."""

import cython
from cython.cimports.kvtrace.cache.live.block_table import NONE

from kvtrace._base.errors import UsageError


class Listener:
    """The four callbacks of a PrefixCache, each a callable or None; `in_callback` is true while one runs."""

    def __cinit__(self, block_size, on_read, on_write, on_evict, on_copy):
        self.block_size = block_size
        self.on_read, self.on_write = checked_callback("on_read", on_read), checked_callback("on_write", on_write)
        self.on_evict, self.on_copy = checked_callback("on_evict", on_evict), checked_callback("on_copy", on_copy)
        self.reports_growth = on_evict is not None or on_write is not None or on_copy is not None

    def evicted(self, pool):
        """Report the slots that the pool evicted since the last report."""
        if pool.evicted:
            evicted, pool.evicted, self.in_callback = pool.evicted, [], True
            try:
                for slot in evicted:
                    self.on_evict(slot)
            finally:
                self.in_callback = False
        return 0

    def allocated(self, pool, sequence):
        """Report the blocks that a new sequence reuses, and the tokens to compute for it."""
        i: cython.Py_ssize_t
        self.evicted(pool)
        if self.on_read is None and self.on_write is None:
            return 0
        self.in_callback = True
        try:
            if self.on_read is not None:
                for i in range(sequence.hit_blocks):
                    self.on_read(sequence.slots[i], i * self.block_size)
            self._report_writes(sequence, sequence.hit_tokens)
        finally:
            self.in_callback = False
        return 0

    def extended(self, pool, sequence, first, shared):
        """Report new tokens from position `first` on. Their partial block may be a copy of slot `shared`."""
        self.evicted(pool)
        filled: cython.Py_ssize_t = first % self.block_size
        self.in_callback = True
        try:
            if shared != NONE and self.on_copy is None:
                first -= filled
            elif shared != NONE:
                self.on_copy(shared, sequence.slots[first // self.block_size], filled)
            self._report_writes(sequence, first)
        finally:
            self.in_callback = False
        return 0

    def _report_writes(self, sequence, first):
        stop: cython.Py_ssize_t
        while self.on_write is not None and first < sequence.length:
            stop = min(sequence.length, first - first % self.block_size + self.block_size)
            self.on_write(sequence.slots[first // self.block_size], first, stop - first)
            first = stop
        return 0


def checked_callback(name, call):
    """Check a callback: a callable or None; else UsageError."""
    if call is not None and not callable(call):
        raise UsageError(f"{name} must be callable, not {type(call).__name__}.")
    return call
