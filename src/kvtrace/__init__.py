"""kvtrace: LLM inference logs as prefix-cache traces that can be shared, and tools that make them useful."""

import lazy_loader as _lazy

__version__ = "0.1.0.dev0"

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
