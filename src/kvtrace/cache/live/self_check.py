"""The self-check of the live cache: its books, recounted from the live sequences up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..._base.errors import KvtraceError

FREE = -1  # pins of a slot with nothing in it
NONE = -1  # no block, no slot


@dataclass
class Books:
    """A copy of all that a PrefixCache counts; slots and blocks are numbers, and there are no tokens in it."""

    block_size: int
    most_idle: int
    sequences: list[Held]
    pins: list[int]  # slot -> live sequences that hold it, or FREE
    block: list[int]  # slot -> the block in it, or NONE
    unused: list[int]  # the free slots
    idle_count: int
    known: dict[int, Known]  # each number in use, of a block or a root
    roots: list[int]  # as found by tenant
    tenants: list[int]  # and back
    made: int  # numbers that were ever in use
    spare_count: int
    found_count: int


@dataclass
class Held:
    """What one live sequence holds."""

    live: bool
    length: int
    slots: list[int]
    root: int


@dataclass
class Known:
    """What the table says of a block or a root."""

    parent: int  # the block before it; NONE for a root
    slot: int  # where it is found
    contributors: int  # slots it stands in, blocks that follow it, and for a root its live sequences
    found_as: int  # the block that is found by its tokens; NONE for a root


def check(books: Books) -> None:
    """Raise KvtraceError where the books do not agree; it says what does not."""
    broken = broken_pins(books) or broken_slots(books) or broken_table(books)
    if broken:
        raise KvtraceError(f"the prefix cache is at fault: {broken}.")


def broken_pins(books: Books) -> str | None:
    """What is wrong with the pins, counted from the live sequences, or None."""
    for held in books.sequences:
        if not held.live or len(held.slots) != -(-held.length // books.block_size):
            return "a live sequence has too few blocks or too many"
    pins = Counter(slot for held in books.sequences for slot in held.slots)
    for slot, counted in enumerate(books.pins):
        if max(counted, 0) != pins[slot]:
            return f"slot {slot:,} has {counted:,} pins, and {pins[slot]:,} live sequences hold it"
    return None


def broken_slots(books: Books) -> str | None:
    """What is wrong with the slots: each is pinned, idle or free, and has a block unless it is free; or None."""
    unused = sorted(books.unused)
    if unused != [slot for slot, pins in enumerate(books.pins) if pins == FREE]:
        return "the list of free slots is not that of the slots without pins"
    if unused != [slot for slot, block in enumerate(books.block) if block == NONE]:
        return "a free slot has a block, or another has none"
    idle = [slot for slot, pins in enumerate(books.pins) if pins == 0]
    if len(idle) != books.idle_count or len(idle) > books.most_idle:
        return f"{len(idle):,} blocks are idle, {books.idle_count:,} are counted, {books.most_idle:,} may be"
    if any(books.known[books.block[slot]].slot != slot for slot in idle):
        return "an idle block is not found in its slot"
    return None


def broken_table(books: Books) -> str | None:
    """What is wrong with the table: each block found by its tokens, held by as many as it counts; or None."""
    contributors = Counter(block for block in books.block if block != NONE)
    contributors.update(held.root for held in books.sequences)
    contributors.update(known.parent for known in books.known.values() if known.parent != NONE)
    if len(books.known) + books.spare_count != books.made or sorted(books.roots) != sorted(books.tenants):
        return "the numbers of blocks do not add up"
    if books.found_count != sum(known.slot != NONE for known in books.known.values()):
        return "the count of blocks that are found is wrong"
    for block, known in books.known.items():
        if known.contributors != contributors[block] or not contributors[block]:
            return f"a block counts {known.contributors:,} contributors and has {contributors[block]:,}"
        if known.slot != NONE and books.block[known.slot] != block:
            return "a block is not in the slot where it is to be found"
        if known.parent == NONE:
            if block not in books.tenants:
                return "a root belongs to no tenant"
        elif known.found_as != block:
            return "a block is not found by its tokens"
    return None
