"""Written by tools/kernel_stubs.py: what Python sees of sglang_pages.py, which is compiled."""

from kvtrace.serving.core.sglang_queue import SglangQueue

class SglangPages(SglangQueue): ...
