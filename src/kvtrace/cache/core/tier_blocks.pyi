"""Written by tools/kernel_stubs.py: what Python sees of tier_blocks.py, which is compiled."""

from typing import Any

class TierBlocks:
    def __init__(self, blocks: Any) -> None: ...
