"""The compiled core of the cache: the run of a trace by a schedule, and one file a kind of cache."""

from ..._base.built import require_built

require_built(__file__)
