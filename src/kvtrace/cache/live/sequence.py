"""The slots of one live request in the live cache."""

import cython
from cython.cimports.kvtrace.cache.live.buffers import resized
from cython.cimports.libc.stdlib import free as give_back


class Sequence:
    """The blocks that one live request holds in a PrefixCache: `allocate` makes it, `append` grows it, `free` ends it.

    `length` is in tokens; `hit_blocks` and `hit_tokens` count the prefix that was cached when it was allocated.
    """

    def __dealloc__(self):
        give_back(self.slots)

    @property
    def blocks(self):
        """The slot of each block, in order: an engine's block table. Copy-on-write may change the last one."""
        return [self.slots[i] for i in range(self.count)]

    def reserve(self, count):
        """Make room for `count` blocks in total."""
        if count > self.room:
            room: cython.Py_ssize_t = max(count, 2 * self.room)
            self.slots = cython.cast(cython.p_int, resized(self.slots, room * cython.sizeof(cython.int)))
            self.room = room
        return 0
