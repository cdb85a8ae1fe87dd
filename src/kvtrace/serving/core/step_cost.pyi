"""Written by tools/kernel_stubs.py: what Python sees of step_cost.py, which is compiled."""
