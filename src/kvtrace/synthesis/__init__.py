"""Synthesis of traces of any size: fit a model to a trace, and sample from the model."""
