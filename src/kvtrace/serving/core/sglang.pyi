"""Written by tools/kernel_stubs.py: what Python sees of sglang.py, which is compiled."""

from kvtrace.serving.core.sglang_scheduler import SglangScheduler

class SglangInstance(SglangScheduler): ...
