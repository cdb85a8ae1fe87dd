"""The blocks that KV events tell of: which are resident, and the chain that leads to each.

A block is known from its first store until long after its removal, so that a store of the same block is known to be a
second one. Blocks that became known at once share a segment: one array of tokens, and one link to the block before.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

from .kv_batches import Hash, KvEventCounts, Stored

MAX_BLOCKS = 1 << 21  # blocks that are known at once, resident or removed; about 200 bytes and their tokens each


@dataclass(eq=False, slots=True, repr=False)
class BlockRun:
    """Consecutive blocks of a chain that became known at once."""

    parent: Block | None  # None = they begin a prompt
    size: int  # tokens per block; 0 = one block, known only as the parent of another
    hashes: list[Hash]
    tokens: array[int] | None  # uint32, of all blocks; None = the events have none
    copies: array[int]  # block -> copies in GPU memory
    keys: list[Any] | None = None  # of each block: salts and media in its hash
    adapter: str | None = None
    salt: str | None = None
    same: Block | None = None  # of a block that was known only as a parent: where it was stored later
    twin: Hash | None = None  # the first block's hash, if a block with another one has its path, tokens and keys
    branch: tuple[int, Hash] | None = None  # the beginning of the first segment that continues this one, and its hash
    branches: dict[int, Hash] | None = None  # the same of all, once there are several


Block = tuple[BlockRun, int]  # and the number of the block in it


@dataclass(repr=False)
class KvBlocks:
    """The known blocks of one prefix cache. `counts` is kept up to date."""

    counts: KvEventCounts
    max_blocks: int = MAX_BLOCKS
    _known: dict[Hash, Block] = field(default_factory=dict)
    _gone: dict[Hash, None] = field(default_factory=dict)  # known and not resident, oldest first
    _lower: dict[Hash, set[str]] = field(default_factory=dict)  # block -> tiers below GPU memory that have it
    _roots: dict[int, Hash] = field(default_factory=dict)  # beginnings of prompts -> their first hash

    def __getitem__(self, block_hash: Hash) -> Block:
        return self._known[block_hash]

    def is_resident(self, block_hash: Hash) -> bool:
        """Whether GPU memory has a copy of a block."""
        block = self._known.get(block_hash)
        return block is not None and block[0].copies[block[1]] > 0

    def put(self, event: Stored) -> int:
        """Make the blocks of a store resident; the number of leading ones that a lower tier had."""
        parent = None if event.parent is None else self._parent(event.parent)
        loaded = start = 0
        while start < len(event.hashes):
            block = self._known.get(event.hashes[start])
            if block is not None and block[0].size:
                is_loaded = self._put_known(event.hashes[start], block)
                loaded += is_loaded and loaded == start
                parent, start = block, start + 1
                continue
            stop = start + 1
            while stop < len(event.hashes) and event.hashes[stop] not in self._known:
                stop += 1
            parent, start = self._put_segment(event, start, stop, parent), stop
        return loaded

    def remove(self, hashes: list[Hash]) -> None:
        """Take one copy of each of these blocks out of GPU memory."""
        for block_hash in hashes:
            if not self.is_resident(block_hash):
                self.counts.unknown_removed += 1
                continue
            segment, index = self._known[block_hash]
            segment.copies[index] -= 1
            if not segment.copies[index]:
                self.counts.removed += 1
                self.counts.resident -= 1
                self._gone[block_hash] = None

    def put_lower(self, hashes: list[Hash], tier: str) -> None:
        """Note that a tier below GPU memory has these blocks."""
        for block_hash in hashes:
            if block_hash in self._lower or len(self._lower) < self.max_blocks:
                self._lower.setdefault(block_hash, set()).add(tier)

    def remove_lower(self, hashes: list[Hash], tier: str) -> None:
        """Note that a lower tier has these blocks no longer."""
        for block_hash in hashes:
            tiers = self._lower.get(block_hash, set())
            tiers.discard(tier)
            if not tiers:
                self._lower.pop(block_hash, None)

    def clear(self) -> None:
        """Forget all blocks, as the engine did."""
        self.counts.cleared += self.counts.resident
        self.counts.resident = 0
        for table in (self._known, self._gone, self._lower, self._roots):
            table.clear()

    def bound(self) -> None:
        """Forget the blocks that were removed longest ago; then, if all are resident, those stored first."""
        while len(self._known) > self.max_blocks:
            block_hash = next(iter(self._gone or self._known))
            segment, index = self._known.pop(block_hash)
            if block_hash in self._gone:
                del self._gone[block_hash]
            else:
                self.counts.resident -= 1
                segment.copies[index] = 0
            self.counts.forgotten += 1
        if len(self._roots) > self.max_blocks:
            self._roots.clear()

    def _put_known(self, block_hash, block) -> bool:
        """Count the store of a known block; whether a lower tier had it."""
        segment, index = block
        segment.copies[index] += 1
        if segment.copies[index] > 1:
            self.counts.copies += 1
            return False
        self._gone.pop(block_hash, None)
        self.counts.resident += 1
        is_loaded = bool(self._lower.get(block_hash))
        self.counts.loaded += is_loaded
        self.counts.again += not is_loaded
        return is_loaded

    def _put_segment(self, event, start, stop, parent) -> Block:
        """Add blocks that were not stored before; the last of them. The first may be known as a parent."""
        size, hashes = event.block_size, event.hashes[start:stop]
        keys = None if event.keys is None or not any(event.keys[start:stop]) else event.keys[start:stop]
        tokens = None if event.tokens is None else event.tokens[start * size : stop * size]
        copies = array("I", [1]) * len(hashes)
        segment = BlockRun(parent, size, hashes, tokens, copies, keys, event.adapter, event.salt)
        segment.twin = self._twin(segment)
        placeholder = self._known.pop(hashes[0], None)
        if placeholder is not None:
            if _leads_to(segment, placeholder[0]):
                segment.parent = None  # a circle, which no engine has
            else:
                placeholder[0].same = (segment, 0)
            self._gone.pop(hashes[0], None)
        before = len(self._known)
        for i, block_hash in enumerate(hashes):
            self._known[block_hash] = (segment, i)
        self.counts.first += len(self._known) - before
        self.counts.resident += len(self._known) - before
        return segment, len(hashes) - 1

    def _twin(self, segment) -> Hash | None:
        """The first block's hash, if another block with its tokens and keys follows the same block.

        They differ in what older events do not state, such as images. The engine's hashes are taken at their word.
        """
        if segment.tokens is None:
            return None
        own, start = segment.hashes[0], _start(segment, 0)
        if segment.parent is None:
            return None if self._roots.setdefault(start, own) == own else own
        before, index = segment.parent
        next_ = index + 1
        if next_ < len(before.hashes) and before.hashes[next_] != own and _start(before, next_) == start:
            return own
        place = hash((index, start))
        if before.branch is None:
            before.branch = place, own  # nearly all segments have one at most
            return None
        before.branches = before.branches or dict([before.branch])
        return None if before.branches.setdefault(place, own) == own else own

    def _parent(self, block_hash) -> Block:
        """The block that a store continues; one without tokens, if it is not known."""
        block = self._known.get(block_hash)
        if block is None:
            block = self._known[block_hash] = (BlockRun(None, 0, [block_hash], None, array("I", [0])), 0)
            self._gone[block_hash] = None
        if not block[0].size:
            self.counts.unknown_parents += 1
        return block


def path_of(block: Block) -> list[Block]:
    """The parts of the chain that ends with a block, root first: segments, each with the number of its last block."""
    parts: list[Block] = []
    step: Block | None = block
    while step is not None:
        same = step[0].same
        if same is None:
            parts.append(step)
        step = step[0].parent if same is None else same
    return parts[::-1]


def depth_of(block: Block) -> int:
    """The number of known blocks on the chain that ends with a block."""
    return sum(index + 1 for segment, index in path_of(block) if segment.size)


def _start(segment, index) -> int:
    """A hash of what events state of a block beside the engine's own hash and its path."""
    tokens = None if segment.tokens is None else segment.tokens[index * segment.size : (index + 1) * segment.size]
    keys = None if segment.keys is None else repr(segment.keys[index])
    return hash((tokens and tokens.tobytes(), keys, segment.adapter, segment.salt))


def _leads_to(segment, wanted) -> bool:
    """Whether the path from a segment to its root passes another."""
    while segment is not wanted:
        block = segment.same or segment.parent
        if block is None:
            return False
        segment = block[0]
    return True
