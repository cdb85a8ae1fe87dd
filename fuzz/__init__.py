"""Harnesses that feed readers and kernels what nobody would write; docs/fuzzing.md says how to run them."""
