"""Text to tokens and back: tokenizers, chat templates, synthetic prompts."""

from .._base import lazy_names as _lazy

__getattr__, __dir__, __all__ = _lazy.attach(__name__, __file__)
