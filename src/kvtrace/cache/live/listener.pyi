"""Written by tools/kernel_stubs.py: what Python sees of listener.py, which is compiled."""

from typing import Any

class Listener: ...

def checked_callback(name: Any, call: Any) -> Any: ...
