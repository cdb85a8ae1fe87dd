"""kvtrace: LLM inference logs as prefix-cache traces that can be shared, and tools that make them useful."""

from typing import Any

from ._base import lazy_names as _lazy
from ._base import results as _results

__version__ = "0.1.0.dev0"

_find, __dir__, __all__ = _lazy.attach(__name__, __file__)
_ROOMS = (
    "analysis",
    "cache",
    "capture",
    "formats",
    "ingest",
    "privacy",
    "report",
    "serving",
    "synthesis",
    "text",
    "trace",
)


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "report":  # the room, which is callable
        return import_module(".report", __name__)
    try:
        return _find(name)
    except AttributeError:
        rooms = [] if name.startswith("_") else [import_module(f".{room}", __name__) for room in _ROOMS]
        places = [f"{room.__name__}.{name}" for room in rooms if name in room.__all__]
        if not places:
            raise
        raise AttributeError(f"module 'kvtrace' has no attribute {name!r}. It is {places[0]}.") from None


def _figure(*arguments: Any) -> Any:
    """The figure of a result. `report/` stands above the results, so they reach it through this function."""
    from .report.figures import figure_of

    return figure_of(*arguments)


def _report() -> Any:
    """The command of the name of the room `report/`, which stands below the commands: the room is callable."""
    from .cli import mirror

    return mirror.report


_results.drawing.update(figure=_figure, report=_report)
