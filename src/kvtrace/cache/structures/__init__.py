"""Compiled structures that policies share: queues, heaps, bitsets."""

from ..._base.process import require_built

require_built(__file__)
