"""Check 6: the smaller a block, the more of a prompt its sharing shows, and the easier a block is guessed."""

from __future__ import annotations

from .evidence import Evidence
from .finding import Finding, not_made, passed, warned

LEAST = 16  # tokens


def check(there: Evidence) -> Finding:
    """The block size against the least that is hard to guess."""
    size = there.block_size
    if size is None:
        return not_made("nobody says the block size", "WARN")
    if size < LEAST:
        return warned(
            {"block_size": size},
            f"blocks of {size:,} tokens: what so few tokens say can be guessed, block after block.",
            f"Blocks of {LEAST} tokens or more; `kvtrace convert --fold N` makes N blocks one.",
        )
    return passed({"block_size": size}, f"blocks of {size:,} tokens.")
