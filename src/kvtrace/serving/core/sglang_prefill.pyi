"""Written by tools/kernel_stubs.py: what Python sees of sglang_prefill.py, which is compiled."""

from kvtrace.serving.core.sglang_pages import SglangPages

class SglangPrefill(SglangPages): ...
