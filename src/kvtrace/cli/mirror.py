"""The functions of the commands, each made when it is first used; `mirror.pyi` has their signatures."""

from __future__ import annotations

from typing import Any

from .functions import NAMES, function_of


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, function_of(name))
