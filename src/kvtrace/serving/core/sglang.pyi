"""Written by the build: what Python sees of sglang.py, which is compiled."""

from typing import Any
from kvtrace.serving.core.apart import SglangApart

KINDS: Any

class SglangEventLoop(SglangApart): ...

class SglangInstance(SglangEventLoop): ...
