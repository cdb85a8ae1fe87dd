"""vLLM's hybrid cache under its scheduler: the verbs of step_cache.py over the groups of grouped_cache.py.

Semantics: vLLM 0.33.0 (`allocate_slots` of vllm/v1/core/kv_cache_manager.py). A request is admitted if its prompt fits,
where a window counts as much as it ever holds, and if its first chunk fits. Windows are freed by the tokens of steps
that have ended, before the blocks of the next chunk are counted. Twin: tests/reference/vllm_scheduler.py.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.grouped_cache import CHUNK, NO_BLOCK, STATE, WINDOW, GroupedCache
from cython.cimports.kvtrace.cache.core.step_cache import FITS, NO_BLOCKS, NOT_NOW, StepCache
from cython.cimports.kvtrace.cache.policies.base import Context

NEVER = cython.declare(cython.longlong, 1 << 62)


class GroupedSteps(StepCache):
    """The cache of `context.capacity` blocks for the groups of a layout; `lengths` are tokens of prompts and outputs.

    `layout.step_tokens` is the largest chunk; `in_flight` is the most tokens of a request whose step has not ended.
    """

    def __init__(self, context: Context, demand, layout, lengths, in_flight):
        StepCache.__init__(self, context, demand)
        groups: GroupedCache = GroupedCache(context, demand, layout, lengths)
        self.groups, self.in_flight = groups, in_flight
        self.size, self.slides, self.splits = groups.pool.capacity, True, groups.has_state
        self.step_ends = 0
        self.room, self.next_freed, self.next_listed = np.zeros((3, len(demand)), dtype=np.int64)
        if groups.has_state:
            groups.state_listed = np.zeros(groups.keys * groups.groups, dtype=np.int32)

    def self_check(self):
        """A message about an inconsistency after all requests have ended, or None."""
        self.evictions = self.groups.pool.evictions
        return self.groups.self_check()

    def peek(self, row):
        return self.groups.peek(row)

    def free(self):
        return self.groups.pool.free

    def begin_step(self):
        self.groups.step += 1
        return 0

    def find(self, row, known):
        self.groups.known[row] = known
        self.groups.prefill_end[row] = max(self.groups.tokens[row], known - 1)
        return self.groups.look_up(row, known - 1)

    def chunk_end(self, row, start, end):
        return self.groups.aligned_end(row, start, end)

    def admission(self, row, hit, end, whole, spare):
        free: cython.longlong = self.groups.pool.free - self.groups.idle_hits(row, hit) - spare
        if self._awaits_state(row, hit):
            return NOT_NOW
        if whole and self._reserved(row, hit, whole) > free:
            return NO_BLOCKS
        return NOT_NOW if self.groups.missing(row, hit, hit, end) > free else FITS

    def _awaits_state(self, row, hit):
        """Whether a state of the hit is computed in this step."""
        f: cython.int
        i: cython.int
        groups: GroupedCache = self.groups
        block: cython.longlong
        if not groups.has_state or hit == 0:
            return False
        for f in range(groups.forms):
            if groups.kind[f] == STATE:
                block = groups.block_at(row, hit // groups.size[f] * groups.scale[f] - 1)
                for i in range(groups.form_begin[f], groups.form_begin[f + 1]):
                    if groups.state_listed[groups.member[i] * groups.keys + block] == groups.step:
                        return True
        return False

    def _reserved(self, row, hit, tokens):
        """The blocks to reserve for `tokens` tokens besides the hits: a window counts only what it can hold at once."""
        f: cython.int
        groups: GroupedCache = self.groups
        size: cython.longlong
        places: cython.longlong
        total: cython.longlong = 0
        for f in range(groups.forms):
            size = groups.size[f]
            places = (tokens + size - 1) // size
            if groups.kind[f] == WINDOW:
                places = min(places, (groups.window[f] - 1 + self.in_flight + size - 1) // size + 1)
            elif groups.kind[f] == CHUNK:
                places = min(places, (groups.window[f] + self.in_flight + size - 1) // size)
            places = max(0, places - hit // size)
            if groups.kind[f] == STATE:
                places = min(places, 1 + (groups._checkpoint_place(row, f, hit, tokens) != NO_BLOCK))
            total += places * groups._members(f)
        return total

    def open(self, row, hit):
        self.room[row] = self.next_freed[row] = self.next_listed[row] = 0
        self.groups._open(row)
        return self.groups._start_with(row, hit)

    def slide(self, row, tokens):
        self.publish(row, tokens)
        if tokens >= self.next_freed[row]:
            self.groups.retire(row, tokens)
            self.next_freed[row] = self.groups.next_freed(tokens)
        return 0

    def fits(self, row, start, end):
        return self.has_room(row, start, end) or self.groups.missing(row, 0, start, end) <= self.groups.pool.free

    def has_room(self, row, start, end):
        """Whether the next token of a request needs no block."""
        return end <= self.room[row] and end - start == 1

    def missing(self, row, start, end):
        return 0 if self.has_room(row, start, end) else self.groups.missing(row, 0, start, end)

    def extend(self, row, start, end):
        f: cython.int
        groups: GroupedCache = self.groups
        room: cython.longlong = NEVER
        if self.has_room(row, start, end):
            return 0
        groups.pool.take(groups.missing(row, 0, start, end))
        groups._extend(row, start, end)
        for f in range(groups.forms):
            room = min(room, groups.length[groups.slot[row] * groups.forms + f] * groups.size[f])
        self.room[row], self.next_freed[row] = room, 0  # some of the new blocks may already lie behind the window
        return 0

    def publish(self, row, tokens):
        if tokens >= self.next_listed[row]:
            self.groups._publish(row, tokens)
            self.next_listed[row] = (tokens // self.groups.align + 1) * self.groups.align
        return 0

    def release(self, row):
        return self.groups.finish(row)

    def quiet(self, row, done, lag):
        steps: cython.longlong = min(self.next_freed[row], self.next_listed[row] - 1) + lag
        return max(0, min(steps, self.room[row]) - done)
