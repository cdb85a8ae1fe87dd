"""Compiled loops: arrays in, arrays out. A plain twin in tests/reference/ defines each of them."""

from .._base.process import require_built

require_built(__file__)
