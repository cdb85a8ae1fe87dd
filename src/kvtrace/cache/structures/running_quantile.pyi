"""Written by tools/kernel_stubs.py: what Python sees of running_quantile.py, which is compiled."""

from typing import Any

class RunningQuantile:
    def __init__(self, most: Any, share: Any) -> None: ...
