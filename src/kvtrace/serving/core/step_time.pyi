"""Written by tools/kernel_stubs.py: what Python sees of step_time.py, which is compiled."""
