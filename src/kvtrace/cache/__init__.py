"""What a prefix cache would hit: policies, engines, tiers, sweeps, and the live `PrefixCache`."""

from .._base import lazy_names as _lazy

__getattr__, __dir__, __all__ = _lazy.attach(__name__, __file__)
