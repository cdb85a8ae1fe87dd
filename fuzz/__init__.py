"""Harnesses that feed readers and kernels what nobody would write; docs/releasing.md says how to run them."""
