"""What a trace is like: statistics, sessions, reuse, the hit curve, comparison."""
