"""Compiled structures that policies share: queues, heaps, bitsets."""

from ..._base.built import require_built

require_built(__file__)
