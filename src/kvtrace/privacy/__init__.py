"""What others may see: numbering, release profiles, k-sharing, the audit, the data card."""

from .._base import lazy_names as _lazy

__getattr__, __dir__, __all__ = _lazy.attach(__name__, __file__)
