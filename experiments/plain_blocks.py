"""Blocks without a prefix cache: a list of free ones, no hashing, no sharing, no reuse.

It has the methods of PrefixCache that serving calls, so an engine runs with either.
"""

from __future__ import annotations

from collections.abc import Callable

from kvtrace.cache.live.prefix_cache import OutOfBlocks


class Held:
    """The blocks of one live request; nothing is ever a hit."""

    hit_blocks = hit_tokens = 0

    def __init__(self, blocks: list[int], length: int):
        self.blocks, self.length = blocks, length


class PlainBlocks:
    """A fixed number of blocks, allocated and freed.

    >>> cache = PlainBlocks(3, 4)
    >>> first = cache.allocate([1, 2, 3, 4, 5])
    >>> first.blocks, cache.free(first), cache.allocate([1, 2, 3, 4]).blocks
    ([0, 1], None, [0])
    """

    def __init__(self, blocks: int, block_size: int, on_write: Callable[[int, int, int], None] | None = None):
        self.block_size, self.on_write = block_size, on_write
        self.unused = list(range(blocks - 1, -1, -1))

    def allocate(self, tokens) -> Held:
        """Blocks for a prompt; OutOfBlocks if there are too few."""
        count = -(-len(tokens) // self.block_size)
        if count > len(self.unused):
            raise OutOfBlocks(f"{count:,} blocks are needed, {len(self.unused):,} are free. Free a sequence first.")
        held = Held([self.unused.pop() for _ in range(count)], len(tokens))
        if self.on_write is not None:
            for place, slot in enumerate(held.blocks):
                first = place * self.block_size
                self.on_write(slot, first, min(self.block_size, len(tokens) - first))
        return held

    def append(self, held: Held, token: int) -> None:
        """Room for one more token; OutOfBlocks if none is free."""
        if held.length % self.block_size == 0:
            if not self.unused:
                raise OutOfBlocks("1 block is needed, 0 are free. Free a sequence first.")
            held.blocks.append(self.unused.pop())
        if self.on_write is not None:
            self.on_write(held.blocks[held.length // self.block_size], held.length, 1)
        held.length += 1

    def free(self, held: Held) -> None:
        """Take all blocks back."""
        self.unused += reversed(held.blocks)
