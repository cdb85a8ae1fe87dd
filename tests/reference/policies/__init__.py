"""Eviction orders in the plainest Python, over dicts and lists: the definitions of the compiled ones."""
