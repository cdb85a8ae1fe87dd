"""The compiled core of the cache simulation: the engine loop, and one file per kind of cache."""

from ..._base.process import require_built

require_built(__file__)
