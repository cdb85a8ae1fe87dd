"""Presentation of results: tables, JSON, CSV, plots, and the HTML page."""

import sys as _sys
from inspect import Signature as _Signature
from inspect import signature as _signature
from types import ModuleType as _ModuleType
from typing import Any as _Any

from .._base import lazy_names as _lazy
from .._base.results import drawing as _drawing

__getattr__, __dir__, __all__ = _lazy.attach(__name__, __file__)


class _Room(_ModuleType):
    """The room, called by the name of its command: `kvtrace.report("trace.jsonl", "page.html")`."""

    def __call__(self, *arguments: _Any, **options: _Any) -> _Any:
        return _drawing["report"]()(*arguments, **options)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """The help of the command, for help() and `kvtrace.report?` in a notebook."""
        return f"{vars(self)['__doc__']}\n\nAs a function: {_drawing['report']().__doc__}"

    @property
    def __signature__(self) -> _Signature:
        return _signature(_drawing["report"]())


_sys.modules[__name__].__class__ = _Room
