"""Written by tools/kernel_stubs.py: what Python sees of sglang_scheduler.py, which is compiled."""

from kvtrace.serving.core.sglang_prefill import SglangPrefill

class SglangScheduler(SglangPrefill): ...
