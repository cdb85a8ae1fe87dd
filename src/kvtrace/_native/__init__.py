"""The compiled loops: arrays in, arrays out. Each has a plain twin in tests/reference/ that defines it."""

from .._base.built import require_built

require_built(__file__)
