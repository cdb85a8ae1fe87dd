"""Eviction policies in plain Python, over dicts and lists: the definitions of the compiled ones."""
