"""Live sources: record requests as digests, and watch what more cache memory would bring."""

from .._base import lazy_names as _lazy

__getattr__, __dir__, __all__ = _lazy.attach(__name__, __file__)
