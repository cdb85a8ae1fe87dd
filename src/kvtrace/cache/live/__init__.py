"""The live `PrefixCache`, compiled: token by token, for an engine to use."""

from ..._base.built import require_built

require_built(__file__)
