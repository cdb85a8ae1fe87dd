"""The slots of the live cache: which block stands in each, who pins it, and which goes when one is wanted.

A slot is pinned by live sequences, idle (in the pool, in the policy's order), or free. A block can stand in several
slots, and is found in one of them.
"""

import cython
from cython.cimports.kvtrace.cache.live.block_table import NONE, BlockTable
from cython.cimports.kvtrace.cache.live.buffers import zeros
from cython.cimports.kvtrace.cache.policies.base import Policy
from cython.cimports.libc.stdlib import free as give_back

from kvtrace._base.errors import UsageError


class SlotPool:
    """`count` slots for the blocks of `known`, of which at most `most_idle` are idle.

    `gone` lists the slots that were evicted, or is None without an on_evict callback.
    """

    def __cinit__(self, count, most_idle, known: BlockTable, policy: Policy, gone):
        i: cython.Py_ssize_t
        self.count, self.most_idle = count, most_idle
        self.table, self.policy, self.gone = known, policy, gone
        self.pins = cython.cast(cython.p_int, zeros(self.count * cython.sizeof(cython.int)))
        self.block = cython.cast(cython.p_int, zeros(self.count * cython.sizeof(cython.int)))
        self.unused = cython.cast(cython.p_int, zeros(self.count * cython.sizeof(cython.int)))
        self.free_count = self.count
        for i in range(self.count):
            self.pins[i] = FREE  # slot -> live sequences that hold it
            self.block[i] = NONE  # slot -> the block in it
            self.unused[self.count - 1 - i] = cython.cast(cython.int, i)  # the free ones, next at the end: slot 0 first

    def __dealloc__(self):
        give_back(self.pins)
        give_back(self.block)
        give_back(self.unused)

    # ---- who holds a slot

    def pin(self, slot):
        """Add a holder to a slot; an idle slot leaves the pool."""
        if self.pins[slot] == 0:
            self.idle_count -= 1
        self.pins[slot] += 1
        return self.policy.use(slot)

    def unpin(self, slot, keep):
        """Remove a holder of a slot; without holders it goes to the pool, or is freed if no lookup can find it."""
        b: cython.int = self.block[slot]
        self.pins[slot] -= 1
        if self.pins[slot] > 0:
            return 0
        self.idle_count += 1
        self.policy.release(slot)
        if keep and self.table.blocks[b].slot == NONE:
            self.table.blocks[b].slot = slot  # a copy whose better known twin is gone
            self.found_count += 1
        if keep and self.table.blocks[b].slot == slot:
            while self.idle_count > self.most_idle:
                self._evict(self._victim(self.policy.victim()))
            return 0
        return self._vacate(slot)

    def take(self):
        """A free slot, or else a victim's, now pinned. The caller has made sure of room."""
        if self.free_count == 0:
            self._evict(self._victim(self.policy.victim()))
        self.free_count -= 1
        slot: cython.int = self.unused[self.free_count]
        self.pins[slot] = 1
        self.policy.insert(slot)
        return slot

    # ---- what stands in it

    def put(self, b, slot):
        """A block stands in a slot, and is found there unless another slot has it as well."""
        self.block[slot] = b
        self.table.blocks[b].holders += 1
        if self.table.blocks[b].slot == NONE:
            self.table.blocks[b].slot = slot
            self.found_count += 1

    def take_out(self, slot):
        """A slot's block no longer stands there; the table's `let_go` is to follow."""
        if self.table.blocks[self.block[slot]].slot == slot:
            self.table.blocks[self.block[slot]].slot = NONE
            self.found_count -= 1
        self.block[slot] = NONE

    # ---- eviction

    def expire(self):
        """Evict the slots that the policy considers too old."""
        slot: cython.int = self.policy.expired()
        while slot >= 0:
            self._evict(self._victim(slot))
            slot = self.policy.expired()
        return 0

    def _victim(self, slot):
        """The policy's victim, checked, because a user may have written the policy."""
        if not (0 <= slot < self.count) or self.pins[slot] != 0:
            raise UsageError(
                f"the policy named {self._described(slot)} as its victim. Try one it was given by release."
            )
        return slot

    def _described(self, slot):
        if not 0 <= slot < self.count:
            return "no slot" if slot < 0 else f"slot {slot:,}, which does not exist,"
        return f"slot {slot:,}, which {'has no block' if self.pins[slot] == FREE else 'is pinned'},"

    def _evict(self, slot):
        self.evictions += 1
        if self.gone is not None:
            self.gone.append(slot)
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
