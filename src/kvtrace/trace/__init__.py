"""A Trace, its invariants, its forest, its hits, and how to cut it."""
