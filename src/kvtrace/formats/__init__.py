"""Trace files in and out: formats, Parquet data sets, the sidecar, files for clients, and `check`."""

from .._base import lazy_names as _lazy

__getattr__, __dir__, __all__ = _lazy.attach(__name__, __file__)
