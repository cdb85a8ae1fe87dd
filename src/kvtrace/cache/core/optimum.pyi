"""Written by tools/kernel_stubs.py: what Python sees of optimum.py, which is compiled."""

from typing import Any

def retained(next_row: Any, blocks: Any, first: Any, capacity: Any) -> Any: ...
