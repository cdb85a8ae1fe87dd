"""PyTorch, where it is installed: the extra `engine`."""

from __future__ import annotations

from typing import Any

from kvtrace._base.errors import UsageError


def torch() -> Any:
    """The module; UsageError if it is not installed."""
    try:
        import torch as module
    except ImportError:
        raise UsageError("this experiment runs a model and needs PyTorch: `pip install torch`.") from None
    return module


def best_device() -> str:
    """A GPU if there is one, else the CPU."""
    return "cuda" if torch().cuda.is_available() else "cpu"
