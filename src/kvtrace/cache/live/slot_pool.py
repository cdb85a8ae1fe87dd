"""The slots of the live cache: the block in each slot, its pins, and evictions.

A slot is pinned by live sequences, idle (in the policy's order), or free. Several slots can contain the same block;
lookups find it in one of them.
"""

import cython
from cython.cimports.kvtrace.cache.live.block_table import NONE, BlockTable
from cython.cimports.kvtrace.cache.live.buffers import zeros
from cython.cimports.kvtrace.cache.policies.base import Policy
from cython.cimports.libc.stdlib import free as give_back

from kvtrace._base.errors import UsageError


class SlotPool:
    """`count` slots for the blocks of `table`; at most `most_idle` of them are idle.

    `evicted` lists the slots that were evicted, or is None without an on_evict callback.
    """

    def __cinit__(self, count, most_idle, table: BlockTable, policy: Policy, evicted):
        i: cython.Py_ssize_t
        self.count, self.most_idle = count, most_idle
        self.table, self.policy, self.evicted = table, policy, evicted
        self.pins = cython.cast(cython.p_int, zeros(self.count * cython.sizeof(cython.int)))
        self.block = cython.cast(cython.p_int, zeros(self.count * cython.sizeof(cython.int)))
        self.unused = cython.cast(cython.p_int, zeros(self.count * cython.sizeof(cython.int)))
        self.free_count = self.count
        for i in range(self.count):
            self.pins[i] = FREE  # slot -> number of live sequences that hold it
            self.block[i] = NONE  # slot -> the block in it
            self.unused[self.count - 1 - i] = cython.cast(cython.int, i)  # a stack of free slots, slot 0 on top

    def __dealloc__(self):
        give_back(self.pins)
        give_back(self.block)
        give_back(self.unused)

    # ---- pins

    def pin(self, slot):
        """Add a pin to a slot. An idle slot leaves the policy's order."""
        if self.pins[slot] == 0:
            self.idle_count -= 1
        self.pins[slot] += 1
        return self.policy.use(slot)

    def unpin(self, slot, keep):
        """Remove a pin of a slot. Without pins the slot becomes idle, or free if no lookup can find its block."""
        b: cython.int = self.block[slot]
        self.pins[slot] -= 1
        if self.pins[slot] > 0:
            return 0
        self.idle_count += 1
        self.policy.release(slot)
        if keep and self.table.blocks[b].slot == NONE:
            self.table.blocks[b].slot = slot  # a copy; the slot where lookups found the block was evicted
            self.found_count += 1
        if keep and self.table.blocks[b].slot == slot:
            while self.idle_count > self.most_idle:
                self._evict(self._victim(self.policy.victim()))
            return 0
        return self._vacate(slot)

    def take(self):
        """Take and pin a free slot, or a victim's slot. The caller has checked that there is one."""
        if self.free_count == 0:
            self._evict(self._victim(self.policy.victim()))
        self.free_count -= 1
        slot: cython.int = self.unused[self.free_count]
        self.pins[slot] = 1
        self.policy.insert(slot)
        return slot

    # ---- contents

    def put(self, b, slot):
        """Put a block into a slot. Lookups find it there unless they find it in another slot already."""
        self.block[slot] = b
        self.table.blocks[b].holders += 1
        if self.table.blocks[b].slot == NONE:
            self.table.blocks[b].slot = slot
            self.found_count += 1

    def take_out(self, slot):
        """Remove the block from a slot. The caller then calls the table's `let_go`."""
        if self.table.blocks[self.block[slot]].slot == slot:
            self.table.blocks[self.block[slot]].slot = NONE
            self.found_count -= 1
        self.block[slot] = NONE

    # ---- eviction

    def expire(self):
        """Evict the slots that the policy reports as expired."""
        slot: cython.int = self.policy.expired()
        while slot >= 0:
            self._evict(self._victim(slot))
            slot = self.policy.expired()
        return 0

    def _victim(self, slot):
        """The policy's victim, checked because the policy may be a user's."""
        if not (0 <= slot < self.count) or self.pins[slot] != 0:
            raise UsageError(
                f"the policy's victim is {self._described(slot)}. Return a slot that was released and not used since."
            )
        return slot

    def _described(self, slot):
        if not 0 <= slot < self.count:
            return "no slot" if slot < 0 else f"slot {slot:,}, which does not exist"
        return f"slot {slot:,}, which {'has no block' if self.pins[slot] == FREE else 'is pinned'}"

    def _evict(self, slot):
        self.evictions += 1
        if self.evicted is not None:
            self.evicted.append(slot)
        return self._vacate(slot)

    def _vacate(self, slot):
        """Make an idle slot free."""
        b: cython.int = self.block[slot]
        self.policy.remove(slot)
        self.idle_count -= 1
        self.take_out(slot)
        self.table.let_go(b)
        self.pins[slot] = FREE
        self.unused[self.free_count] = slot
        self.free_count += 1
        return 0
