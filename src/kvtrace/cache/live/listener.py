"""The callbacks of the live cache, called after each change, evictions first."""

import cython
from cython.cimports.kvtrace.cache.live.block_table import NONE

from kvtrace._base.errors import UsageError


class Listener:
    """The four callbacks of a PrefixCache, each of them or None; `telling` while one is called."""

    def __cinit__(self, block_size, on_read, on_write, on_evict, on_copy):
        self.block_size = block_size
        self.on_read, self.on_write = called("on_read", on_read), called("on_write", on_write)
        self.on_evict, self.on_copy = called("on_evict", on_evict), called("on_copy", on_copy)
        self.hears_growth = on_evict is not None or on_write is not None or on_copy is not None

    def evicted(self, pool):
        """Report what the pool has evicted since the last report."""
        if pool.gone:
            gone, pool.gone, self.telling = pool.gone, [], True
            try:
                for slot in gone:
                    self.on_evict(slot)
            finally:
                self.telling = False
        return 0

    def allocated(self, pool, sequence):
        """Report what a new sequence reads, and what must be written for it."""
        i: cython.Py_ssize_t
        self.evicted(pool)
        if self.on_read is None and self.on_write is None:
            return 0
        self.telling = True
        try:
            if self.on_read is not None:
                for i in range(sequence.hit_blocks):
                    self.on_read(sequence.slots[i], i * self.block_size)
            self._tell_writes(sequence, sequence.hit_tokens)
        finally:
            self.telling = False
        return 0

    def extended(self, pool, sequence, first, shared):
        """Report tokens from `first` on; their first partial block may have been copied from `shared`."""
        self.evicted(pool)
        filled: cython.Py_ssize_t = first % self.block_size
        self.telling = True
        try:
            if shared != NONE and self.on_copy is None:
                first -= filled
            elif shared != NONE:
                self.on_copy(shared, sequence.slots[first // self.block_size], filled)
            self._tell_writes(sequence, first)
        finally:
            self.telling = False
        return 0

    def _tell_writes(self, sequence, first):
        stop: cython.Py_ssize_t
        while self.on_write is not None and first < sequence.length:
            stop = min(sequence.length, first - first % self.block_size + self.block_size)
            self.on_write(sequence.slots[first // self.block_size], first, stop - first)
            first = stop
        return 0


def called(name, call):
    """What a caller gave to be called, or None; UsageError where it can't be."""
    if call is not None and not callable(call):
        raise UsageError(f"{name} is called, and {type(call).__name__} can't be.")
    return call
