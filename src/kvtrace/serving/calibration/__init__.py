"""Costs of an engine's steps, fitted to a recording: the fit, the file of costs, and how far it was measured."""
