"""Raw logs to rows of digests. With `text/`, the only room that sees content."""

from .._base import lazy_names as _lazy

__getattr__, __dir__, __all__ = _lazy.attach(__name__, __file__)
