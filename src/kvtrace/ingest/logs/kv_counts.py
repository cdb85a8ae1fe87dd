"""Counts of what a prefix cache stored and removed, as its KV events show them."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass
class StoreCounts:
    """What a cache stored and removed since the start, in blocks unless named otherwise."""

    block_size: int = 0  # tokens; 0 = nothing was stored yet
    first: int = 0  # stored for the first time
    again: int = 0  # stored again after they were removed: misses that more capacity would have made hits
    copies: int = 0  # stored while another copy was resident
    loaded: int = 0  # stored while a lower tier had them: loaded, not computed
    hit: int = 0  # leading blocks that rows found in the cache; hits of requests that stored nothing are not published
    reports: int = 0  # requests (not blocks) whose hits were published
    removed: int = 0
    cleared: int = 0  # removed because the whole cache was emptied
    resident: int = 0  # now
    unknown_parents: int = 0  # stores (not blocks) whose parent was stored before the events began, or was lost
    unknown_removed: int = 0  # removed, but not known
    other_groups: int = 0  # of other cache groups of a hybrid model, left out
    left_out: int = 0  # stored without usable tokens, or in another block size, left out
    forgotten: int = 0  # known before, dropped to bound the memory
    lost: int = 0  # batches (not blocks) that never arrived, by their numbers
    restarts: int = 0  # of the engine, by the numbers of its batches
    unknown_events: int = 0  # events (not blocks) of types that are not known

    def __iadd__(self, other: StoreCounts) -> StoreCounts:
        for one in fields(self):
            if one.name != "block_size":
                setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))
        self.block_size = self.block_size or other.block_size
        return self

    def to_dict(self) -> dict[str, int]:
        """The counts by name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}
