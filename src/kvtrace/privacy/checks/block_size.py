"""block_size: blocks are large enough to be hard to guess.

The smaller the blocks, the more precisely their sharing describes a prompt.
"""

from __future__ import annotations

from .evidence import Evidence
from .finding import Finding, not_checked, passed, warned

MIN_TOKENS = 16


def check(evidence: Evidence) -> Finding:
    """Compare the block size with the smallest one that is hard to guess."""
    size = evidence.block_size
    if size is None:
        return not_checked("the block size is not known", "WARN")
    if size < MIN_TOKENS:
        return warned(
            {"block_size": size},
            f"blocks have {size:,} tokens: an attacker can guess the text block by block.",
            f"Use blocks of at least {MIN_TOKENS} tokens: `kvtrace convert --fold N` merges N blocks into one.",
        )
    return passed({"block_size": size}, f"blocks have {size:,} tokens.")
