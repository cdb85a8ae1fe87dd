"""Live sources: record requests as digests, and watch what more cache memory would bring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .litellm_callback import LiteLLMCallback as LiteLLMCallback
    from .recorder import Recorder as Recorder
    from .watcher import Watcher as Watcher

MODULES = {"LiteLLMCallback": "litellm_callback", "Recorder": "recorder", "Watcher": "watcher"}  # loaded when used


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{MODULES[name]}", __name__), name)
