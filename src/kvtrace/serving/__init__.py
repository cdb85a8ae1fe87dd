"""What serving takes: hardware, schedulers, routers, time, money, the plan."""

from .._base import lazy_names as _lazy

__getattr__, __dir__, __all__ = _lazy.attach(__name__, __file__)
