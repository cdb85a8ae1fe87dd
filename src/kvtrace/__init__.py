"""kvtrace: LLM inference logs as prefix-cache traces that can be shared, and tools that make them useful."""

import lazy_loader as _lazy

from ._base import results as _results

__version__ = "0.1.0.dev0"

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)


def _figure(*arguments):
    """The figure of a result. `report/` stands above the results, so they reach it through this function."""
    from .report.figures import figure_of

    return figure_of(*arguments)


_results.drawing["figure"] = _figure
