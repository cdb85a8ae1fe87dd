"""The live `PrefixCache`, compiled: a token-level cache for a serving engine."""

from ..._base.process import require_built

require_built(__file__)
