"""What an engine knows about each block of a request when it uses it, as one small number: the block's cell.

The last, partial block of a prompt is its *tail*. A block that requests of two sessions have used is *shared*. All
other blocks are *private*. The cell of a tail is the request's turn; of a shared block the number of its uses; of a
private block the request's turn, whether the block was new in a first turn, the new blocks of the request, and the time
since the turn before. All are counted in the buckets of `Bounds`.

The turn comes from the column `turn`, else it is counted along `parent`, as an engine counts the messages of a chat. A
trace without both has it inferred: a request continues the last request that used its deepest known block, if it has
all full blocks of that one and more tokens, and the block is not shared.

Nothing is forgotten when a block is evicted: the owner of a block is kept, as ghosts are. Blocks of outputs that no
prompt has are tails.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import Context
from cython.cimports.kvtrace.cache.structures.recency import Recency

from kvtrace.cache.policies.workload import turns


class PathState:
    """Owners, uses and cells of blocks, request by request; `bounds` is the Bounds of reuse_table.py."""

    def __init__(self, context: Context, bounds, recency: Recency):
        self.depth = recency.depth
        demand, trace = context.demand, context.demand.trace
        rows = len(demand.full)
        self.ids, self.start, self.full = demand.ids, demand.start, demand.full
        self.prompt_blocks = context.blocks - int(demand.grown.sum())
        self.tokens = trace.input_length.astype(np.int64)
        self.block_size = trace.block_size
        self.turn_bounds = np.array(bounds.turns, dtype=np.float64)
        self.use_bounds = np.array(bounds.uses, dtype=np.float64)
        self.new_bounds = np.array(bounds.new_blocks, dtype=np.float64)
        self.gap_bounds = np.array(bounds.gaps_ms, dtype=np.float64)
        self.knows_turns = "turn" in trace.extra or trace.parent is not None
        self.turn = np.array(turns(trace) if self.knows_turns else [1] * rows, dtype=np.int32)
        self.session = np.arange(rows, dtype=np.int32)
        self.arrived = np.zeros(rows)
        self.owner = np.full(context.blocks, -1, dtype=np.int32)
        self.uses = np.zeros(context.blocks, dtype=np.int32)
        self.is_shared, self.is_later = np.zeros((2, context.blocks), dtype=np.int8)

    def begin(self, row, now):
        """A request arrives: find what it continues, and the cells of its private blocks and its tail."""
        k: cython.Py_ssize_t
        known: cython.int = 0
        start: cython.Py_ssize_t = self.start[row]
        while known < self.full[row] and self.owner[self.ids[start + known]] >= 0:
            known += 1
        gap_ms: cython.double = self._continue(row, known, now)
        self.row, self.arrived[row] = row, now
        for k in range(start, start + known):
            if self.session[self.owner[self.ids[k]]] != self.session[row]:
                self.is_shared[self.ids[k]] = 1
        turn: cython.int = bucket(self.turn_bounds, self.turn[row])
        news: cython.int = cython.cast(cython.int, self.new_bounds.shape[0]) + 1
        gaps: cython.int = cython.cast(cython.int, self.gap_bounds.shape[0]) + 2
        new: cython.int = bucket(self.new_bounds, self.full[row] - known)
        gap: cython.int = 1 + bucket(self.gap_bounds, gap_ms) if gap_ms >= 0 else 0
        self.first_shared = cython.cast(cython.int, self.turn_bounds.shape[0]) + 1
        first_private: cython.int = self.first_shared + cython.cast(cython.int, self.use_bounds.shape[0]) + 1
        self.tail_cell = turn
        self.first_turn_cell = first_private + (2 * turn * news + new) * gaps + gap
        self.later_turn_cell = first_private + ((2 * turn + 1) * news + new) * gaps + gap
        return 0

    def _continue(self, row, known, now):
        """Set the turn and the session of a request; returns the time since the turn before, or -1."""
        if known == 0:
            return -1
        last: cython.int = self.ids[self.start[row] + known - 1]
        owner: cython.int = self.owner[last]
        if self.knows_turns:
            if self.turn[row] == 1:
                return -1
        else:
            whole: cython.longlong = min(self.tokens[owner] // self.block_size, self.full[owner])
            if known < whole or self.tokens[row] <= self.tokens[owner] or self.is_shared[last]:
                return -1
            self.turn[row] = self.turn[owner] + 1
        self.session[row] = self.session[owner]
        return now - self.arrived[owner]

    def used_ms(self, block):
        """The arrival of the request that used a block last, in ms."""
        return self.arrived[self.owner[block]]

    def use(self, block):
        """The request that began last uses a block; returns the block's cell."""
        if self.owner[block] < 0:
            self.is_later[block] = self.turn[self.row] > 1
        self.owner[block] = cython.cast(cython.int, self.row)
        self.uses[block] += 1
        place: cython.longlong = self.depth[block]
        if block >= self.prompt_blocks or (place + 1) * self.block_size > self.tokens[self.row]:
            return self.tail_cell
        if self.is_shared[block]:
            return self.first_shared + bucket(self.use_bounds, self.uses[block])
        return self.later_turn_cell if self.is_later[block] else self.first_turn_cell


def bucket(bounds, value):
    """Number of bounds that are at most a value."""
    k: cython.int = 0
    while k < bounds.shape[0] and bounds[k] <= value:
        k += 1
    return k


def cells(demand, bounds):
    """int32: position in `demand.ids` -> the cell of that use, for requests one after another."""
    row: cython.Py_ssize_t
    k: cython.Py_ssize_t
    context: Context = Context(demand.blocks, demand.blocks, demand.trace, demand)
    state: PathState = PathState(context, bounds, Recency(context))
    arrival: cython.const[cython.double][::1] = demand.arrival
    found = np.zeros(len(demand.ids), dtype=np.int32)
    cell: cython.int[::1] = found
    with cython.nogil:
        for row in range(state.full.shape[0]):
            state.begin(row, arrival[row])
            for k in range(state.start[row], state.start[row] + state.full[row]):
                cell[k] = state.use(state.ids[k])
    return found
