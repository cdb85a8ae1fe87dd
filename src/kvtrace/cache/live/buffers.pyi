"""Written by tools/kernel_stubs.py: what Python sees of buffers.py, which is compiled."""
