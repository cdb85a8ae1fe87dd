"""vLLM's hybrid cache: groups of layers with tables of their own over one pool of blocks, and its steps."""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.blocks import NO_COPY, BlockPool
from cython.cimports.kvtrace.cache.core.engine import FITS, NO_BLOCKS, NO_ROOM, NOT_NOW, Engine, StepCache
from cython.cimports.kvtrace.cache.policies.base import Context

# vLLM's hybrid cache: groups of layers with tables of their own over one pool of blocks.
#
# Semantics: vLLM 0.33.0 (vllm/v1/core/kv_cache_coordinator.py, single_type_kv_cache_manager.py). A request resumes at
# the longest prefix at which every group can: full attention needs all of its blocks, a sliding window those of the
# last window, a chunked group those of the present chunk, a state the checkpoint at the boundary. Windows and states
# are kept only where a later request can resume: at the end of the prompt, where a shared prefix was seen to end, and
# at intervals. Twin: tests/reference/grouped_cache.py.


KINDS = {"full": FULL, "window": WINDOW, "chunk": CHUNK, "state": STATE}


class GroupedCache(Engine):
    """A cache of `context.capacity` blocks for the groups of a CacheLayout.

    Prompts are computed in chunks of at most `layout.step_tokens`, as vLLM's scheduler computes them, and outputs one
    token at a time. `demand` is the BlockDemand; the block size of each group is a multiple of the trace's. `lengths`
    are the tokens of prompts and outputs, if they are not the trace's.
    """

    def __init__(self, context: Context, demand, layout, lengths=None):
        Engine.__init__(self, context, demand)
        groups, trace = layout.groups, demand.trace
        rows, self.base = len(demand.full), trace.block_size
        self.layout, self.step_tokens = layout, layout.step_tokens or 1 << 60
        self.retention = -1 if layout.retention_interval is None else layout.retention_interval
        self.checkpoint, self.junctions = layout.internal_checkpoint_alignment > 0, layout.junctions
        self.align = layout.scheduler_block_size
        self.groups = len(groups)
        self._form()
        by_block = demand.mode == "block"
        prompt, output = lengths or (trace.input_length, trace.output_length)
        if by_block:
            prompt = trace.prompt_blocks * self.base
        drafting = demand.drafting
        self.drafts = drafting.tokens if drafting else 0
        self.tokens = np.ascontiguousarray(prompt, dtype=np.int64)
        self.known_tokens, self.prefill_end = self.tokens.copy(), self.tokens.copy()
        self.more = np.maximum(output - 1, 0).astype(np.int64) if self.grows else np.zeros(rows, np.int64)
        self.computed, self.junction = np.zeros((2, rows), dtype=np.int64)
        self.keys = context.blocks
        total = np.asarray(self.tokens) + np.asarray(self.more)
        taken = sum(-(-(total + self.drafts) // group.block_size) + self.drafts for group in groups)
        self.pool = BlockPool(min(context.capacity, int(taken.sum()) + 1), context.blocks * self.groups)
        self.slot = np.full(rows, NO_SLOT, dtype=np.int32)
        self.vacant, self.slots = np.full(64, NO_SLOT, dtype=np.int32), 0
        self.room, self.next_vacant = np.empty((2, 0), dtype=np.int32)
        self.length, self.retired, self.seen, self.last_state, self.has_grown = np.empty((5, 0), dtype=np.int32)
        self.first, self.last, self.stride = np.empty((3, 0), dtype=np.int32)
        self.begin, self.part = np.empty((2, 0), dtype=np.int64)
        self.held, self.top = np.empty(1 << 12, dtype=np.int32), 0
        self.step, self.state_listed = 0, np.zeros(0, dtype=np.int32)

    def _form(self):
        """Gather groups of the same form; full attention is looked up first."""
        members: dict = {}
        for number, group in enumerate(self.layout.groups):
            members.setdefault((group.kind, group.block_size, group.window), []).append(number)
        forms = sorted(members, key=lambda form: form[0] != "full")
        self.forms = len(forms)
        self.stop, self.cut = np.zeros((2, len(forms)), dtype=np.int32)
        self.form_begin = np.cumsum([0, *(len(members[form]) for form in forms)]).astype(np.int32)
        self.member = np.array([number for form in forms for number in members[form]], dtype=np.int32)
        self.form_of = np.empty(self.groups, dtype=np.int32)
        self.place_in_form = np.empty(self.groups, dtype=np.int32)
        for number, form in enumerate(forms):
            np.asarray(self.form_of)[members[form]] = number
            np.asarray(self.place_in_form)[members[form]] = range(len(members[form]))
        self.kind = np.array([KINDS[kind] for kind, _, _ in forms], dtype=np.int32)
        self.size = np.array([size for _, size, _ in forms], dtype=np.int64)
        self.scale = np.asarray(self.size) // self.base
        self.window = np.array([window for _, _, window in forms], dtype=np.int64)
        kept = [1 if kind == "state" else (window + size - 2) // size for kind, size, window in forms]
        self.need = np.array(kept, dtype=np.int64)
        self.has_state = any(kind == "state" for kind, _, _ in forms)

    def self_check(self):
        """A message about an inconsistency after all requests have ended, or None."""
        return self.pool.self_check()

    def peek(self, row):
        return cython.cast(cython.int, self.look_up(row, max(self.tokens[row] - 1, 0)) // self.base)

    # ---- the verbs of an engine

    def admit(self, row):
        hit: cython.longlong = 0
        end: cython.longlong
        if self.slot[row] == NO_SLOT:
            hit = self.look_up(row, max(self.tokens[row] - 1, 0))
            self.hit[row] = cython.cast(cython.int, hit // self.base)
            self.computed[row] = 0
        while self.computed[row] + hit < self.tokens[row]:
            end = self.chunk_end(row, self.computed[row] + hit)
            if self.allocate(row, hit, end) == NO_ROOM:
                return NO_ROOM
            hit = 0
        return self.hit[row]

    def grow(self, row):
        total: cython.longlong = self.tokens[row] + self.more[row]
        while self.computed[row] < total:
            if self.allocate(row, 0, self.computed[row] + 1) == NO_ROOM:
                return NO_ROOM
            self.computed[row] = min(self._next_event(self.computed[row] - 1), total)
        return 0

    def finish(self, row):
        f: cython.int
        g: cython.int
        at: cython.Py_ssize_t
        blank: cython.longlong = 0
        slot: cython.Py_ssize_t = self.slot[row]
        if slot == NO_SLOT:  # an empty prompt
            return 0
        for g in range(self.groups):
            at = slot * self.forms + self.form_of[g]
            blank += self._unpin(at, self.place_in_form[g], self.first[at], self.last[at])
        for f in range(self.forms):
            at = slot * self.forms + f
            blank += self._without_entry(at, f, self.length[at], self.last[at])
            if self.has_grown[at]:
                blank += self._scratch(f)
        self.pool.put_back(blank)
        self.evictions = self.pool.evictions
        self.next_vacant[slot] = self.vacant[self.room[slot]]
        self.vacant[self.room[slot]] = cython.cast(cython.int, slot)
        self.slot[row] = NO_SLOT
        return 0

    # ---- lookup

    def block_at(self, row, place):
        """The number of a full block of a request's prompt and output, in the trace's blocks."""
        if place < self.full[row]:
            return self.ids[self.start[row] + place]
        return cython.cast(cython.int, self.fresh[row] + place - self.full[row])

    def copy_at(self, row, group, form, place):
        """The cached block of a place in a group's table, or NO_COPY."""
        return self.pool.copy[group * self.keys + self.block_at(row, (place + 1) * self.scale[form] - 1)]

    def has_all(self, row, form, place):
        """Whether all groups of a form have a place cached."""
        i: cython.int
        block: cython.longlong = self.block_at(row, (place + 1) * self.scale[form] - 1)
        for i in range(self.form_begin[form], self.form_begin[form + 1]):
            if self.pool.copy[self.member[i] * self.keys + block] == NO_COPY:
                return False
        return True

    def look_up(self, row, limit):
        """The tokens of the longest prefix, of at most `limit` tokens, at which all groups can resume.

        `junction` becomes the end of a longer prefix that some groups have, so that a checkpoint is made there.
        """
        f: cython.int
        current: cython.longlong
        hit: cython.longlong = limit
        longest: cython.longlong = 0
        full: cython.longlong = -1  # of the first form, if it is full attention, which is looked up once
        while True:
            current = hit
            for f in range(self.forms):
                if f == 0 and full >= 0:
                    current = min(current, full)
                    continue
                current = self._prefix(row, f, current)
                if self.kind[f] == FULL:
                    full = current
                longest = max(longest, current)
            if self.groups == 1:
                self.junction[row] = 0
                return current
            if current >= hit:
                break
            hit = current
            if self.forms == 2 and full >= 0:
                break
        self.junction[row] = longest if longest > hit and self.junctions else 0
        return hit

    def _prefix(self, row, form, limit):
        """The tokens of the longest prefix at which the groups of a form can resume."""
        size: cython.longlong = self.size[form]
        places: cython.longlong = limit // size
        place: cython.longlong = 0
        if self.kind[form] == WINDOW:
            return self._window_prefix(row, form, limit)
        if self.kind[form] == STATE:
            for place in range(places - 1, -1, -1):
                if self.has_all(row, form, place):
                    return (place + 1) * size
            return 0
        if self.kind[form] == CHUNK:
            place = limit // self.window[form] * self.window[form] // size
        while place < places and self.has_all(row, form, place):
            place += 1
        return place * size // self.align * self.align

    def _window_prefix(self, row, form, limit):
        size: cython.longlong = self.size[form]
        place: cython.longlong
        run: cython.longlong = 0
        for place in range(limit // size - 1, -1, -1):
            if not self.has_all(row, form, place):
                run = 0
            elif run or (place + 1) * size % self.align == 0:
                run += 1
                if run >= self.need[form]:
                    return (place + run) * size
        return run * size // self.align * self.align

    # ---- a chunk of a request

    def chunk_end(self, row, start):
        """Where the chunk of a prompt that begins at `start` ends."""
        return self.aligned_end(row, start, min(self.tokens[row], start + self.step_tokens))

    def aligned_end(self, row, start, end):
        """Where a chunk that may go on to `end` must end: states are saved at the ends of chunks."""
        goal: cython.longlong = self.prefill_end[row]
        last: cython.longlong
        aligned: cython.longlong
        stop: cython.longlong
        limit: cython.longlong
        internal: cython.bint
        if not self.has_state or start >= goal:
            return end
        last = (self.known_tokens[row] - 1) // self.align * self.align
        internal = end >= goal and self.can_save(start, end, (goal - 1) // self.align * self.align)
        if end < goal:
            aligned = end // self.align * self.align
            if aligned > start or self.align <= self.step_tokens:
                end = aligned
        limit = end
        if not internal:
            stop = (start // self.align + 1) * self.align
            if start % self.align and stop < end:
                end = stop
            if start < last < end:
                end = last
        if start < self.junction[row] < limit:
            stop = start + (self.junction[row] - start) // self.align * self.align
            if start < stop < end:
                end = stop
        return max(start, end)

    def can_save(self, start, end, position):
        """Whether the checkpoint at a position within a chunk can be saved without ending the chunk there."""
        return (
            self.checkpoint
            and start % self.align == 0
            and (end + self.align - 1) // self.align - 2 > (start + self.align - 1) // self.align - 1
            and start + self.align <= position < end
        )

    def skipped(self, form, tokens):
        """The number of leading places that a request with `tokens` computed tokens no longer needs."""
        if self.kind[form] == WINDOW:
            return max(0, tokens - self.window[form] + 1) // self.size[form]
        if self.kind[form] == CHUNK:
            return tokens // self.window[form] * self.window[form] // self.size[form]
        return max(0, tokens - 1) // self.size[form] if self.kind[form] == STATE else 0

    def allocate(self, row, hit, end):
        """Take the blocks of the chunk up to `end` and list those that it fills; NO_ROOM takes nothing."""
        start: cython.longlong = self.computed[row] + hit
        new: cython.longlong
        self.retire(row, start)
        new = self.missing(row, hit, start, end)
        if new + self.idle_hits(row, hit) > self.pool.free:
            return NO_ROOM
        if self.slot[row] == NO_SLOT:
            self._open(row)
            self._start_with(row, hit)
        self.pool.take(new)
        self._extend(row, start, end)
        self.computed[row] = end
        return self._publish(row, end)

    def retire(self, row, tokens):
        """Free the blocks that a request with `tokens` computed tokens no longer needs."""
        f: cython.int
        g: cython.int
        at: cython.Py_ssize_t
        blank: cython.longlong = 0
        slot: cython.Py_ssize_t = self.slot[row]
        if slot == NO_SLOT:
            return 0
        for f in range(self.forms):
            if self.kind[f] != FULL:
                at = slot * self.forms + f
                self.stop[f] = cython.cast(
                    cython.int, max(min(self.skipped(f, tokens), self.length[at]), self.retired[at])
                )
                self.cut[f] = self._entry(at, self.stop[f])
        for g in range(self.groups):  # the order in which the blocks become free
            f = self.form_of[g]
            if self.kind[f] != FULL:
                at = slot * self.forms + f
                blank += self._unpin(at, self.place_in_form[g], self.first[at], self.cut[f])
                if self.kind[f] == STATE and self.last_state[at] >= self.stop[f] and self._is_past(at, f, tokens):
                    blank += self._unpin_place(at, self.place_in_form[g], self.last_state[at])
        for f in range(self.forms):
            if self.kind[f] != FULL:
                at = slot * self.forms + f
                blank += self._without_entry(at, f, self.stop[f], self.cut[f])
                self.first[at], self.retired[at] = self.cut[f], self.stop[f]
        return self.pool.put_back(blank)

    def _is_past(self, at, form, tokens):
        """Whether the state before the present one is not needed any more."""
        return self.last_state[at] < (tokens + self.size[form] - 1) // self.size[form] - 1

    def missing(self, row, hit, start, end):
        """Blocks to take for the chunk [start, end), besides the hits."""
        f: cython.int
        new: cython.longlong
        total: cython.longlong = 0
        slot: cython.Py_ssize_t = self.slot[row]
        for f in range(self.forms):
            new = self._places(f, end)
            new -= hit // self.size[f] if slot == NO_SLOT else self.length[slot * self.forms + f]
            if self.kind[f] == STATE and new > 0:
                new = min(new, 1 + (self._checkpoint_place(row, f, start, end) >= 0))
            total += max(new, 0) * self._members(f)
            if self.drafts and (slot == NO_SLOT or not self.has_grown[slot * self.forms + f]):
                total += self._scratch(f)
        return total

    def _places(self, form, end):
        """The places of a table up to a token; attention has some more for the tokens that a drafter predicts."""
        return (end + (0 if self.kind[form] == STATE else self.drafts) + self.size[form] - 1) // self.size[form]

    def _scratch(self, form):
        """The blocks in which states run ahead with a drafter's tokens: as many for each request of a group."""
        return self.drafts * self._members(form) if self.kind[form] == STATE else 0

    def idle_hits(self, row, hit):
        """The blocks of a hit that no request holds: they leave the free ones."""
        f: cython.int
        i: cython.int
        place: cython.longlong
        idle: cython.longlong = 0
        if hit:
            for f in range(self.forms):
                for place in range(self.skipped(f, hit), hit // self.size[f]):
                    for i in range(self.form_begin[f], self.form_begin[f + 1]):
                        idle += self.pool.pins[self.copy_at(row, self.member[i], f, place)] == 0
        return idle

    def _checkpoint_place(self, row, form, start, end):
        """The place where a state is saved within a chunk, or NO_BLOCK."""
        place: cython.longlong = (end + self.size[form] - 1) // self.size[form] - 2
        at: cython.Py_ssize_t = self.slot[row] * self.forms + form
        if (self.retention == 0 and end < self.prefill_end[row]) or place < 0:
            return NO_BLOCK
        if not self.can_save(start, end, (end - 1) // self.align * self.align):
            return NO_BLOCK
        if self.slot[row] == NO_SLOT or place >= self.length[at] or not self._has_block(at, place):
            return place
        return NO_BLOCK

    def _start_with(self, row, hit):
        """Pin the blocks of a hit that the request still needs."""
        f: cython.int
        i: cython.int
        at: cython.Py_ssize_t
        place: cython.longlong
        block: cython.int
        kept: cython.longlong
        for f in range(self.forms):
            at = self.slot[row] * self.forms + f
            kept = self.skipped(f, hit)
            self.retired[at] = cython.cast(cython.int, kept)
            self.length[at] = self.seen[at] = cython.cast(cython.int, hit // self.size[f])
            self.last_state[at], self.has_grown[at] = NO_BLOCK, False
            self.first[at] = self.last[at] = 0
            for place in range(kept, self.length[at]):
                self._append(at, place)
                for i in range(self._members(f)):
                    block = self.copy_at(row, self.member[self.form_begin[f] + i], f, place)
                    self.pool.pin(block)
                    self.held[self._cell(at, i, self.last[at] - 1)] = block
        return 0

    def _extend(self, row, start, end):
        """Add the blocks of the chunk [start, end), which were taken, to the tables."""
        f: cython.int
        i: cython.int
        at: cython.Py_ssize_t
        places: cython.longlong
        place: cython.longlong
        checkpoint: cython.longlong
        blank: cython.longlong  # the first place that gets a block
        for f in range(self.forms):
            at = self.slot[row] * self.forms + f
            places = self._places(f, end)
            if self.kind[f] == STATE:
                blank = self.length[at]
                checkpoint = self._checkpoint_place(row, f, start, end)
                if places <= blank and checkpoint < 0:
                    self.has_grown[at] = True
                    continue
                if self.has_grown[at] or blank:
                    self.last_state[at] = cython.cast(cython.int, blank - 1)
                blank = max(blank, places - 1 - (checkpoint >= 0))
                self.has_grown[at] = True
                for place in range(blank, places):
                    self._append(at, place)
                    for i in range(self._members(f)):
                        self.held[self._cell(at, i, self.last[at] - 1)] = BLANK
            self.length[at] = cython.cast(cython.int, max(places, self.length[at]))
        return 0

    def _publish(self, row, tokens):
        """List the blocks that `tokens` tokens fill, where a later request can resume."""
        f: cython.int
        at: cython.Py_ssize_t
        begin: cython.longlong
        stop: cython.longlong
        segment: cython.longlong
        place: cython.longlong
        at_end: cython.longlong
        at_junction: cython.longlong
        if self.groups > 1:
            tokens = tokens // self.align * self.align
        tokens = min(tokens, (self.full[row] + self.grown[row]) * self.base)
        for f in range(self.forms):
            at = self.slot[row] * self.forms + f
            begin, stop = self.seen[at], tokens // self.size[f]
            if begin >= stop:
                continue
            self.seen[at] = cython.cast(cython.int, stop)
            segment = (self.align if self.retention < 0 else self.retention) // self.size[f]
            if self.kind[f] == FULL or self.kind[f] == CHUNK or (self.retention and self.need[f] >= segment):
                self._list(row, f, begin, stop)
                continue
            at_end = at_junction = -1  # the places after the blocks that a checkpoint needs
            if self.retention >= 0:
                at_end = (self.tokens[row] - 1) // self.align * self.align // self.size[f]
                at_junction = self.junction[row] // self.size[f]
            if self.retention == 0:
                place = min(at_end, at_junction)  # in order, and none twice
                self._list(row, f, max(begin, place - self.need[f]), min(stop, place))
                at_end = max(at_end, at_junction)
                self._list(row, f, max(begin, at_end - self.need[f], place), min(stop, at_end))
                continue
            for place in range(begin, stop):
                if (
                    place % segment >= segment - self.need[f]
                    or at_end - self.need[f] <= place < at_end
                    or at_junction - self.need[f] <= place < at_junction
                ):
                    self._list(row, f, place, place + 1)
        return 0

    def _list(self, row, form, begin, stop):
        """Give the blocks of some places their keys, so that lookups find them."""
        i: cython.int
        g: cython.int
        at: cython.Py_ssize_t = self.slot[row] * self.forms + form
        place: cython.longlong
        block: cython.longlong
        entry: cython.longlong
        noted: cython.bint = self.kind[form] == STATE and self.state_listed.shape[0] > 0
        for place in range(max(begin, self.retired[at]), stop):
            block = self.block_at(row, (place + 1) * self.scale[form] - 1)
            if self.kind[form] == STATE:
                entry = self._entry_of(at, place)
                if entry == NO_BLOCK or self.held[self._cell(at, 0, entry)] != BLANK:
                    continue
            else:
                self._append(at, place)
                entry = self.last[at] - 1
            for i in range(self._members(form)):
                g = self.member[self.form_begin[form] + i]
                self.held[self._cell(at, i, entry)] = self.pool.register(cython.cast(cython.int, g * self.keys + block))
                if noted:
                    self.state_listed[g * self.keys + block] = self.step
        return 0

    # ---- tables: the places of a form that have an entry, in order, and the block of each group there

    def _members(self, form):
        """The groups of a form."""
        return self.form_begin[form + 1] - self.form_begin[form]

    def _append(self, at, place):
        """Add an entry for a place after all others."""
        self.held[self.begin[at] + self.last[at]] = cython.cast(cython.int, place)
        self.last[at] += 1
        return 0

    def _entry(self, at, place):
        """The first entry of a place that is not before `place`."""
        low: cython.int = self.first[at]
        high: cython.int = self.last[at]
        middle: cython.int
        while low < high:
            middle = (low + high) // 2
            if self.held[self.begin[at] + middle] < place:
                low = middle + 1
            else:
                high = middle
        return low

    def _entry_of(self, at, place):
        """The entry of a place, or NO_BLOCK."""
        entry: cython.int = self._entry(at, place)
        return entry if entry < self.last[at] and self.held[self.begin[at] + entry] == place else NO_BLOCK

    def _cell(self, at, member, entry):
        """Where `held` has the block of a group, by its number in its form, at an entry."""
        return self.begin[at] + (member + 1) * self.stride[at] + entry

    def _has_block(self, at, place):
        """Whether a place of a state has a block, blank or cached."""
        entry: cython.int = self._entry_of(at, place)
        return entry != NO_BLOCK and self.held[self._cell(at, 0, entry)] != NO_BLOCK

    def _without_entry(self, at, form, stop, cut):
        """The blocks of a form without an entry, at kept places before `stop`, whose entries end at `cut`.

        Attention has blank blocks there; states have an entry for each of their blocks.
        """
        if self.kind[form] == STATE:
            return 0
        return (stop - self.retired[at] - (cut - self.first[at])) * self._members(form)

    def _unpin(self, at, member, begin, stop):
        """Unpin the cached blocks of some entries, the last one first; returns the number of blank ones."""
        entry: cython.longlong
        block: cython.int
        blank: cython.longlong = 0
        blocks: cython.longlong = self._cell(at, member, 0)
        for entry in range(stop - 1, begin - 1, -1):
            block = self.held[blocks + entry]
            if block >= 0:
                self.pool.unpin(block)
            else:
                blank += block == BLANK
        return blank

    def _unpin_place(self, at, member, place):
        """Free the block of a place, if it has one; returns 1 if it was blank."""
        entry: cython.int = self._entry_of(at, place)
        blank: cython.longlong
        if entry == NO_BLOCK:
            return 0
        blank = self._unpin(at, member, entry, entry + 1)
        self.held[self._cell(at, member, entry)] = NO_BLOCK
        return blank

    def _next_event(self, computed):
        """The number of tokens after `computed` at which the next token takes, frees or lists a block."""
        f: cython.int
        held: cython.longlong = computed + self.drafts
        soonest: cython.longlong = (computed + 1) // self.align * self.align + self.align - 1  # one more lists blocks
        for f in range(self.forms):
            soonest = min(soonest, (computed // self.size[f] + 1) * self.size[f])
            if self.drafts:
                soonest = min(soonest, (held // self.size[f] + 1) * self.size[f] - self.drafts)
        return max(computed + 1, min(soonest, self.next_freed(computed)))

    def next_freed(self, tokens):
        """The number of tokens after `tokens` at which the next blocks can be freed."""
        f: cython.int
        soonest: cython.longlong = 1 << 62  # full attention frees nothing
        for f in range(self.forms):
            if self.kind[f] == WINDOW:
                soonest = min(soonest, (self.skipped(f, tokens) + 1) * self.size[f] + self.window[f] - 1)
            elif self.kind[f] == CHUNK:
                soonest = min(soonest, (tokens // self.window[f] + 1) * self.window[f])
            elif self.kind[f] == STATE:
                soonest = min(soonest, (self.skipped(f, tokens) + 1) * self.size[f] + 1)
        return soonest

    # ---- room for the tables

    def _open(self, row):
        """Give a request a slot, and its tables a part of `held`."""
        f: cython.int
        power: cython.int = 0
        slot: cython.int
        part: cython.longlong
        total: cython.longlong = self.tokens[row] + self.more[row] + self.drafts
        places: cython.longlong = 0
        for f in range(self.forms):
            places += (total // self.size[f] + 1) * (self._members(f) + 1)
        while (cython.cast(cython.longlong, 1) << power) < places:
            power += 1
        slot = self.vacant[power]
        if slot == NO_SLOT:
            with cython.gil:
                slot = self._new_slot(power)
        self.vacant[power] = self.next_vacant[slot]
        self.slot[row] = slot
        part = self.part[slot]
        for f in range(self.forms):
            self.begin[slot * self.forms + f] = part
            self.stride[slot * self.forms + f] = cython.cast(cython.int, total // self.size[f] + 1)
            part += (total // self.size[f] + 1) * (self._members(f) + 1)
        return 0

    def _new_slot(self, power):
        """A slot whose tables have room for 2**power places; it is the only vacant one of its room."""
        slots: cython.Py_ssize_t = self.room.shape[0]
        slot: cython.int = self.slots
        if slot == slots:
            slots = max(16, 2 * slots)
            self.room, self.next_vacant = np.resize(self.room, slots), np.resize(self.next_vacant, slots)
            self.length = np.resize(self.length, slots * self.forms)
            self.retired = np.resize(self.retired, slots * self.forms)
            self.seen = np.resize(self.seen, slots * self.forms)
            self.first = np.resize(self.first, slots * self.forms)
            self.last = np.resize(self.last, slots * self.forms)
            self.stride = np.resize(self.stride, slots * self.forms)
            self.part = np.resize(self.part, slots)
            self.last_state = np.resize(self.last_state, slots * self.forms)
            self.has_grown = np.resize(self.has_grown, slots * self.forms)
            self.begin = np.resize(self.begin, slots * self.forms)
        self.slots += 1
        self.room[slot], self.next_vacant[slot] = power, NO_SLOT
        self.part[slot] = self.top
        self.top += cython.cast(cython.longlong, 1) << power
        if self.top > self.held.shape[0]:
            self.held = np.resize(self.held, 2 * self.top)
        return slot


# vLLM's hybrid cache under its scheduler: the verbs of `StepCache` over the groups above.
#
# Semantics: vLLM 0.33.0 (`allocate_slots` of vllm/v1/core/kv_cache_manager.py). A request is admitted if its prompt
# fits, where a window counts as much as it ever holds, and if its first chunk fits. Windows are freed by the tokens of
# steps that have ended, before the blocks of the next chunk are counted. Twin: tests/reference/vllm_scheduler.py.


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

    def find(self, row, tokens):
        self.groups.known_tokens[row] = tokens
        self.groups.prefill_end[row] = max(self.groups.tokens[row], tokens - 1)
        return self.groups.look_up(row, tokens - 1)

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
            total += places * groups._members(f) + groups._scratch(f)
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
        last: cython.longlong
        if self.has_room(row, start, end):
            return 0
        groups.pool.take(groups.missing(row, 0, start, end))
        groups._extend(row, start, end)
        for f in range(groups.forms):
            last = groups.length[groups.slot[row] * groups.forms + f] * groups.size[f]
            room = min(room, last if groups.kind[f] == STATE else last - groups.drafts)
        self.room[row], self.next_freed[row] = room, 0  # some of the new blocks may already lie behind the window
        return 0

    def publish(self, row, tokens):
        if tokens >= self.next_listed[row]:
            self.groups._publish(row, tokens)
            self.next_listed[row] = (tokens // self.groups.align + 1) * self.groups.align
        return 0

    def release(self, row):
        return self.groups.finish(row)

    def quiet(self, row, computed, lag, ahead):
        steps: cython.longlong = min(self.next_freed[row], self.next_listed[row] - 1 + ahead) + lag
        return max(0, min(steps, self.room[row]) - computed)
