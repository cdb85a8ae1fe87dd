"""Statistics of a trace: lengths, arrivals, sessions, reuse, the hit curve, and the comparison of two traces."""
