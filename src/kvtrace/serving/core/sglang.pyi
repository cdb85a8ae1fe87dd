"""Written by the build: what Python sees of sglang.py, which is compiled."""

from typing import Any
from kvtrace.serving.core.sglang_prefill import SglangPrefill

KINDS: Any

class SglangEventLoop(SglangPrefill): ...

class SglangInstance(SglangEventLoop): ...
