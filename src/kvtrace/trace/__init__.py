"""A Trace, its invariants, its forest, its hits, and how to cut it."""

from .._base import lazy_names as _lazy

__getattr__, __dir__, __all__ = _lazy.attach(__name__, __file__)
