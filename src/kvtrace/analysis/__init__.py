"""Statistics of a trace: lengths, arrivals, sessions, reuse, the hit curve, and the comparison of two traces."""

from .._base import lazy_names as _lazy

__getattr__, __dir__, __all__ = _lazy.attach(__name__, __file__)
