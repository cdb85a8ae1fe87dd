"""The self-check of the live cache: compares a snapshot of its counts with the live sequences."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..._base.errors import KvtraceError

FREE = -1  # pins of a slot with nothing in it
NONE = -1  # no block, no slot


@dataclass
class CacheSnapshot:
    """A copy of all counts of a PrefixCache, without tokens; slots and blocks are numbers."""

    block_size: int
    most_idle: int
    sequences: list[Held]
    pins: list[int]  # slot -> live sequences that hold it, or FREE
    block: list[int]  # slot -> the block in it, or NONE
    unused: list[int]  # the free slots
    idle_count: int
    table: dict[int, KnownBlock]  # each number in use, of a block or a root
    roots: list[int]  # as found by tenant
    tenants: list[int]  # and back
    numbers: int  # numbers that were ever in use
    spare_count: int
    found_count: int


@dataclass
class Held:
    """The blocks of one live sequence."""

    live: bool
    length: int
    slots: list[int]
    root: int


@dataclass
class KnownBlock:
    """The record of a block or a root in the table."""

    parent: int  # the block before it; NONE for a root
    slot: int  # where it is found
    holders: int  # slots that hold it, blocks that follow it, and for a root its live sequences
    found_as: int  # the block that is found by its tokens; NONE for a root


def check(snapshot: CacheSnapshot) -> None:
    """Raise KvtraceError if the counts of the snapshot disagree; the error names the first fault."""
    broken = broken_pins(snapshot) or broken_slots(snapshot) or broken_table(snapshot)
    if broken:
        raise KvtraceError(f"internal error in the prefix cache: {broken}.")


def broken_pins(snapshot: CacheSnapshot) -> str | None:
    """The first fault of the pins, counted from the live sequences, or None."""
    for held in snapshot.sequences:
        if not held.live or len(held.slots) != -(-held.length // snapshot.block_size):
            return "a live sequence has too few blocks or too many"
    pins = Counter(slot for held in snapshot.sequences for slot in held.slots)
    for slot, counted in enumerate(snapshot.pins):
        if max(counted, 0) != pins[slot]:
            return f"slot {slot:,} has {counted:,} pins, and {pins[slot]:,} live sequences hold it"
    return None


def broken_slots(snapshot: CacheSnapshot) -> str | None:
    """The first fault of the slots, or None: each is pinned, idle or free, and has a block unless it is free."""
    unused = sorted(snapshot.unused)
    if unused != [slot for slot, pins in enumerate(snapshot.pins) if pins == FREE]:
        return "the list of free slots is not that of the slots without pins"
    if unused != [slot for slot, block in enumerate(snapshot.block) if block == NONE]:
        return "a free slot has a block, or another has none"
    idle = [slot for slot, pins in enumerate(snapshot.pins) if pins == 0]
    if len(idle) != snapshot.idle_count or len(idle) > snapshot.most_idle:
        return f"{len(idle):,} blocks are idle, {snapshot.idle_count:,} are counted, {snapshot.most_idle:,} may be"
    if any(snapshot.table[snapshot.block[slot]].slot != slot for slot in idle):
        return "an idle block is not found in its slot"
    return None


def broken_table(snapshot: CacheSnapshot) -> str | None:
    """The first fault of the table, or None: each block is found by its tokens, and its count of holders is right."""
    holders = Counter(block for block in snapshot.block if block != NONE)
    holders.update(held.root for held in snapshot.sequences)
    holders.update(entry.parent for entry in snapshot.table.values() if entry.parent != NONE)
    if len(snapshot.table) + snapshot.spare_count != snapshot.numbers or sorted(snapshot.roots) != sorted(
        snapshot.tenants
    ):
        return "the numbers of blocks do not add up"
    if snapshot.found_count != sum(entry.slot != NONE for entry in snapshot.table.values()):
        return "the count of blocks that are found is wrong"
    for block, entry in snapshot.table.items():
        if entry.holders != holders[block] or not holders[block]:
            return f"a block counts {entry.holders:,} holders and has {holders[block]:,}"
        if entry.slot != NONE and snapshot.block[entry.slot] != block:
            return "a block is not in the slot where it is to be found"
        if entry.parent == NONE:
            if block not in snapshot.tenants:
                return "a root belongs to no tenant"
        elif entry.found_as != block:
            return "a block is not found by its tokens"
    return None
