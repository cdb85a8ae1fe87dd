"""The blocks of the tier below vLLM's cache: where each one is, and whether it can be evicted."""

import numpy as np


class TierBlocks:
    """`state` is ABSENT, WRITING, or IDLE + the number of transfers that read the block."""

    def __init__(self, blocks):
        self.state = np.zeros(blocks, dtype=np.int32)
        self.given = np.zeros(blocks, dtype=np.int32)
        self.offers = 0

    def is_evictable(self, block):
        """Whether a block is idle, and not among those given."""
        return self.state[block] == IDLE and self.given[block] != self.offers
