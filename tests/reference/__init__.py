"""Slow, obviously correct twins of the compiled code, in plain Python: they define what the compiled code does."""
