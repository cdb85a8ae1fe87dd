"""Synthesis of session trees: a model of whole sessions, and traces of any number of them."""
