"""Traces of any size that behave as another: fit a model, sample from it."""
