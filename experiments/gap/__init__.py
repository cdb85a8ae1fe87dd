"""How much of the gap between LRU and the offline optimum each eviction order closes, and what an engine could know."""
