"""Synthesis of traces of any size: fit a model to a trace, and sample from the model."""

from .._base import lazy_names as _lazy

__getattr__, __dir__, __all__ = _lazy.attach(__name__, __file__)
